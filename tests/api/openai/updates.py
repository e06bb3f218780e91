"""Random answers: update sequences as the pipeline makes them, and a client that reads streams."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from pydantic import TypeAdapter

from smg_trio.core.events import (
    ChoiceFinish,
    ChoiceUpdate,
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
)
from smg_trio.core.outputs import FinishReason

texts = st.text(min_size=1, max_size=6) | st.sampled_from(['"', "\\", "\n", "\u2028", "😀", "\x00", " né"])
arguments = st.dictionaries(texts, st.none() | st.integers() | texts | st.lists(texts, max_size=2), max_size=2)
logprob_values = st.floats(-100, 0) | st.just(float("-inf")) | st.just(float("nan"))


@st.composite
def token_logprobs(draw: st.DrawFn, *, top: int = 3) -> TokenLogprob:
    """One token with up to ``top`` candidates."""

    def one(token_id: int, rivals: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        token = draw(texts)
        return TokenLogprob(token_id, token, token.encode("utf-8", "replace"), draw(logprob_values), 1, rivals)

    rivals = tuple(one(index) for index in range(draw(st.integers(0, top))))
    return one(draw(st.integers(0, 5)), rivals)


@st.composite
def finishes(draw: st.DrawFn) -> ChoiceFinish:
    """Any end that OpenAI has a word for."""
    reason = draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.REPETITION]))
    return ChoiceFinish(reason, draw(st.none() | st.integers(0, 9) | texts))


@st.composite
def chat_updates(draw: st.DrawFn, n: int, *, with_logprobs: bool, whole_arguments: bool = False) -> list[ChoiceUpdate]:
    """The interleaved updates of ``n`` choices; each ends exactly once.

    With ``whole_arguments`` the arguments of every call are (the beginning of) a JSON object.
    """
    texts_left: dict[tuple[int, int], str] = {}
    pending = {choice: draw(st.integers(1, 5)) for choice in range(n)}
    calls = dict.fromkeys(pending, 0)
    updates = []
    while pending:
        choice = draw(st.sampled_from(sorted(pending)))
        pending[choice] -= 1
        events = [
            _event(draw, choice, calls, texts_left if whole_arguments else None) for _ in range(draw(st.integers(0, 4)))
        ]
        token_ids = draw(st.lists(st.integers(0, 9), max_size=3))
        logprobs = [draw(token_logprobs()) for _ in token_ids] if with_logprobs else None
        finish = draw(finishes()) if pending[choice] == 0 else None
        updates.append(ChoiceUpdate(choice, events, token_ids, logprobs, finish))
        if finish is not None:
            del pending[choice]
    return updates


def _event(draw: st.DrawFn, choice: int, calls: dict[int, int], left: dict[tuple[int, int], str] | None) -> ParserEvent:
    kind = draw(st.sampled_from(["content", "content", "reasoning", "start", "arguments"]))
    if kind == "start" or (kind == "arguments" and calls[choice] == 0):
        calls[choice] += 1
        return ToolCallStart(calls[choice] - 1, draw(texts), draw(st.none() | st.just(f"own-{calls[choice]}")))
    if kind == "arguments":
        call = calls[choice] - 1
        return ToolCallArguments(call, draw(texts) if left is None else _piece(draw, left, (choice, call)))
    return ContentDelta(draw(texts)) if kind == "content" else ReasoningDelta(draw(texts))


def _piece(draw: st.DrawFn, left: dict[tuple[int, int], str], call: tuple[int, int]) -> str:
    """The next piece of a call's JSON text; white space where it is over."""
    text = left.get(call)
    if text is None:
        text = json.dumps(draw(arguments))
    cut = draw(st.integers(1, len(text))) if text else 0
    left[call] = text[cut:]
    return text[:cut] or " "


@st.composite
def completion_updates(draw: st.DrawFn, n: int, *, logprobs: bool, prompt_len: int) -> list[ChoiceUpdate]:
    """The interleaved updates of ``n`` choices of text; the first of each brings the prompt's logprobs."""
    pending = {choice: draw(st.integers(1, 4)) for choice in range(n)}
    started: set[int] = set()
    updates = []
    while pending:
        choice = draw(st.sampled_from(sorted(pending)))
        pending[choice] -= 1
        token_ids = draw(st.lists(st.integers(0, 9), max_size=3))
        update = ChoiceUpdate(
            choice,
            [ContentDelta(draw(texts)) for _ in range(draw(st.integers(0, 2)))],
            token_ids,
            [draw(token_logprobs()) for _ in token_ids] if logprobs else None,
            draw(finishes()) if pending[choice] == 0 else None,
        )
        if logprobs and choice not in started:
            update.prompt_logprobs = [None, *(draw(token_logprobs()) for _ in range(prompt_len - 1))]
        started.add(choice)
        updates.append(update)
        if update.finish is not None:
            del pending[choice]
    return updates


def payloads(stream: bytes) -> list[dict[str, Any]]:
    """The JSON payloads of a stream of events, without ``[DONE]``."""
    events = stream.decode("utf-8").split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") for event in events)
    return [strict_json(event[6:]) for event in events if event != "data: [DONE]"]


def strict_json(text: str | bytes) -> Any:
    """JSON without Python's NaN and Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def named_events(stream: bytes, adapter: TypeAdapter[Any]) -> list[dict[str, Any]]:
    """The events of a stream, each named as its data says, and checked against the official client's model."""
    blocks = stream.decode().split("\n\n")
    assert blocks.pop() == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        value = strict_json(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        adapter.validate_python(value, strict=True)
        found.append(value)
    return found
