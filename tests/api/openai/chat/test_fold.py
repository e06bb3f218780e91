"""Folded chat answers, and the law that a stream says the same."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from smg_trio.api.chat_answer import ChatAnswer
from smg_trio.api.openai.chat.fold import ChatFold
from smg_trio.api.openai.chat.stream import ChatChunkWriter
from smg_trio.api.sse import DONE
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
from tests.api.openai.updates import chat_updates, payloads, strict_json

STOP = ChoiceFinish(FinishReason.STOP)


def answer(**changes: Any) -> ChatAnswer:
    # A fresh counter: both forms make the same ids in the same order.
    ids = count()
    facts: dict[str, Any] = {"response_id": "chatcmpl-1", "model": "m", "created": 7}
    return ChatAnswer(**{**facts, "make_call_id": lambda: f"call_{next(ids)}", **changes})


def fold(shape: ChatAnswer, *updates: ChoiceUpdate, n: int = 1, usage: Usage | None = None) -> dict[str, Any]:
    folder = ChatFold(shape, n=n)
    for update in updates:
        folder.feed(update)
    body = strict_json(folder.body(usage or Usage(3, 4)))
    ChatCompletion.model_validate(body, strict=True)
    return body  # type: ignore[no-any-return]


def read_stream(chunks: Iterable[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """What a client that adds up deltas holds in the end."""
    seen: list[dict[str, Any]] = [
        {"content": "", "reasoning": "", "calls": {}, "logprobs": None, "token_ids": [], "ends": []} for _ in range(n)
    ]
    for chunk in chunks:
        for choice in chunk["choices"]:
            state, delta = seen[choice["index"]], choice["delta"]
            assert not state["ends"], "a chunk after the finish"
            state["content"] += delta.get("content", "")
            state["reasoning"] += delta.get("reasoning", "")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    state["calls"][call["index"]] = [call["id"], call["function"]["name"], ""]
                state["calls"][call["index"]][2] += call["function"]["arguments"]
            if choice["logprobs"] is not None:
                state["logprobs"] = (state["logprobs"] or []) + choice["logprobs"]["content"]
            state["token_ids"] += choice.get("token_ids", [])
            if choice["finish_reason"] is not None:
                state["ends"].append((choice["finish_reason"], choice["stop_reason"]))
    return seen


def read_body(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The same of a whole body."""
    seen = []
    for choice in body["choices"]:
        message, logprobs = choice["message"], choice["logprobs"]
        calls = [
            [call["id"], call["function"]["name"], call["function"]["arguments"]]
            for call in message.get("tool_calls", ())
        ]
        seen.append(
            {
                "content": message["content"] or "",
                "reasoning": message["reasoning"] or "",
                "calls": dict(enumerate(calls)),
                "logprobs": None if logprobs is None else logprobs["content"],
                "token_ids": choice["token_ids"] or [],
                "ends": [(choice["finish_reason"], choice["stop_reason"])],
            }
        )
    return seen


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_stream_and_its_fold_say_the_same(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 3))
    with_logprobs = data.draw(st.booleans())
    updates = data.draw(chat_updates(n, with_logprobs=with_logprobs))
    changes = {
        "named_tool": data.draw(st.booleans()),
        "parallel_tool_calls": data.draw(st.booleans()),
        "show_reasoning": data.draw(st.booleans()),
        "return_token_ids": data.draw(st.booleans()),
        "top_logprobs": data.draw(st.integers(-1, 2)),
        "echo": data.draw(st.sampled_from(["", "so: "])),
    }
    writer = ChatChunkWriter(answer(**changes), n=n)
    stream = b"".join([*map(writer.head, range(n)), *map(writer.update, updates), writer.usage_chunk(Usage(1, 2))])
    chunks = payloads(stream + DONE)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    streamed = read_stream(chunks, n)
    folded = read_body(fold(answer(**changes), *updates, n=n))
    for one, other in zip(streamed, folded, strict=True):
        # A stream of no tokens at all has no chunk to carry an empty list of logprobs.
        one["logprobs"] = one["logprobs"] or None
        other["logprobs"] = other["logprobs"] or None
    assert streamed == folded


def test_a_plain_answer_has_vllms_shape() -> None:
    body = fold(answer(), ChoiceUpdate(0, (ContentDelta("hi"),), (1,)), ChoiceUpdate(0, finish=STOP))
    assert body == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "hi",
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                    "reasoning_content": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4},
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "kv_transfer_params": None,
    }


def test_content_is_null_only_where_something_else_was_said() -> None:
    def content(*events: Any) -> object:
        return fold(answer(), ChoiceUpdate(0, events, finish=STOP))["choices"][0]["message"]["content"]

    assert content() == ""
    assert content(ReasoningDelta("x")) is None
    assert content(ToolCallStart(0, "f")) is None
    assert content(ToolCallStart(0, "f"), ContentDelta("x")) == "x"


def test_calls_are_whole_and_in_order() -> None:
    body = fold(
        answer(),
        ChoiceUpdate(0, (ToolCallStart(0, "f"), ToolCallArguments(0, '{"a":'), ToolCallArguments(0, "1}"))),
        ChoiceUpdate(0, (ToolCallStart(1, "g", "own"),), finish=STOP),
    )
    assert body["choices"][0]["message"]["tool_calls"] == [
        {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "own", "type": "function", "function": {"name": "g", "arguments": ""}},
    ]
    assert body["choices"][0]["finish_reason"] == "tool_calls"


def test_a_cut_call_ends_in_length() -> None:
    update = ChoiceUpdate(
        0, (ToolCallStart(0, "f"), ToolCallArguments(0, '{"a')), finish=ChoiceFinish(FinishReason.LENGTH)
    )
    assert fold(answer(), update)["choices"][0]["finish_reason"] == "length"


def test_the_prompts_side_of_the_answer() -> None:
    rival = TokenLogprob(8, "h", b"h", float("-inf"), 5)
    entry = TokenLogprob(7, "hi", b"hi", -1.5, 3, (rival, TokenLogprob(7, "hi", b"hi", -1.5, 3)))
    first = ChoiceUpdate(0, prompt_logprobs=[None, entry])
    last = ChoiceUpdate(0, finish=STOP, kv_transfer_params={"remote": "x"})
    body = fold(answer(return_token_ids=True, prompt_token_ids=(1, 7), prompt_text="<s>hi"), first, last)
    assert body["prompt_logprobs"] == [
        None,
        {
            "7": {"logprob": -1.5, "rank": 3, "decoded_token": "hi"},
            "8": {"logprob": -9999.0, "rank": 5, "decoded_token": "h"},
        },
    ]
    assert body["prompt_token_ids"] == [1, 7]
    assert body["prompt_text"] == "<s>hi"
    assert body["kv_transfer_params"] == {"remote": "x"}
    assert body["choices"][0]["token_ids"] == []


def test_usage_details_and_surrogates_are_harmless() -> None:
    body = fold(answer(), ChoiceUpdate(0, (ContentDelta("\ud800"),), finish=STOP), usage=Usage(3, 4, 0, 2))
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert body["choices"][0]["message"]["content"] == "?"


def test_a_call_that_a_stop_string_cut_does_not_end_as_a_call() -> None:
    for arguments, word in (('{"a": 1', "stop"), ('{"a": 1}', "tool_calls")):
        events = [ToolCallStart(0, "f", None), ToolCallArguments(0, arguments)]
        update = ChoiceUpdate(0, events, finish=ChoiceFinish(FinishReason.STOP, "x"))
        assert fold(answer(), update)["choices"][0]["finish_reason"] == word
        chunks = payloads(ChatChunkWriter(answer()).update(update))
        assert chunks[-1]["choices"][0]["finish_reason"] == word
