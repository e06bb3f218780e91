"""What is found out about templates by rendering: a small template for each trait, and the collected ones."""

from __future__ import annotations

from typing import Any

import pytest

from smg_trio.text.chat_template import ChatTemplate
from smg_trio.text.template_traits import TemplateTraits
from tests.conftest import REFERENCE, shared_path

RECORDED = sorted(path.stem for path in (REFERENCE / "data" / "chat_templates").glob("*.jinja")) or ["absent"]

TOOLS = "{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}"
CALLS = (
    "{% for c in m.tool_calls or [] %}"
    "({{ c.function.name }}:{{ c.function.arguments | tojson }}:{{ c.id }})"
    "{% endfor %}"
)
REASONING = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"


def each(body: str, *, before: str = "", tools: str = TOOLS) -> str:
    """A template that writes `body` for every message ``m``."""
    return before + tools + "{% for m in messages %}" + body + "{% endfor %}"


PLAIN = "[{{ m.role }}]" + REASONING + "{{ m.content }}" + CALLS
PLAIN_FOR_CALLS = PLAIN.replace("if m.reasoning_content", "if m.tool_calls and m.reasoning_content")
ALTERNATES = (
    "{% set ns = namespace(last='') %}{% for m in messages if m.role != 'system' %}"
    "{% if m.role == ns.last and m.role in SIDES %}{{ raise_exception('must alternate') }}{% endif %}"
    "{% set ns.last = m.role %}{% endfor %}"
)


def raises_if(condition: str) -> str:
    return "{% if " + condition + " %}{{ raise_exception('no') }}{% endif %}"


def traits(source: str) -> TemplateTraits:
    return ChatTemplate(source, {}).traits


def test_a_template_that_takes_everything_has_the_default_traits() -> None:
    assert traits(each(PLAIN)) == TemplateTraits()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # System messages: refused, dropped, in place of each other, not known.
        (each(raises_if("m.role == 'system' and not loop.first") + PLAIN), {"system": "first"}),
        (each("{% if m.role != 'system' or loop.first %}" + PLAIN + "{% endif %}"), {"system": "first"}),
        (
            each("{% if m.role != 'system' %}" + PLAIN + "{% endif %}", before="{{ messages[0].content }}"),
            {"system": "first"},
        ),
        (each(raises_if("m.role == 'system'") + PLAIN), {"system": "first_user"}),
        (each("{% if m.role != 'system' %}" + PLAIN + "{% endif %}"), {"system": "first_user"}),
        (
            each(
                "{% if m.role == 'user' and loop.last and messages[0].role == 'system' %}{{ messages[0].content }}"
                "{% endif %}{% if m.role != 'system' %}" + PLAIN + "{% endif %}"
            ),
            {"system": "last_user", "needs_user": True},
        ),
        (each("{% if m.role == 'developer' %}D{% endif %}" + PLAIN), {"developer": True}),
        # Order.
        (each(PLAIN, before=ALTERNATES.replace("SIDES", "['user']")), {"consecutive_users": False, "system": "first"}),
        (each(PLAIN, before=ALTERNATES.replace("SIDES", "['assistant']")), {"consecutive_assistants": False}),
        (
            each(raises_if("m.role == 'assistant' and (loop.first or loop.previtem.role == 'system')") + PLAIN),
            {"assistant_first": False},
        ),
        (
            each(PLAIN, before=raises_if("not messages | selectattr('role', 'equalto', 'user') | list")),
            {"needs_user": True},
        ),
        (
            each(raises_if("m.role == 'user' and loop.previtem and loop.previtem.role == 'tool'") + PLAIN),
            {"user_after_result": False},
        ),
        (
            each(raises_if("m.role == 'tool' and loop.previtem.role not in ['tool', 'assistant']") + PLAIN),
            {"results_apart": False},
        ),
        # Calls and results.
        (each(PLAIN.replace(CALLS, "")), {"calls": "text", "calls_without_tools": "text"}),
        (
            each(raises_if("m.role == 'tool'") + PLAIN.replace(CALLS, "")),
            {
                "calls": "text",
                "results": "user",
                "calls_without_tools": "text",
                "results_without_tools": "user",
            },
        ),
        (
            each(PLAIN.replace(CALLS, "{% if tools %}" + CALLS + "{% endif %}")),
            {"calls_without_tools": "text"},
        ),
        (each(PLAIN.replace(" | tojson", " + ''")), {"arguments": "text"}),
        (each(PLAIN.replace(" | tojson", "")), {"arguments": "text"}),
        (each(PLAIN.replace(" | tojson", ".items() | list")), {"raw_arguments": False}),
        (
            each("{% if m.content is none or not m.tool_calls %}" + PLAIN + "{% else %}{{ m.content }}{% endif %}"),
            {"call_content": "null", "call_text": "before"},
        ),
        (
            each("{% if 'content' not in m or not m.tool_calls %}" + PLAIN + "{% endif %}"),
            {"call_content": "absent", "call_text": "before"},
        ),
        (
            each("{% if m.tool_calls %}" + REASONING + CALLS + "{% else %}" + PLAIN + "{% endif %}"),
            {"call_text": "before"},
        ),
        (each(PLAIN.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")), {"several_calls": False}),
        (each(raises_if("m.tool_calls and m.tool_calls | length > 1") + PLAIN), {"several_calls": False}),
        (each(raises_if("m.tool_call_id and m.tool_call_id | length != 9") + PLAIN), {"call_ids": "short"}),
        (each(PLAIN.replace("{{ c.function.name }}:", "")), {"call_ids": "numbered"}),
        (each(raises_if("m.role == 'tool' and not m.name") + PLAIN), {"result_names": True}),
        # Reasoning.
        (each(PLAIN.replace("reasoning_content", "thinking")), {"reasoning": "thinking"}),
        (each(PLAIN.replace(REASONING, "")), {"reasoning": "none"}),
        (
            each(raises_if("m.tool_calls and m.content and m.reasoning_content") + PLAIN_FOR_CALLS),
            {"reasoning_with_text": False},
        ),
        # Tools.
        (each(PLAIN, tools=""), {"shows_tools": False}),
        (each(PLAIN, tools=TOOLS.replace("}}>", "}}:{{ t.function.description + '' }}>")), {"tool_form": "filled"}),
        (
            each(PLAIN, tools=TOOLS.replace("}}>", "}}:{{ (t.function.description | default('')) + '' }}>")),
            {"tool_form": "omitted"},
        ),
        (each(PLAIN, tools=TOOLS.replace("t.function", "t")), {"tool_form": "flat"}),
        (
            each(PLAIN, tools=TOOLS.replace("}}>", "}}:{{ t.function.parameters.description + '' }}>")),
            {"tool_form": "plain"},
        ),
        (each(PLAIN, tools=TOOLS.replace(" or []", "")), {"empty_tools": True}),
        (
            each(
                "{% if m.role != 'system' %}" + PLAIN + "{% endif %}", before=raises_if("messages[0].role != 'system'")
            )
            + "{{ messages[0].content }}",
            {"needs_system": True, "system": "first"},
        ),
    ],
)
def test_each_trait_is_found(source: str, expected: dict[str, Any]) -> None:
    found = {name: value for name, value in traits(source).as_json().items() if value != DEFAULTS[name]}
    assert found == expected


DEFAULTS = TemplateTraits().as_json()

SHOWN = "{% for p in m.content %}{{ p.text }}{% endfor %}"
FIRST = "{% if m.content %}{{ m.content[0].text }}{% endif %}"
FIRST_OR_TEXT = "{% if m.content is string %}{{ m.content }}{% else %}" + FIRST + "{% endif %}"


@pytest.mark.parametrize(
    ("system", "expected"),
    [(SHOWN, {}), (FIRST_OR_TEXT, {"text_roles": ["system"]}), (FIRST, {"one_part_roles": ["system"]})],
)
def test_roles_that_show_only_one_part_are_found(system: str, expected: dict[str, Any]) -> None:
    body = "{% if m.role == 'system' %}" + system + "{% elif m.role == 'tool' %}{{ m.content }}{% else %}" + SHOWN
    found = traits(each(REASONING + body + "{% endif %}" + CALLS)).as_json()
    assert found.pop("content") == "openai"
    assert {name: value for name, value in found.items() if value != DEFAULTS[name]} == expected


def test_reasoning_as_a_part_of_the_content_is_found() -> None:
    parts = (
        "{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text or p.thinking }}{% endfor %}{% endif %}"
    )
    assert traits(each(parts + CALLS)).reasoning == "parts"


def test_a_template_that_needs_reasoning_in_the_content_while_it_thinks_is_found() -> None:
    cut = "{% if thinking and m.role == 'assistant' and m.content %}{{ m.content.split('</think>', 1)[1] }}"
    source = each(cut + "{% else %}{{ m.content }}{% endif %}" + CALLS)
    assert traits(source).reasoning == "inline"


@pytest.mark.parametrize("source", ["{{ nothing.at.all }}", "{{ 'Hello' }}", "{{ raise_exception('no') }}"])
def test_a_template_that_shows_no_conversation_has_the_default_traits(source: str) -> None:
    assert traits(source) == TemplateTraits()


@pytest.mark.parametrize("name", RECORDED)
def test_the_collected_templates_lose_nothing_of_a_round(name: str) -> None:
    source = shared_path("data", "chat_templates", f"{name}.jinja").read_bytes().decode("utf-8")
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    call = {"id": "toolu_01", "type": "function", "function": {"name": "zap", "arguments": '{"q": "Zeta"}'}}
    messages = [
        {"role": "system", "content": "Alpha"},
        {"role": "user", "content": "Beta"},
        {"role": "assistant", "content": "Gamma", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "toolu_01", "content": "Delta"},
        {"role": "system", "content": "Epsilon"},
    ]
    prompt = template.render(template.fit(messages).messages, tools=template.fit_tools([]))
    assert [word for word in ("Alpha", "Beta", "Gamma", "zap", "Zeta", "Delta", "Epsilon") if word not in prompt] == []
