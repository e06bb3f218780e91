"""Conversations in the form that a template's traits ask for."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import pytest

from smg_trio.core.errors import InvalidRequest, UnsupportedContent
from smg_trio.core.media import MediaPart, MediaSource
from smg_trio.text.conversation import Note, fit
from smg_trio.text.template_traits import TemplateTraits
from smg_trio.text.tool_forms import fit_tools

PARTS = [{"type": "text", "text": "A"}, {"type": "input_text", "text": "B"}, "C"]
STRING, OPENAI = TemplateTraits(), TemplateTraits(content="openai")


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def fitted(messages: list[dict[str, Any]], **traits: Any) -> list[tuple[str, Any]]:
    """Roles and contents."""
    return [(turn["role"], turn["content"]) for turn in fit(messages, TemplateTraits(**traits)).messages]


def one(message: dict[str, Any], traits: TemplateTraits = STRING) -> dict[str, Any]:
    (seen,) = fit([message], traits).messages
    return seen


class TestContent:
    """Text or parts."""

    @pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
    def test_string_templates_get_the_joined_text_of_parts_for_every_role(self, role: str) -> None:
        assert one({"role": role, "content": PARTS})["content"] == "A\nB\nC"

    def test_parts_templates_get_text_parts_except_for_tool_results(self) -> None:
        texts = [{"type": "text", "text": text} for text in "ABC"]
        assert one({"role": "user", "content": PARTS}, OPENAI)["content"] == texts
        assert one({"role": "user", "content": "A"}, OPENAI)["content"] == texts[:1]
        assert one({"role": "tool", "content": PARTS}, OPENAI)["content"] == "A\nB\nC"

    def test_roles_whose_parts_a_template_would_lose_get_text(self) -> None:
        traits = TemplateTraits(content="openai", text_roles=frozenset({"system"}))
        assert one({"role": "system", "content": PARTS}, traits)["content"] == "A\nB\nC"
        assert isinstance(one({"role": "user", "content": PARTS}, traits)["content"], list)

    @pytest.mark.parametrize(("traits", "nothing"), [(STRING, ""), (OPENAI, [])])
    @pytest.mark.parametrize("message", [{"role": "assistant"}, {"role": "assistant", "content": None}])
    def test_absent_content_is_empty(self, message: dict[str, Any], traits: TemplateTraits, nothing: Any) -> None:
        assert one(message, traits)["content"] == nothing

    def test_refusals_and_thinking_are_text_and_null_text_is_nothing(self) -> None:
        parts = [
            {"type": "refusal", "refusal": "no"},
            {"type": "text", "text": None},
            {"type": "thinking", "thinking": "t"},
        ]
        assert one({"role": "assistant", "content": parts})["content"] == "no\nt"

    def test_names_are_kept_and_the_input_is_not_changed(self) -> None:
        messages = [
            {"role": "user", "name": "eva", "content": PARTS},
            {"role": "tool", "tool_call_id": "7", "content": "ok"},
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
        ]
        before = copy.deepcopy(messages)
        seen = fit(messages, STRING).messages
        assert (seen[0]["name"], seen[1]["tool_call_id"]) == ("eva", "7")
        assert messages == before

    @pytest.mark.parametrize(
        ("part", "param"),
        [
            ({"type": "hologram"}, "messages[1].content[0]"),
            ({"type": "thinking", "thinking": 5}, "messages[1].content[0]"),
        ],
    )
    def test_what_cannot_be_shown_to_a_template_is_refused_by_place(self, part: Any, param: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            fit([user("ok"), {"role": "user", "content": [part]}], STRING)
        assert caught.value.param == param
        assert param in caught.value.message

    def test_media_are_refused_where_the_prompt_cannot_hold_them(self) -> None:
        picture = MediaPart(MediaSource("image", "data:,", "messages[0].content[0]"))
        with pytest.raises(UnsupportedContent) as caught:
            one({"role": "user", "content": [picture]})
        assert caught.value.param == "messages[0].content[0]"


class TestSystemMessages:
    """In place where a template takes them, else where it does."""

    talk: ClassVar = [system("S"), user("U"), assistant("A"), system("T"), user("V")]

    def test_they_stay_in_place_where_they_are_taken(self) -> None:
        assert fit(self.talk, STRING) == (self.talk, [])

    def test_they_are_folded_at_the_front_in_order_and_that_is_noted(self) -> None:
        found = fit(self.talk, TemplateTraits(system="first"))
        assert found.messages == [system("S\n\nT"), user("U"), assistant("A"), user("V")]
        assert found.notes == [Note.SYSTEM_FOLDED]

    def test_a_single_one_at_the_front_is_not_touched(self) -> None:
        assert fit(self.talk[:2], TemplateTraits(system="first")) == (self.talk[:2], [])

    def test_a_late_one_alone_goes_to_the_front(self) -> None:
        assert fitted([user("U"), system("S")], system="first") == [("system", "S"), ("user", "U")]

    def test_a_template_without_any_gets_them_in_the_first_user_turn(self) -> None:
        assert fitted(self.talk, system="first_user") == [("user", "S\n\nT\n\nU"), ("assistant", "A"), ("user", "V")]
        assert fitted([system("S")], system="first_user") == [("user", "S")]
        opened = [system("S"), assistant("A"), user("U")]
        assert fitted(opened, system="first_user") == [("user", "S"), ("assistant", "A"), ("user", "U")]

    def test_a_template_that_shows_it_only_in_a_last_user_turn_gets_it_there_in_all_others(self) -> None:
        assert fitted(self.talk, system="last_user")[0] == ("system", "S\n\nT")
        ended = [system("S"), user("U"), assistant("A"), user("V"), assistant("B")]
        assert fitted(ended, system="last_user")[2:] == [("user", "S\n\nV"), ("assistant", "B")]

    def test_parts_templates_get_the_folded_text_as_a_part(self) -> None:
        found = fitted([user("U"), system("S"), system("T")], content="openai", system="first")
        assert found[0] == ("system", [{"type": "text", "text": "S\n\nT"}])

    def test_developer_messages_are_system_messages_where_the_role_is_unknown(self) -> None:
        messages = [system("S"), user("U"), {"role": "developer", "content": "D", "tools": []}]
        assert fitted(messages) == [("system", "S\n\nD"), ("user", "U")]  # as vLLM's own server has it
        assert fitted(messages[2:] + messages[1:2]) == [("system", "D"), ("user", "U")]
        assert fitted(messages, system="first") == [("system", "S\n\nD"), ("user", "U")]
        assert [role for role, _ in fitted(messages, developer=True)] == ["system", "user", "developer"]
        assert fitted(messages[1:], system="first", developer=True) == [("developer", "D"), ("user", "U")]


class TestNeighbours:
    """Turns that a template does not let stand side by side."""

    def test_all_stand_side_by_side_where_they_may(self) -> None:
        messages = [assistant("A"), assistant("B"), user("U"), user("V")]
        assert fit(messages, STRING).messages == messages

    def test_turns_of_one_role_are_merged_only_where_they_have_to_be(self) -> None:
        messages = [user("U"), user("V"), assistant("A"), assistant(""), assistant("B")]
        assert fitted(messages, consecutive_users=False)[:2] == [("user", "U\n\nV"), ("assistant", "A")]
        assert fitted(messages, consecutive_assistants=False)[2:] == [("assistant", "A\n\nB")]

    def test_merged_turns_keep_their_reasoning(self) -> None:
        messages = [user("U"), assistant("A", reasoning="x"), assistant("B", reasoning="y")]
        (_, merged) = fit(messages, TemplateTraits(consecutive_assistants=False)).messages
        assert (merged["content"], merged["reasoning_content"]) == ("A\n\nB", "x\n\ny")

    def test_an_answer_at_the_start_gets_an_empty_user_turn_before_it(self) -> None:
        messages = [system("S"), assistant("A"), user("U")]
        opened = [("system", "S"), ("user", ""), ("assistant", "A"), ("user", "U")]
        assert fitted(messages, assistant_first=False) == opened
        assert fitted(messages, needs_user=True) == [("system", "S"), ("assistant", "A"), ("user", "U")]
        assert fitted(messages[:2], needs_user=True) == opened[:3]
        assert fitted(messages[:1], needs_user=True, empty_turn=" ") == [("system", "S"), ("user", " ")]

    def test_a_user_turn_behind_a_tool_result_gets_an_empty_answer_before_it(self) -> None:
        messages = [user("U"), {"role": "tool", "content": "R", "tool_call_id": "1"}, user("V")]
        found = fitted(messages, user_after_result=False)
        assert found == [("user", "U"), ("tool", "R"), ("assistant", ""), ("user", "V")]


class TestReasoning:
    """Under the name, or in the place, that the template reads."""

    @pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
    def test_it_is_offered_under_both_common_names(self, key: str) -> None:
        message = one(assistant("x", **{key: "why"}))
        assert (message["reasoning"], message["reasoning_content"]) == ("why", "why")

    def test_it_is_offered_as_the_template_wants_it(self) -> None:
        said = assistant("x", reasoning="why")
        assert one(said, TemplateTraits(reasoning="thinking")) == assistant("x", thinking="why")
        parts = [{"type": "thinking", "thinking": "why"}, {"type": "text", "text": "x"}]
        assert one(said, TemplateTraits(reasoning="parts"))["content"] == parts
        assert one(assistant("", reasoning="why"), TemplateTraits(reasoning="parts"))["content"] == parts[:1]

    def test_a_template_without_any_gets_none_and_that_is_noted(self) -> None:
        found = fit([user("U"), assistant("x", reasoning="why")], TemplateTraits(reasoning="none"))
        assert found == ([user("U"), assistant("x")], [Note.REASONING_DROPPED])


class TestTools:
    """Definitions of tools."""

    bare: ClassVar = [{"type": "function", "function": {"name": "f", "description": None, "parameters": None}}]

    def test_what_a_tool_leaves_out_is_null_absent_or_empty(self) -> None:
        def functions(nulls: Any) -> Any:
            return [tool["function"] for tool in fit_tools(self.bare, TemplateTraits(tool_form=nulls)) or ()]

        assert functions("kept") == [self.bare[0]["function"]]
        assert functions("omitted") == [{"name": "f"}]
        empty = {"type": "object", "properties": {}}
        assert functions("filled") == [{"name": "f", "description": "", "parameters": empty}]

    def test_no_tools_are_none_or_an_empty_list(self) -> None:
        assert fit_tools([], STRING) is None
        assert fit_tools([], TemplateTraits(empty_tools=True)) == []

    def test_tools_that_no_template_shows_are_noted(self) -> None:
        hidden = TemplateTraits(shows_tools=False)
        assert fit([user("U")], hidden, has_tools=True).notes == [Note.TOOLS_DROPPED]
        assert fit([user("U")], hidden).notes == []
