"""Streamed and folded Messages answers, and the law that both say the same."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from smg_trio.api.anthropic.answer import MessageAnswer, make_tool_use_id
from smg_trio.api.anthropic.fold import MessageFold
from smg_trio.api.anthropic.stream import PING, MessageEventWriter
from smg_trio.core.errors import EngineDead
from smg_trio.core.events import (
    ChoiceFinish,
    ChoiceUpdate,
    ContentDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from smg_trio.core.outputs import FinishReason
from tests.api.openai.updates import chat_updates, named_events, strict_json

STOP = ChoiceFinish(FinishReason.STOP)
EVENTS: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def answer(**changes: Any) -> MessageAnswer:
    ids = count()
    facts: dict[str, Any] = {"message_id": "msg_1", "model": "m", "make_call_id": lambda: f"toolu_{next(ids)}"}
    return MessageAnswer(**{**facts, **changes})


def fold(shape: MessageAnswer, *updates: ChoiceUpdate, usage: Usage | None = None) -> dict[str, Any]:
    folder = MessageFold(shape)
    for update in updates:
        folder.feed(update)
    body = strict_json(folder.body(usage or Usage(3, 4)))
    Message.model_validate(body, strict=True)
    return body  # type: ignore[no-any-return]


def written(shape: MessageAnswer, *updates: ChoiceUpdate, usage: Usage | None = None) -> list[dict[str, Any]]:
    writer = MessageEventWriter(shape)
    chunks = [writer.head(Usage(3, 0)), *map(writer.update, updates), writer.usage_chunk(usage or Usage(3, 4))]
    return named_events(b"".join(chunks), EVENTS)


def accumulated(stream: list[dict[str, Any]]) -> Any:
    """What the official client holds at the end of a stream."""
    snapshot, buffers = None, {}
    for event in stream:
        snapshot = accumulate_event(event=EVENTS.validate_python(event), current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    return json.loads(snapshot.to_json())


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_stream_and_its_fold_say_the_same_to_the_official_client(data: st.DataObject) -> None:
    updates = data.draw(chat_updates(1, with_logprobs=False, whole_arguments=True))
    changes = {"parallel_tool_calls": data.draw(st.booleans()), "show_thinking": data.draw(st.booleans())}
    usage = Usage(5, 4, data.draw(st.none() | st.integers(0, 5)), data.draw(st.none() | st.integers(0, 4)))
    stream = written(answer(**changes), *updates, usage=usage)
    check_order(stream)
    assert accumulated(stream) == fold(answer(**changes), *updates, usage=usage)


def check_order(stream: list[dict[str, Any]]) -> None:
    """One block at a time, indices without gaps, nothing after the end."""
    kinds = [event["type"] for event in stream]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    open_block, next_index = None, 0
    for event in stream[1:-2]:
        if event["type"] == "content_block_start":
            assert open_block is None
            assert event["index"] == next_index
            open_block, next_index = next_index, next_index + 1
        else:
            assert event["index"] == open_block
            if event["type"] == "content_block_stop":
                open_block = None
    assert open_block is None
    assert next_index > 0


def test_an_answer_of_every_kind_has_anthropics_events() -> None:
    updates = (
        ChoiceUpdate(0, (ReasoningDelta("h"), ReasoningDelta("m"))),
        ChoiceUpdate(0, (ContentDelta("Hé"),)),
        ChoiceUpdate(0, (ContentDelta("llo"),)),
        ChoiceUpdate(
            0, (ToolCallStart(0, "f"), ToolCallArguments(0, '{"a":'), ToolCallArguments(0, "1}")), finish=STOP
        ),
    )
    assert written(answer(), *updates, usage=Usage(3, 4, 2, 1)) == [
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "stop_details": None,
                "usage": {
                    "input_tokens": 3,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 0,
                    "output_tokens": 0,
                },
            },
        },
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "msg_1.0"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hé"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "llo"}},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": "toolu_0", "name": "f", "input": {}},
        },
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"a":1}'}},
        {"type": "content_block_stop", "index": 2},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": None},
            "usage": {
                "input_tokens": 1,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 2,
                "output_tokens": 4,
                "output_tokens_details": {"thinking_tokens": 1},
            },
        },
        {"type": "message_stop"},
    ]


def test_a_folded_answer_has_blocks_in_order() -> None:
    body = fold(
        answer(),
        ChoiceUpdate(0, (ReasoningDelta("hm"), ContentDelta("a"), ToolCallStart(0, "f", "own"))),
        ChoiceUpdate(0, (ToolCallStart(1, "g"), ToolCallArguments(1, '{"b":[1]}'), ContentDelta("z")), finish=STOP),
    )
    assert body["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "msg_1.0"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "own", "name": "f", "input": {}},
        {"type": "tool_use", "id": "toolu_0", "name": "g", "input": {"b": [1]}},
        {"type": "text", "text": "z"},
    ]
    assert body["stop_reason"] == "tool_use"


def test_text_inside_an_unfinished_call_waits_for_its_end() -> None:
    updates = (
        ChoiceUpdate(0, (ToolCallStart(0, "f"), ToolCallArguments(0, '{"a":'), ContentDelta("x"))),
        ChoiceUpdate(0, (ToolCallArguments(0, "1}"), ContentDelta("y")), finish=STOP),
    )
    assert [block.get("input", block.get("text")) for block in fold(answer(), *updates)["content"]] == [{"a": 1}, "xy"]


@pytest.mark.parametrize(
    ("finish", "arguments", "reason", "sequence"),
    [
        (STOP, None, "end_turn", None),
        (STOP, "{}", "tool_use", None),
        (STOP, '{"a', "tool_use", None),
        (ChoiceFinish(FinishReason.STOP, 7), None, "end_turn", None),
        (ChoiceFinish(FinishReason.STOP, "END"), None, "stop_sequence", "END"),
        (ChoiceFinish(FinishReason.STOP, "END"), "{}", "tool_use", None),
        (ChoiceFinish(FinishReason.STOP, "END"), '{"a', "stop_sequence", "END"),
        (ChoiceFinish(FinishReason.LENGTH), "{}", "max_tokens", None),
        (ChoiceFinish(FinishReason.REPETITION, "repetition_detected"), None, "end_turn", None),
        (ChoiceFinish(FinishReason.ABORT), None, None, None),
    ],
)
def test_the_stop_reason(finish: ChoiceFinish, arguments: str | None, reason: str | None, sequence: str | None) -> None:
    shown = () if arguments is None else (ToolCallStart(0, "f"), ToolCallArguments(0, arguments))
    update = ChoiceUpdate(0, (ContentDelta("x"), *shown), finish=finish)
    body = fold(answer(), update)
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)
    end = {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None}
    assert written(answer(), update)[-2]["delta"] == end


def test_an_empty_answer_is_one_empty_text_block() -> None:
    update = ChoiceUpdate(0, finish=STOP)
    assert fold(answer(), update)["content"] == [{"type": "text", "text": ""}]
    kinds = [event["type"] for event in written(answer(), update)]
    assert kinds[1:3] == ["content_block_start", "content_block_stop"]


def test_hidden_thoughts_leave_their_signed_block() -> None:
    update = ChoiceUpdate(0, (ReasoningDelta("secret"), ContentDelta("a")), finish=STOP)
    assert fold(answer(show_thinking=False), update)["content"][0] == {
        "type": "thinking",
        "thinking": "",
        "signature": "msg_1.0",
    }
    assert "secret" not in json.dumps(written(answer(show_thinking=False), update))


def test_a_cut_call_shows_what_is_certain() -> None:
    update = ChoiceUpdate(
        0, (ToolCallStart(0, "f"), ToolCallArguments(0, '{"a":1,"b":"x')), finish=ChoiceFinish(FinishReason.LENGTH)
    )
    assert fold(answer(), update)["content"][0]["input"] == {"a": 1}


def test_what_the_engine_hands_back_is_handed_on() -> None:
    update = ChoiceUpdate(0, (ContentDelta("a"),), finish=STOP, kv_transfer_params={"x": 1})
    assert fold(answer(), update)["kv_transfer_params"] == {"x": 1}
    assert written(answer(), update)[-2]["kv_transfer_params"] == {"x": 1}


def test_surrogates_are_harmless_and_an_update_without_news_is_no_bytes() -> None:
    writer = MessageEventWriter(answer())
    assert writer.update(ChoiceUpdate(0, (), (1,))) == b""
    assert b"a?" in writer.update(ChoiceUpdate(0, (ContentDelta("a\ud800"),)))
    assert b"b?" in writer.update(ChoiceUpdate(0, (ContentDelta("b\ud800"),)))


def test_pings_and_failures_are_events_of_their_own() -> None:
    assert PING == b'event: ping\ndata: {"type":"ping"}\n\n'
    failure = MessageEventWriter(answer()).failed(EngineDead("the engine is gone"))
    name, data = failure.decode().strip().split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"] == {
        "type": "overloaded_error",
        "message": "the engine is gone",
    }


def test_made_ids_look_like_anthropics() -> None:
    assert make_tool_use_id() != make_tool_use_id()
    assert make_tool_use_id().startswith("toolu_")
