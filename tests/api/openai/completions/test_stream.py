"""Completions, streamed and folded, and the law that both say the same."""

from __future__ import annotations

from itertools import chain
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion

from smg_trio.api.openai.completions.fold import CompletionFold
from smg_trio.api.openai.completions.pieces import AnsweredPrompt, CompletionAnswer
from smg_trio.api.openai.completions.stream import CompletionChunkWriter
from smg_trio.api.sse import DONE
from smg_trio.core.events import ChoiceFinish, ChoiceUpdate, ContentDelta, TokenLogprob, Usage
from smg_trio.core.outputs import FinishReason
from tests.api.openai.updates import completion_updates, payloads, strict_json

STOP = ChoiceFinish(FinishReason.STOP)
LISTS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


def answer(**changes: Any) -> CompletionAnswer:
    return CompletionAnswer(**{"response_id": "cmpl-1", "model": "m", "created": 7, **changes})


def fold(shape: CompletionAnswer, *updates: ChoiceUpdate) -> dict[str, Any]:
    folder = CompletionFold(shape)
    for update in updates:
        folder.feed(update)
    return strict_json(folder.body(Usage(3, 4)))  # type: ignore[no-any-return]


def token(text: str, raw: bytes = b"x", token_id: int = 1, logprob: float = -0.5, **more: Any) -> TokenLogprob:
    return TokenLogprob(token_id, text, raw, logprob, **more)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_stream_and_its_fold_say_the_same(data: st.DataObject) -> None:
    with_logprobs = data.draw(st.booleans())
    shape = answer(
        n=data.draw(st.integers(1, 2)),
        prompts=tuple(AnsweredPrompt(f"p{i} ", (i, 2), "p") for i in range(data.draw(st.integers(1, 2)))),
        echo=data.draw(st.booleans()),
        logprobs=data.draw(st.integers(-1, 3)) if with_logprobs else None,
        return_token_ids=data.draw(st.booleans()),
        tokens_as_ids=data.draw(st.booleans()),
    )
    total = shape.n * len(shape.prompts)
    updates = data.draw(completion_updates(total, logprobs=with_logprobs, prompt_len=2))
    writer = CompletionChunkWriter(shape)
    stream = b"".join(map(writer.update, updates)) + writer.usage_chunk(Usage(3, 4)) + DONE
    body = fold(shape, *updates)
    assert len(body["choices"]) == total
    for index, choice in enumerate(body["choices"]):
        pieces = [c for chunk in payloads(stream) for c in chunk["choices"] if c["index"] == index]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert list(chain.from_iterable(piece.get("token_ids", []) for piece in pieces)) == (choice["token_ids"] or [])
        assert [p["finish_reason"] for p in pieces if p["finish_reason"]] == [choice["finish_reason"]]
        assert pieces[-1]["stop_reason"] == choice["stop_reason"]
        if shape.return_token_ids:
            shown = [piece["prompt_token_ids"] for piece in pieces if "prompt_token_ids" in piece]
            assert shown == [choice["prompt_token_ids"]]
        for name in LISTS if with_logprobs else ():
            joined = list(chain.from_iterable(piece["logprobs"][name] for piece in pieces))
            assert joined == choice["logprobs"][name]


def test_official_models_read_both_forms() -> None:
    updates = [
        ChoiceUpdate(0, (ContentDelta("a"),), (1,), [token("a", top=(token("b", token_id=2),))]),
        ChoiceUpdate(0, (ContentDelta("b"),), (2,), [token("b")], STOP),
    ]
    body = fold(answer(logprobs=1), *updates)
    Completion.model_validate(body, strict=True)
    writer = CompletionChunkWriter(answer(logprobs=1))
    stream = b"".join(map(writer.update, updates)) + writer.usage_chunk(Usage(1, 2, 1))
    first, last, usage = payloads(stream)
    # The client's one model for both forms knows no null finish; it does not check streams.
    Completion.model_validate({**first, "choices": [{**first["choices"][0], "finish_reason": "stop"}]}, strict=True)
    Completion.model_validate(last, strict=True)
    Completion.model_validate(usage, strict=True)
    assert usage["choices"] == []


def test_text_and_finish_share_a_chunk() -> None:
    writer = CompletionChunkWriter(answer())
    first, last = payloads(
        writer.update(ChoiceUpdate(0, (ContentDelta("a"),), (1,)))
        + writer.update(ChoiceUpdate(0, (ContentDelta("b"),), (2,), finish=ChoiceFinish(FinishReason.STOP, "x")))
    )
    assert first["choices"] == [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None, "stop_reason": None}]
    assert last["choices"] == [
        {
            "index": 0,
            "text": "b",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": "x",
            "matched_stop": "x",
        }
    ]


def test_the_short_way_and_the_long_way_write_the_same() -> None:
    writer = CompletionChunkWriter(answer())
    chunks = [writer.update(ChoiceUpdate(0, (ContentDelta("é\ud800"),), (1,))) for _ in range(2)]
    assert chunks[0] == chunks[1]


def test_an_update_without_news_is_no_bytes() -> None:
    assert CompletionChunkWriter(answer()).update(ChoiceUpdate(0, (), (1,))) == b""


def test_continuous_usage_rides_on_the_chunk() -> None:
    stream = CompletionChunkWriter(answer()).update(ChoiceUpdate(0, (ContentDelta("a"),)), Usage(3, 1))
    assert payloads(stream)[0]["usage"]["total_tokens"] == 4


def test_an_echo_puts_the_prompt_and_its_logprobs_first() -> None:
    shape = answer(echo=True, logprobs=0, prompts=(AnsweredPrompt("one two", (5, 6), "one"),))
    update = ChoiceUpdate(
        0,
        (ContentDelta("!"),),
        (7,),
        [token("!", token_id=7)],
        STOP,
        prompt_logprobs=[None, token(" two", token_id=6, logprob=-2.0)],
    )
    choice = fold(shape, update)["choices"][0]
    assert choice["text"] == "one two!"
    assert choice["logprobs"] == {
        "text_offset": [0, 3, 7],
        "token_logprobs": [None, -2.0, -0.5],
        "tokens": ["one", " two", "!"],
        "top_logprobs": [None, {" two": -2.0}, {"!": -0.5}],
    }
    assert choice["prompt_logprobs"][1]["6"]["decoded_token"] == " two"


def test_an_echo_without_generation_is_the_prompt() -> None:
    shape = answer(echo=True, prompts=(AnsweredPrompt("hi"),))
    update = ChoiceUpdate(0, finish=ChoiceFinish(FinishReason.LENGTH))
    assert fold(shape, update)["choices"][0]["text"] == "hi"
    assert payloads(CompletionChunkWriter(shape).update(update))[0]["choices"][0]["text"] == "hi"


def test_choices_are_grouped_by_prompt() -> None:
    shape = answer(n=2, echo=True, prompts=(AnsweredPrompt("a"), AnsweredPrompt("b")))
    body = fold(shape, *(ChoiceUpdate(i, finish=STOP) for i in range(4)))
    assert [choice["text"] for choice in body["choices"]] == ["a", "a", "b", "b"]


def test_candidates_of_the_same_text_do_not_hide_each_other() -> None:
    rivals = (
        token("\ufffd", b"\xf0", 1),
        token("\ufffd", b"\x9f", 2, float("-inf")),
        token("\ufffd", b"\x98", 3),
    )
    update = ChoiceUpdate(0, (), (1,), [token("\ufffd", b"\xf0", 1, top=rivals)], STOP)
    (top,) = fold(answer(logprobs=3), update)["choices"][0]["logprobs"]["top_logprobs"]
    assert top == {"\ufffd": -0.5, "bytes:\\x9f": -9999.0, "bytes:\\x98": -0.5}


def test_a_folded_answer_has_vllms_shape() -> None:
    shape = answer(return_token_ids=True, prompts=(AnsweredPrompt("x", (9,)),), system_fingerprint="fp")
    body = fold(shape, ChoiceUpdate(0, (ContentDelta("a"),), (1,), finish=STOP, kv_transfer_params={"k": 1}))
    assert body == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "text": "a",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": [1],
                "prompt_logprobs": None,
                "prompt_token_ids": [9],
            }
        ],
        "service_tier": None,
        "system_fingerprint": "fp",
        "usage": {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4},
        "kv_transfer_params": {"k": 1},
    }
