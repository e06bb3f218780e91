"""A chat request to prompt text: which template, and what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from smg_trio.core.errors import ConfigError, InvalidRequest, UnsupportedFeature
from smg_trio.core.heavy_json import weight
from smg_trio.pipeline.planning import is_thinking, template_arguments
from smg_trio.text.chat_template import MAX_RENDERED_CHARS, ChatTemplate
from smg_trio.text.tool_forms import Tools, simplified_tools

if TYPE_CHECKING:
    from smg_trio.api.openai.chat.request import ChatRequest
    from smg_trio.pipeline.models import ServedModel
    from smg_trio.text.media_marks import MediaMarks
    from smg_trio.text.mistral_chat import MistralChat

MAX_TOOLS_WEIGHT: Final = 2_000_000
"""Characters of all tools, and of all template arguments: a template may print each of them in one go, which holds the
loop for 20 ms."""
_REQUEST_TEMPLATES: Final = 16
_SIMPLIFIED: Final = "the chat template cannot print the schemas of some tools as they are: they are simplified for it"


def model_template(request: ChatRequest, model: ServedModel) -> ChatTemplate | MistralChat:
    """The model's template or chat encoding for the request. Raises UnsupportedFeature if it has none."""
    template = model.text.template_for(tools=bool(request.tools))
    if template is None:
        raise UnsupportedFeature(
            f"The model `{model.model_id}` has no chat template, so it cannot hold a conversation. "
            + (model.text.no_chat or "Use /v1/completions, or start the gateway with --chat-template."),
            param="messages",
        )
    return template


def request_template(request: ChatRequest, model: ServedModel) -> ChatTemplate:
    """The template that the request brings: compiled, and its traits found, which takes 10 to 50 ms.

    Raises:
        InvalidRequest: it does not compile.
    """
    return _compiled(request.chat_template or "", tuple(model.text.tokenizer.special_tokens.items()))


@lru_cache(maxsize=_REQUEST_TEMPLATES)
def _compiled(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    try:
        template = ChatTemplate(source, dict(special_tokens))
    except ConfigError as error:
        raise InvalidRequest(error.problem, param="chat_template") from None
    template.find_traits()
    return template


class Rendered(NamedTuple):
    """A prompt, and what it was made of.

    Attributes:
        notes: what the log should say of it: what was left out, or has no place in the template.
        messages: as the template was given them.
    """

    prompt: str
    notes: Sequence[str]
    messages: Sequence[Mapping[str, Any]]


def render_chat(request: ChatRequest, template: ChatTemplate, marks: MediaMarks | None = None) -> Rendered:
    """The prompt text; `marks` are put where media are, if the template takes only text there.

    Raises:
        ClientFault: naming what cannot be rendered.
    """
    fitted = template.fit(
        request.messages,
        has_tools=bool(request.tools),
        thinking=template.traits.reasoning == "inline" and bool(is_thinking(request, template)),
        marks=marks,
    )
    notes: list[str] = [*request.notes, *fitted.notes]
    try:
        return Rendered(_render(request, template, fitted.messages, request.tools), notes, fitted.messages)
    except InvalidRequest:
        if not request.tools:
            raise
        prompt = _render_simplified(request, template, fitted.messages)
        return Rendered(prompt, [*notes, _SIMPLIFIED], fitted.messages)


def _render_simplified(request: ChatRequest, template: ChatTemplate, messages: Sequence[Mapping[str, Any]]) -> str:
    """With tools whose schemas any template can print; if that was not it, with what the template said at first."""
    try:
        return _render(request, template, messages, simplified_tools(request.tools))
    except InvalidRequest:
        return _render(request, template, messages, request.tools)


def _render(request: ChatRequest, template: ChatTemplate, messages: Sequence[Mapping[str, Any]], tools: Tools) -> str:
    return template.render(
        messages,
        tools=template.fit_tools(tools),
        documents=request.documents,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        kwargs=template_arguments(request, template),
    )


def check_sizes(request: ChatRequest) -> None:
    """Refuse what would hold the loop or take too much memory to render. Raises InvalidRequest."""
    if weight(request.tools, MAX_TOOLS_WEIGHT) > MAX_TOOLS_WEIGHT:
        raise InvalidRequest(f"The tools are larger than {MAX_TOOLS_WEIGHT} characters.", param="tools")
    if weight(request.chat_template_kwargs, MAX_TOOLS_WEIGHT) > MAX_TOOLS_WEIGHT:
        raise InvalidRequest(
            f"The template arguments are larger than {MAX_TOOLS_WEIGHT} characters.", param="chat_template_kwargs"
        )
    if weight(request.messages, MAX_RENDERED_CHARS) > MAX_RENDERED_CHARS:
        raise InvalidRequest(f"The messages are larger than {MAX_RENDERED_CHARS} characters.", param="messages")
