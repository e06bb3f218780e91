"""Laws of fitting: whatever a template's traits are, nothing that was said is lost, and the request is left alone."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from smg_trio.text.conversation import fit
from smg_trio.text.template_traits import TemplateTraits

booleans = st.booleans()
roles = st.frozensets(st.sampled_from(["user", "system", "assistant"]))
traits_of_all_kinds = st.builds(
    TemplateTraits,
    content=st.sampled_from(["string", "openai"]),
    text_roles=roles,
    one_part_roles=roles,
    system=st.sampled_from(["anywhere", "first", "last_user", "first_user"]),
    needs_system=booleans,
    developer=booleans,
    consecutive_users=booleans,
    consecutive_assistants=booleans,
    assistant_first=booleans,
    needs_user=booleans,
    user_after_result=booleans,
    empty_turn=st.sampled_from(["", " "]),
    calls=st.sampled_from(["own", "text"]),
    results=st.sampled_from(["own", "user"]),
    calls_without_tools=st.sampled_from(["own", "text"]),
    results_without_tools=st.sampled_from(["own", "user"]),
    arguments=st.sampled_from(["mapping", "text"]),
    raw_arguments=booleans,
    call_content=st.sampled_from(["empty", "text", "null", "absent"]),
    call_text=st.sampled_from(["together", "before", "apart"]),
    several_calls=booleans,
    call_ids=st.sampled_from(["any", "short", "numbered"]),
    result_names=booleans,
    results_apart=booleans,
    reasoning=st.sampled_from(["reasoning_content", "thinking", "parts", "inline", "none"]),
    reasoning_with_text=booleans,
)

IDS = ["", "a", "b", "call_1", "functions.f:0", "123456789", "é"]


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages in any order, each text of them another one."""
    count = 0

    def text() -> str:
        nonlocal count
        count += 1
        return f"<{count}>"

    def content() -> Any:
        parts = draw(st.integers(0, 3))
        if parts < 2:
            return draw(st.sampled_from([None, ""])) if parts == 0 else text()
        return [{"type": "text", "text": text()} for _ in range(parts)]

    def call() -> dict[str, Any]:
        arguments = draw(st.sampled_from(["{}", '{"x": "%s"}', '{"x": "%s', '["%s"]', ""]))
        if "%s" in arguments:
            arguments = arguments % text()
        function = {"name": text(), "arguments": arguments}
        return {"id": draw(st.sampled_from([None, *IDS])), "type": "function", "function": function}

    def message() -> dict[str, Any]:
        role = draw(st.sampled_from(["system", "developer", "user", "assistant", "tool", "observation"]))
        made: dict[str, Any] = {"role": role, "content": content()}
        if role == "assistant":
            if calls := draw(st.integers(0, 2)):
                made["tool_calls"] = [call() for _ in range(calls)]
            if draw(booleans):
                made["reasoning"] = text()
        elif role == "tool" and draw(booleans):
            made["tool_call_id"] = draw(st.sampled_from(IDS))
        return made

    return [message() for _ in range(draw(st.integers(1, 8)))]


def said(value: Any, key: str = "") -> list[str]:
    """The marks in all texts of a message, but for its reasoning."""
    if isinstance(value, dict):
        return [mark for name, inner in value.items() if name != "reasoning" for mark in said(inner, name)]
    if isinstance(value, list):
        return [mark for inner in value for mark in said(inner)]
    return [f"<{part.split('>')[0]}>" for part in str(value).split("<")[1:]]


@given(conversations(), traits_of_all_kinds, booleans, booleans)
def test_nothing_is_lost_and_the_request_is_left_alone(
    messages: list[dict[str, Any]], traits: TemplateTraits, has_tools: bool, thinking: bool
) -> None:
    before = copy.deepcopy(messages)
    found = fit(messages, traits, has_tools=has_tools, thinking=thinking).messages
    assert messages == before
    shown = json.dumps(found, ensure_ascii=False)
    assert [mark for message in messages for mark in said(message) if mark not in shown] == []


@given(conversations(), traits_of_all_kinds)
def test_what_is_said_by_others_than_the_system_keeps_its_order(
    messages: list[dict[str, Any]], traits: TemplateTraits
) -> None:
    spoken = [message for message in messages if message["role"] in ("user", "assistant")]
    found = json.dumps(fit(messages, traits, has_tools=True).messages, ensure_ascii=False)
    places = [found.index(mark) for message in spoken for mark in said(message["content"])]
    assert places == sorted(places)


@given(conversations(), traits_of_all_kinds)
def test_a_conversation_is_always_fitted_alike(messages: list[dict[str, Any]], traits: TemplateTraits) -> None:
    assert fit(messages, traits, has_tools=True) == fit(copy.deepcopy(messages), traits, has_tools=True)


@given(conversations())
def test_the_default_traits_keep_every_turn_in_its_place(messages: list[dict[str, Any]]) -> None:
    turns = [message for message in messages if message["role"] not in ("developer", "tool")]
    found = fit(turns, TemplateTraits()).messages
    assert [turn["role"] for turn in found] == [turn["role"] for turn in turns]
