"""Chat requests to prompt text: tools that a template cannot print, templates that requests bring."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smg_trio.api.openai.chat.request import ChatRequest, parse_chat_request
from smg_trio.api.parameters.limits import RequestLimits
from smg_trio.core.errors import InvalidRequest
from smg_trio.pipeline.models import ServedModel
from smg_trio.pipeline.rendering import render_chat, request_template
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.text.chat_template import ChatTemplate
from smg_trio.text.model_files import load_model_text

CARELESS = (
    "{% for t in tools or [] %}{{ t.function.name }}{% for n, p in t.function.parameters.properties.items() %}"
    "({{ n }}={{ p.type + (p.default | default('')) }}){% endfor %}{% endfor %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)


def ask(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return parse_chat_request(json.dumps(body).encode(), RequestLimits(trust_chat_template=True))


def tool(**properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}


def test_schemas_that_a_template_cannot_print_are_given_in_a_plain_form_and_that_is_noted() -> None:
    template = ChatTemplate(CARELESS, {})
    plain, notes, _ = render_chat(ask(tools=[tool(a={"type": "string", "default": "x"})]), template)
    assert (plain, notes) == ("f(a=stringx)hi", [])
    odd, notes, _ = render_chat(ask(tools=[tool(a={"type": ["null", "integer"], "default": 3})]), template)
    assert odd == "f(a=integer3)hi"
    assert ["simplified" in note for note in notes] == [True]


def test_what_a_template_says_itself_is_said_where_plainer_tools_do_not_help() -> None:
    template = ChatTemplate(
        "{% if tools %}{{ raise_exception('no tools here') }}{% endif %}{{ messages[0].content }}", {}
    )
    with pytest.raises(InvalidRequest, match="no tools here"):
        render_chat(ask(tools=[tool()]), template)


def test_a_template_of_a_request_is_compiled_and_probed_once() -> None:
    text = load_model_text(DEMO_MODEL)
    model = ServedModel(model_id="m", text=text, root="m", created=1)
    request = ask(chat_template="{{ messages[0].content }}!")
    template = request_template(request, model)
    assert template is request_template(request, model)
    assert render_chat(request, template)[:2] == ("hi!", [])
    with pytest.raises(InvalidRequest) as caught:
        request_template(ask(chat_template="{% if %}"), model)
    assert caught.value.param == "chat_template"
