"""Streamed chat answers: the bytes of every kind of chunk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk

from smg_trio.api.chat_answer import ChatAnswer, make_tool_call_id
from smg_trio.api.openai.chat.stream import ChatChunkWriter
from smg_trio.core.events import (
    ChoiceFinish,
    ChoiceUpdate,
    ContentDelta,
    ReasoningDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from smg_trio.core.outputs import FinishReason
from tests.api.openai.updates import payloads, texts, token_logprobs

STOP = ChoiceFinish(FinishReason.STOP)


def answer(**changes: Any) -> ChatAnswer:
    facts: dict[str, Any] = {"response_id": "chatcmpl-1", "model": 'm"é', "created": 7}
    return ChatAnswer(**{**facts, **changes})


def chunks(stream: bytes) -> list[dict[str, Any]]:
    found = payloads(stream)
    for chunk in found:
        ChatCompletionChunk.model_validate(chunk, strict=True)
        assert chunk["id"] == "chatcmpl-1"
        assert chunk["object"] == "chat.completion.chunk"
        assert chunk["created"] == 7
        assert chunk["model"] == 'm"é'
    return found


def deltas(stream: bytes) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in chunks(stream)]


def token(text: str, raw: bytes | None = None, logprob: float = -0.5, **more: Any) -> TokenLogprob:
    return TokenLogprob(1, text, text.encode() if raw is None else raw, logprob, **more)


def test_a_choice_opens_with_its_role_and_empty_content() -> None:
    (head,) = chunks(ChatChunkWriter(answer(), n=3).head(2))
    assert head["choices"] == [
        {"index": 2, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]


def test_the_head_carries_the_prompt_if_asked_and_the_echoed_text() -> None:
    writer = ChatChunkWriter(
        answer(return_token_ids=True, prompt_token_ids=(1, 2), prompt_text="<s>hi", echo="hi", role="user")
    )
    head, echo = chunks(writer.head(0))
    assert head["prompt_token_ids"] == [1, 2]
    assert head["prompt_text"] == "<s>hi"
    assert head["choices"][0]["delta"]["role"] == "user"
    assert echo["choices"][0]["delta"] == {"content": "hi"}


@given(text=st.just("") | texts, entries=st.none() | st.lists(token_logprobs(), max_size=3), as_ids=st.booleans())
def test_text_and_its_log_probabilities_take_the_same_form_on_the_short_way(
    text: str, entries: list[TokenLogprob] | None, as_ids: bool
) -> None:
    writer = ChatChunkWriter(answer(top_logprobs=2, tokens_as_ids=as_ids))
    events = (ContentDelta(text),) if text else ()
    assert writer.text(text, entries) == writer.update(ChoiceUpdate(0, events, (1,), entries or None))


def test_adjacent_content_of_one_update_is_one_chunk() -> None:
    update = ChoiceUpdate(0, (ContentDelta("a"), ContentDelta("b"), ContentDelta('"\n😀')))
    assert deltas(ChatChunkWriter(answer()).update(update)) == [{"content": 'ab"\n😀'}]


def test_a_single_text_takes_the_same_form_as_the_long_way() -> None:
    plain = ChoiceUpdate(0, (ContentDelta("hé"),), (1,))
    doubled = ChoiceUpdate(0, (ContentDelta("h"), ContentDelta("é")), (1,))
    assert ChatChunkWriter(answer()).update(plain) == ChatChunkWriter(answer()).update(doubled)
    thought = ChoiceUpdate(0, (ReasoningDelta("hé"),), (1,))
    doubled = ChoiceUpdate(0, (ReasoningDelta("h"), ReasoningDelta("é")), (1,))
    assert ChatChunkWriter(answer()).update(thought) == ChatChunkWriter(answer()).update(doubled)


def test_reasoning_has_both_of_its_names_and_its_own_delta() -> None:
    update = ChoiceUpdate(0, (ReasoningDelta("hm"), ContentDelta("yes"), ReasoningDelta("?")))
    assert deltas(ChatChunkWriter(answer()).update(update)) == [
        {"reasoning": "hm", "reasoning_content": "hm"},
        {"content": "yes"},
        {"reasoning": "?", "reasoning_content": "?"},
    ]


def test_a_tool_call_is_named_once_and_then_only_continued() -> None:
    writer = ChatChunkWriter(answer(make_call_id=lambda: "call_x"))
    first = writer.update(ChoiceUpdate(0, (ToolCallStart(0, "f"), ToolCallArguments(0, '{"a'))))
    second = writer.update(ChoiceUpdate(0, (ToolCallArguments(0, '":'), ToolCallArguments(0, "1}"))))
    third = writer.update(ChoiceUpdate(0, (ToolCallStart(1, "g", "own"), ToolCallArguments(1, "{}")), finish=STOP))
    assert deltas(first + second) == [
        {"tool_calls": [{"index": 0, "id": "call_x", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '":1}'}}]},
    ]
    start, piece, end = chunks(third)
    assert start["choices"][0]["delta"]["tool_calls"][0]["id"] == "own"
    assert piece["choices"][0]["finish_reason"] is None
    assert end["choices"][0]["delta"] == {}
    assert end["choices"][0]["finish_reason"] == "tool_calls"


def test_made_ids_look_like_openais_and_differ() -> None:
    made = {make_tool_call_id() for _ in range(50)}
    assert len(made) == 50
    assert all(len(word) == 29 and word.startswith("call_") for word in made)


@pytest.mark.parametrize(
    ("reason", "called", "named", "word"),
    [
        (FinishReason.STOP, False, False, "stop"),
        (FinishReason.STOP, True, False, "tool_calls"),
        (FinishReason.STOP, True, True, "stop"),
        (FinishReason.LENGTH, True, False, "length"),
        (FinishReason.LENGTH, False, False, "length"),
        (FinishReason.REPETITION, True, False, "stop"),
    ],
)
def test_the_finish_reason(reason: FinishReason, called: bool, named: bool, word: str) -> None:
    events = (ToolCallStart(0, "f"),) if called else ()
    writer = ChatChunkWriter(answer(named_tool=named))
    last = chunks(writer.update(ChoiceUpdate(0, events, finish=ChoiceFinish(reason))))[-1]
    assert last["choices"][0]["finish_reason"] == word
    assert last["choices"][0]["stop_reason"] is None


def test_an_abort_says_so() -> None:
    stream = ChatChunkWriter(answer()).update(ChoiceUpdate(0, finish=ChoiceFinish(FinishReason.ABORT)))
    assert payloads(stream)[0]["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize("stop", ["</s>", 42, "\ud800"])
def test_the_matched_stop_is_reported_under_both_names(stop: int | str) -> None:
    stream = ChatChunkWriter(answer()).update(ChoiceUpdate(0, finish=ChoiceFinish(FinishReason.STOP, stop)))
    choice = payloads(stream)[0]["choices"][0]
    assert choice["stop_reason"] == choice["matched_stop"] == ("?" if stop == "\ud800" else stop)


def test_logprobs_ride_on_the_first_chunk_and_are_never_lost() -> None:
    writer = ChatChunkWriter(answer(top_logprobs=1))
    rivals = (replace(token("a", logprob=-0.1), token_id=2), replace(token("b"), token_id=3))
    emoji = "😀".encode()
    held = ChoiceUpdate(0, (), (1,), [token("\ufffd", emoji[:2], float("-inf"), top=rivals)])
    shown = ChoiceUpdate(0, (ReasoningDelta("r"), ContentDelta("😀")), (2,), [token("\ufffd", emoji[2:])])
    ended = ChoiceUpdate(0, (), (3,), [token("</s>")], STOP)
    nothing = ChoiceUpdate(0, (), (), [])
    first, second, third, last = chunks(b"".join(map(writer.update, (held, shown, ended, nothing))))
    assert first["choices"][0]["delta"] == {}
    assert first["choices"][0]["logprobs"]["content"] == [
        {
            "token": "\ufffd",
            "logprob": -9999.0,
            "bytes": list(emoji[:2]),
            # vLLM's order: the token itself comes first, and counts.
            "top_logprobs": [{"token": "\ufffd", "logprob": -9999.0, "bytes": list(emoji[:2])}],
        }
    ]
    assert second["choices"][0]["logprobs"]["content"][0]["bytes"] == list(emoji[2:])
    assert third["choices"][0]["logprobs"] is None
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["choices"][0]["logprobs"]["content"][0]["token"] == "</s>"


def test_tokens_can_be_shown_as_ids_and_all_candidates_at_once() -> None:
    writer = ChatChunkWriter(answer(top_logprobs=-1, tokens_as_ids=True))
    update = ChoiceUpdate(
        0, (ContentDelta("a"),), (1,), [token("a", top=(replace(token("b"), token_id=2), token("a")))]
    )
    entry = chunks(writer.update(update))[0]["choices"][0]["logprobs"]["content"][0]
    assert entry["token"] == "token_id:1"
    assert [candidate["token"] for candidate in entry["top_logprobs"]] == ["token_id:1", "token_id:2"]


def test_token_ids_are_shown_if_asked() -> None:
    writer = ChatChunkWriter(answer(return_token_ids=True))
    stream = writer.update(ChoiceUpdate(0, (ContentDelta("a"),), (1, 2))) + writer.update(ChoiceUpdate(0, (), (3,)))
    assert [chunk["choices"][0]["token_ids"] for chunk in chunks(stream)] == [[1, 2], [3]]


def test_hidden_reasoning_takes_ids_and_logprobs_with_it() -> None:
    writer = ChatChunkWriter(answer(show_reasoning=False, return_token_ids=True))
    hidden = ChoiceUpdate(0, (ReasoningDelta("secret"),), (1,), [token("secret")])
    assert writer.update(hidden) == b""
    (shown,) = chunks(writer.update(ChoiceUpdate(0, (ContentDelta("a"),), (2,), [token("a")])))
    assert shown["choices"][0] == {
        "index": 0,
        "delta": {"content": "a"},
        "logprobs": None,
        "finish_reason": None,
    }


def test_only_the_first_call_is_shown_where_parallel_calls_are_off() -> None:
    writer = ChatChunkWriter(answer(parallel_tool_calls=False))
    events = (ToolCallStart(0, "f"), ToolCallStart(1, "g"), ToolCallArguments(1, "{}"))
    assert [delta["tool_calls"][0]["index"] for delta in deltas(writer.update(ChoiceUpdate(0, events)))] == [0]


def test_an_update_without_news_is_no_bytes() -> None:
    assert ChatChunkWriter(answer()).update(ChoiceUpdate(0, (), (1,))) == b""


def test_usage_rides_on_every_chunk_only_if_given() -> None:
    writer = ChatChunkWriter(answer())
    stream = writer.head(0, Usage(3, 0)) + writer.update(
        ChoiceUpdate(0, (ContentDelta("a"),), finish=STOP), Usage(3, 1)
    )
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks(stream)] == [0, 1, 1]
    assert "usage" not in chunks(writer.head(0))[0]


def test_the_usage_chunk_has_no_choices() -> None:
    (chunk,) = chunks(ChatChunkWriter(answer()).usage_chunk(Usage(3, 4, 2, 1)))
    assert chunk["choices"] == []
    assert chunk["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 7,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    (bare,) = chunks(ChatChunkWriter(answer(system_fingerprint="fp")).usage_chunk(Usage(3, 4)))
    assert set(bare["usage"]) == {"prompt_tokens", "total_tokens", "completion_tokens"}
    assert bare["system_fingerprint"] == "fp"


def test_a_lone_surrogate_does_not_end_the_stream() -> None:
    writer = ChatChunkWriter(answer())
    assert deltas(writer.update(ChoiceUpdate(0, (ContentDelta("a\ud800"),)))) == [{"content": "a?"}]
    assert deltas(writer.update(ChoiceUpdate(0, (ReasoningDelta("a\ud800"), ContentDelta("b")))))


def test_choices_have_their_own_state() -> None:
    writer = ChatChunkWriter(answer(), n=2)
    writer.update(ChoiceUpdate(0, (ToolCallStart(0, "f"),)))
    ends = [chunks(writer.update(ChoiceUpdate(i, finish=STOP)))[0]["choices"][0] for i in (0, 1)]
    assert [end["finish_reason"] for end in ends] == ["tool_calls", "stop"]
    assert [end["index"] for end in ends] == [0, 1]
