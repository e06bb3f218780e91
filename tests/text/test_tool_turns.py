"""Tool calls and results in the form that a template's traits ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.text.conversation import fit
from smg_trio.text.template_traits import TemplateTraits

USER = {"role": "user", "content": "U"}


def call(call_id: Any, name: str = "f", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(*calls: dict[str, Any], content: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def result(call_id: str, content: str = "R") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def turns(messages: list[dict[str, Any]], **traits: Any) -> list[dict[str, Any]]:
    return fit(messages, TemplateTraits(**traits), has_tools=True).messages


@pytest.mark.parametrize(
    ("arguments", "mapping", "text"),
    [
        ('{"a": 1}', {"a": 1}, '{"a": 1}'),
        ({"a": 1}, {"a": 1}, '{"a": 1}'),
        ("", {}, "{}"),
        (None, {}, "{}"),
        ("null", {}, "null"),
        ('{"a": ', '{"a": ', '{"a": '),
        ("[1]", "[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000, "[" * 100_000),
        ([1], "[1]", "[1]"),
    ],
)
def test_arguments_are_a_mapping_or_text_and_what_is_no_object_stays_as_it_was(
    arguments: Any, mapping: Any, text: str
) -> None:
    def seen(**traits: Any) -> Any:
        return turns([USER, said(call("1", "f", arguments))], **traits)[1]["tool_calls"][0]["function"]

    assert seen() == {"name": "f", "arguments": mapping}
    assert seen(arguments="text") == {"name": "f", "arguments": text}
    wrapped = {"arguments": mapping} if isinstance(mapping, str) else mapping
    assert seen(raw_arguments=False) == {"name": "f", "arguments": wrapped}


@pytest.mark.parametrize("calls", [[], None])
def test_no_tool_calls_are_absent_tool_calls(calls: Any) -> None:
    assert "tool_calls" not in turns([{"role": "assistant", "content": "x", "tool_calls": calls}])[0]


def test_a_call_without_a_type_is_a_function() -> None:
    bare = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    assert turns([USER, said(bare)])[1]["tool_calls"][0]["type"] == "function"


@pytest.mark.parametrize(("form", "content"), [("empty", ""), ("text", ""), ("null", None), ("absent", ...)])
def test_a_turn_of_calls_alone_has_the_content_that_the_template_wants(form: Any, content: Any) -> None:
    turn = turns([USER, said(call("1"))], call_content=form)[1]
    assert turn.get("content", ...) == content
    assert turns([USER, said(call("1"), content="T")], call_content=form)[1]["content"] == "T"


def test_results_stand_in_the_order_of_their_calls() -> None:
    messages = [USER, said(call("a"), call("b")), result("b", "B"), result("a", "A")]
    assert [turn["content"] for turn in turns(messages)[2:]] == ["A", "B"]


def test_results_without_ids_belong_to_the_calls_before_them_one_by_one() -> None:
    nameless = [{"role": "tool", "content": text} for text in "AB"]
    found = turns([USER, said(call("", "f"), call(None, "g")), *nameless], result_names=True)
    assert [(turn["content"], turn["name"]) for turn in found[2:]] == [("A", "f"), ("B", "g")]


def test_a_result_apart_from_its_call_is_moved_only_where_it_has_to_be() -> None:
    messages = [USER, said(call("a")), {"role": "user", "content": "V"}, result("a", "A")]
    assert [turn["role"] for turn in turns(messages)] == ["user", "assistant", "user", "tool"]
    moved = turns(messages, results_apart=False)
    assert [turn["role"] for turn in moved] == ["user", "assistant", "tool", "user"]


def test_ids_used_again_in_later_turns_mean_the_later_call() -> None:
    messages = [USER, said(call("0", "f")), result("0", "A"), said(call("0", "g")), result("0", "B")]
    found = turns(messages, result_names=True, results_apart=False)
    assert [turn.get("name") for turn in found] == [None, None, "f", None, "g"]


def test_each_call_has_a_turn_of_its_own_where_a_template_shows_only_one() -> None:
    messages = [USER, said(call("a", "f"), call("b", "g"), content="T", reasoning="why"), result("b"), result("a")]
    _, first, first_result, second, second_result = turns(messages, several_calls=False)
    assert [len(turn["tool_calls"]) for turn in (first, second)] == [1, 1]
    assert (first["content"], first["reasoning"], first_result["tool_call_id"]) == ("T", "why", "a")
    assert (second["content"], second.get("reasoning"), second_result["tool_call_id"]) == ("", None, "b")


def test_the_text_of_a_turn_with_calls_goes_before_them_where_it_would_be_lost() -> None:
    messages = [USER, said(call("a"), content="T"), result("a"), said(call("b"), content="V"), result("b")]
    before = turns(messages, call_text="before")
    assert [turn["content"] for turn in before] == ["U", "T", "", "R", "V", "", "R"]
    apart = turns(messages, call_text="apart")
    contents = [(turn["role"], turn["content"]) for turn in apart]
    assert contents[1:4] == [("assistant", "T"), ("user", ""), ("assistant", "")]
    assert contents[5:8] == [("assistant", "V"), ("user", "\t"), ("assistant", "")]


def test_text_joins_the_reasoning_where_a_template_takes_only_one_of_them() -> None:
    turn = turns([USER, said(call("a"), content="T", reasoning="why")], reasoning_with_text=False)[1]
    assert (turn["reasoning"], turn["content"]) == ("why\n\nT", "")
    alone = turns([USER, said(call("a"), content="T")], reasoning_with_text=False)[1]
    assert alone["content"] == "T"


def test_calls_and_results_are_written_out_for_templates_that_know_none() -> None:
    calls = said(call("a", "f", '{"x": "é"}'), call("b", "g"), content="T")
    messages = [USER, calls, result("a", "A"), result("b", "B")]
    texts = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>\n'
    texts += '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    found = turns(messages, calls="text", results="user", consecutive_users=False)
    assert found[1] == {"role": "assistant", "content": f"T\n{texts}"}
    results = [f"<tool_response>\n{text}\n</tool_response>" for text in "AB"]
    assert found[2:] == [{"role": "user", "content": "\n\n".join(results)}]


def test_a_request_without_tools_has_forms_of_its_own() -> None:
    traits = TemplateTraits(calls_without_tools="text", results_without_tools="user")
    messages = [USER, said(call("a", "f")), result("a", "A")]
    assert [turn["role"] for turn in fit(messages, traits, has_tools=True).messages] == ["user", "assistant", "tool"]
    without = fit(messages, traits).messages
    assert [turn["role"] for turn in without] == ["user", "assistant", "user"]
    assert '"name": "f"' in without[1]["content"]


class TestShortIds:
    """Nine letters and digits."""

    @given(st.text())
    def test_every_id_becomes_one_and_always_the_same(self, call_id: str) -> None:
        messages = [USER, said(call(call_id)), result(call_id)]
        _, asked, answered = turns(messages, call_ids="short")
        short = asked["tool_calls"][0]["id"]
        assert answered["tool_call_id"] == short
        assert len(short) == 9
        assert short.isascii()
        assert short.isalnum()
        assert turns(messages, call_ids="short")[1]["tool_calls"][0]["id"] == short

    @given(st.from_regex(r"\A[a-zA-Z0-9]{9}\Z"))
    def test_ids_of_that_form_stay(self, call_id: str) -> None:
        assert turns([USER, said(call(call_id))], call_ids="short")[1]["tool_calls"][0]["id"] == call_id

    def test_different_ids_stay_different(self) -> None:
        ids = {turns([USER, said(call(f"call_{n}"))], call_ids="short")[1]["tool_calls"][0]["id"] for n in range(1000)}
        assert len(ids) == 1000


def test_arguments_of_the_history_are_not_changed() -> None:
    message = said(call("a", "f", {"b": [1]}))
    before = json.dumps(message)
    turns([USER, message], call_ids="short", several_calls=False, arguments="text")
    assert json.dumps(message) == before


def test_hundreds_of_rounds_and_calls_cost_as_much_more_as_they_are() -> None:
    rounds = [turn for n in range(2_000) for turn in (said(call(f"{n}"), content="T"), result(f"{n}"))]
    separators = [turn["content"] for turn in turns([USER, *rounds], call_text="apart") if turn["role"] == "user"][1:]
    assert len(set(separators)) == 2_000
    assert max(map(len, separators)) < 12
    many = said(*(call(f"{n}") for n in range(2_000)))
    found = turns([USER, many, *(result(f"{n}") for n in reversed(range(2_000)))], several_calls=False)
    assert [turn["tool_call_id"] for turn in found if turn["role"] == "tool"] == [f"{n}" for n in range(2_000)]
