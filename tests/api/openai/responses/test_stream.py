"""Streamed and folded responses, and the law that both say the same."""

from __future__ import annotations

import json
from itertools import count
from typing import Any, TypeGuard

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._types import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponsesServerEvent, ResponseStreamEvent
from pydantic import TypeAdapter

from smg_trio.api.openai.responses.fold import ResponseFold
from smg_trio.api.openai.responses.object import ResponseAnswer
from smg_trio.api.openai.responses.request import parse_responses_request
from smg_trio.api.openai.responses.stream import ResponseEventWriter
from smg_trio.api.openai.responses.tools import DeclaredTool
from smg_trio.core.errors import EngineDead, InvalidRequest, Overloaded
from smg_trio.core.events import (
    ChoiceFinish,
    ChoiceUpdate,
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from smg_trio.core.outputs import FinishReason
from tests.api.openai.updates import chat_updates, named_events, strict_json

STOP = ChoiceFinish(FinishReason.STOP)
LENGTH = ChoiceFinish(FinishReason.LENGTH)
EVENTS: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
SOCKET_EVENTS: TypeAdapter[ResponsesServerEvent] = TypeAdapter(ResponsesServerEvent)
SHOWN = parse_responses_request(
    json.dumps(
        {
            "model": "m",
            "input": "hi",
            "tools": [{"type": "function", "name": "f", "parameters": {}}],
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
            "metadata": {"a": "b"},
            "reasoning": {"effort": "low"},
        }
    ).encode()
).shown


def answer(**changes: Any) -> ResponseAnswer:
    ids = count()
    facts: dict[str, Any] = {
        "response_id": "resp_1",
        "model": "m",
        "created_at": 7,
        "shown": SHOWN,
        "make_id": lambda prefix: f"{prefix}_{next(ids)}",
        "make_call_id": lambda: f"call_{next(ids)}",
    }
    return ResponseAnswer(**{**facts, **changes})


def events(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each checked against the official client's model, numbered without gaps."""
    found = named_events(stream, EVENTS)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def written(shape: ResponseAnswer, *updates: ChoiceUpdate, usage: Usage | None = None) -> list[dict[str, Any]]:
    writer = ResponseEventWriter(shape)
    chunks = [writer.head(), *map(writer.update, updates), writer.usage_chunk(usage or Usage(3, 4))]
    return events(b"".join(chunks))


def fold(shape: ResponseAnswer, *updates: ChoiceUpdate, usage: Usage | None = None) -> dict[str, Any]:
    folder = ResponseFold(shape)
    for update in updates:
        folder.feed(update)
    body = strict_json(folder.body(usage or Usage(3, 4)))
    Response.model_validate(body, strict=True)
    return body  # type: ignore[no-any-return]


def read(stream: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that a client holds who only adds up deltas; dones must agree with it."""
    output: list[dict[str, Any]] = []
    for event in stream:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(output)
            assert event["item"]["status"] == "in_progress"
            output.append(dict(event["item"]))
        elif kind == "content_part.added":
            assert output[-1]["content"] == []
            output[-1]["content"] = [dict(event["part"])]
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            part = output[event["output_index"]]["content"][event["content_index"]]
            part["text"] += event["delta"]
            if event.get("logprobs"):
                part["logprobs"] = (part["logprobs"] or []) + event["logprobs"]
        elif kind == "function_call_arguments.delta":
            output[-1]["arguments"] += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            part = output[-1]["content"][0]
            assert event["text"] == part["text"]
            if kind == "output_text.done":
                # The last tokens' log probabilities may come without text of their own.
                assert event["logprobs"][: len(part["logprobs"] or [])] == (part["logprobs"] or [])
                part["logprobs"] = event["logprobs"] or None
        elif kind == "custom_tool_call_input.delta":
            output[-1]["input"] += event["delta"]
        elif kind == "custom_tool_call_input.done":
            assert event["input"] == output[-1]["input"]
        elif kind == "function_call_arguments.done":
            assert (event["arguments"], event["name"]) == (output[-1]["arguments"], output[-1]["name"])
        elif kind == "content_part.done":
            assert event["part"] == output[-1]["content"][0]
        elif kind == "output_item.done":
            output[-1]["status"] = event["item"]["status"]
            assert event["item"] == output[-1]
    return output


DECLARED = st.builds(
    DeclaredTool, st.just("own"), st.sampled_from(["function", "custom"]), st.sampled_from([None, "spaced"])
)


def is_start(event: ParserEvent) -> TypeGuard[ToolCallStart]:
    return isinstance(event, ToolCallStart)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_stream_and_its_fold_say_the_same(data: st.DataObject) -> None:
    updates = data.draw(chat_updates(1, with_logprobs=data.draw(st.booleans()), whole_arguments=True))
    changes = {
        "parallel_tool_calls": data.draw(st.booleans()),
        "show_reasoning": data.draw(st.booleans()),
        "top_logprobs": data.draw(st.integers(-1, 2)),
        "declared_tools": {
            event.name: data.draw(DECLARED) for update in updates for event in update.events if is_start(event)
        },
    }
    usage = Usage(5, 4, data.draw(st.none() | st.integers(0, 5)), data.draw(st.none() | st.integers(0, 4)))
    stream = written(answer(**changes), *updates, usage=usage)
    body = fold(answer(**changes), *updates, usage=usage)
    assert [event["type"] for event in stream[:2]] == ["response.created", "response.in_progress"]
    assert stream[-1]["type"] == f"response.{body['status']}"
    assert stream[-1]["response"] == body
    assert read(stream) == body["output"]
    accumulate(stream)


def accumulate(stream: list[dict[str, Any]]) -> None:
    """The official client's own helper accepts the sequence."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in stream:
        state.handle_event(EVENTS.validate_python(event))


def test_calls_are_shown_as_the_client_declared_the_tools() -> None:
    declared = {"geo__locate": DeclaredTool("locate", "function", "geo"), "patch": DeclaredTool("patch", "custom")}
    pieces = ('{"in', 'put": "line ', "\\", '"one', '\\"\\', "nline two", '"}')
    updates = [
        ChoiceUpdate(0, [ToolCallStart(0, "geo__locate"), ToolCallArguments(0, '{"city": "Oslo"}')]),
        ChoiceUpdate(0, [ToolCallStart(1, "patch")]),
        *(ChoiceUpdate(0, [ToolCallArguments(1, piece)]) for piece in pieces),
        ChoiceUpdate(0, [], finish=STOP),
    ]
    stream = written(answer(declared_tools=declared), *updates)
    called, patched = stream[-1]["response"]["output"]
    assert (called["type"], called["namespace"], called["name"]) == ("function_call", "geo", "locate")
    text = 'line "one"\nline two'
    assert (patched["type"], patched["name"], patched["input"]) == ("custom_tool_call", "patch", text)
    assert "namespace" not in patched
    assert patched["id"].startswith("ctc_")
    assert [(event["type"], event["delta"]) for event in stream if "custom" in event["type"] and "delta" in event] == [
        ("response.custom_tool_call_input.delta", piece) for piece in ("line ", '"one', '"', "\nline two")
    ]
    assert fold(answer(declared_tools=declared), *updates)["output"] == [called, patched]


def test_an_answer_of_every_kind_has_the_official_sequence() -> None:
    stream = written(
        answer(),
        ChoiceUpdate(0, (ReasoningDelta("hm"),)),
        ChoiceUpdate(0, (ContentDelta("Hé"),)),
        ChoiceUpdate(0, (ContentDelta("llo"),)),
        ChoiceUpdate(0, (ToolCallStart(0, "f"), ToolCallArguments(0, '{"a":1}')), finish=STOP),
    )
    assert [event["type"].removeprefix("response.") for event in stream] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert stream[1]["response"]["status"] == "in_progress"
    assert stream[1]["response"]["metadata"] == {"a": "b"}
    assert stream[-1]["response"]["output"] == [
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
            "encrypted_content": None,
            "id": "rs_0",
            "status": "completed",
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "annotations": [], "logprobs": None, "text": "Héllo"}],
            "id": "msg_1",
            "status": "completed",
        },
        {
            "type": "function_call",
            "call_id": "call_2",
            "name": "f",
            "arguments": '{"a":1}',
            "id": "fc_3",
            "status": "completed",
        },
    ]
    assert stream[-1]["response"]["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }


def test_a_cut_answer_is_incomplete_and_so_is_its_last_item() -> None:
    update = ChoiceUpdate(0, (ReasoningDelta("a"), ContentDelta("b")), finish=LENGTH)
    body = fold(answer(), update)
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in body["output"]] == ["completed", "incomplete"]
    assert written(answer(), update)[-1]["type"] == "response.incomplete"


def test_a_call_that_a_stop_string_cut_is_incomplete() -> None:
    for arguments, status in (('{"a": 1', "incomplete"), ('{"a": 1}', "completed")):
        events = (ToolCallStart(0, "f", None), ToolCallArguments(0, arguments))
        update = ChoiceUpdate(0, events, finish=ChoiceFinish(FinishReason.STOP, "x"))
        body = fold(answer(), update)
        assert (body["status"], body["output"][0]["status"]) == ("completed", status)
        assert written(answer(), update)[-1]["response"]["output"][0]["status"] == status


def test_an_answer_the_engine_gave_up_has_failed() -> None:
    body = fold(answer(), ChoiceUpdate(0, finish=ChoiceFinish(FinishReason.ABORT)))
    assert body["status"] == "failed"
    assert body["error"]["code"] == "server_error"


@pytest.mark.parametrize(
    ("exc", "code"),
    [
        (EngineDead("the engine is gone"), "server_error"),
        (Overloaded("full"), "rate_limit_exceeded"),
        (InvalidRequest("bad"), "invalid_prompt"),
    ],
)
def test_a_failure_shows_what_there_was(exc: Exception, code: str) -> None:
    writer = ResponseEventWriter(answer())
    chunks = [writer.head(), writer.update(ChoiceUpdate(0, (ContentDelta("so"),))), writer.failed(exc, Usage(3, 1))]
    last = events(b"".join(chunks))[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": code, "message": str(exc)}
    assert last["response"]["output"][0]["content"][0]["text"] == "so"
    assert last["response"]["output"][0]["status"] == "incomplete"
    folder = ResponseFold(answer())
    folder.feed(ChoiceUpdate(0, (ContentDelta("so"),)))
    folder.fail(exc)
    folder.not_stored()  # as a response in the background is, and a failed stream is not
    assert folder.response(Usage(3, 1)) == last["response"] == writer.response(Usage(3, 1))


def test_an_error_without_a_response_is_an_event_too() -> None:
    (event,) = events(ResponseEventWriter(answer()).error(InvalidRequest("bad", param="input")))
    assert event == {
        "type": "error",
        "code": "invalid_value",
        "message": "bad",
        "param": "input",
        "sequence_number": 0,
    }


def test_a_background_response_is_queued_first() -> None:
    writer = ResponseEventWriter(answer())
    stream = events(writer.head(queued=True))
    assert [(event["type"].removeprefix("response."), event["response"]["status"]) for event in stream] == [
        ("created", "queued"),
        ("queued", "queued"),
        ("in_progress", "in_progress"),
    ]
    assert writer.sequence == 3


def test_over_a_socket_every_line_is_a_message_with_the_streams_id() -> None:
    writer = ResponseEventWriter(answer(), as_messages=True, stream_id="s")
    updates = [
        ChoiceUpdate(0, (ContentDelta("a\nb\u2028"),)),
        ChoiceUpdate(0, (ContentDelta("c"),)),
        ChoiceUpdate(0, finish=STOP),
    ]
    chunks = [writer.head(), *map(writer.update, updates), writer.usage_chunk(Usage(1, 2))]
    messages = [strict_json(line) for line in b"".join(chunks).splitlines()]
    for message in messages:
        SOCKET_EVENTS.validate_python(message, strict=True)
        assert message["stream_id"] == "s"
    assert messages[-1]["response"]["output"][0]["content"][0]["text"] == "a\nb\u2028c"


def test_logprobs_wait_for_their_text_and_thoughts_have_none() -> None:
    def entry(token: str) -> TokenLogprob:
        return TokenLogprob(1, token, token.encode(), -0.5)

    updates = (
        ChoiceUpdate(0, (ReasoningDelta("t"),), (1,), [entry("t")]),
        ChoiceUpdate(0, (ContentDelta("a"),), (1,), [entry("a")]),
        ChoiceUpdate(0, (), (1,), [entry("b")]),
        ChoiceUpdate(0, (ContentDelta("bc"),), (1,), [entry("c")]),
        ChoiceUpdate(0, (), (1,), [entry("</s>")], STOP),
    )
    stream = written(answer(), *updates)
    deltas = [event for event in stream if event["type"] == "response.output_text.delta"]
    assert [[shown["token"] for shown in event["logprobs"]] for event in deltas] == [["a"], ["b", "c"]]
    tokens = [shown["token"] for shown in fold(answer(), *updates)["output"][1]["content"][0]["logprobs"]]
    assert tokens == ["a", "b", "c", "</s>"]


def test_an_empty_answer_is_one_empty_message() -> None:
    (item,) = fold(answer(), ChoiceUpdate(0, finish=STOP))["output"]
    assert item["content"][0]["text"] == ""


def test_what_the_engine_hands_back_is_handed_on() -> None:
    update = ChoiceUpdate(0, (ContentDelta("a"),), finish=STOP, kv_transfer_params={"x": 1})
    assert fold(answer(), update)["kv_transfer_params"] == {"x": 1}


def test_surrogates_are_harmless_and_an_update_without_news_is_no_bytes() -> None:
    writer = ResponseEventWriter(answer())
    assert writer.update(ChoiceUpdate(0, (), (1,))) == b""
    assert b"a?" in writer.update(ChoiceUpdate(0, (ContentDelta("a\ud800"),)))
    assert b"b?" in writer.update(ChoiceUpdate(0, (ContentDelta("b\ud800"),)))
