"""Chat answers read closely: thoughts, text and calls, asked for whole and streamed, which must be the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from smg_trio.testing.script import Ending, FixedScript, Script

from .harness import Bench, events

T: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
"""A tool with parameters."""
T0: dict[str, Any] = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
"""A tool without."""
TOOLS = [T, T0]
CITY = "São Paulo 北京 😀"


@dataclass(frozen=True)
class Said:
    """One choice of an answer.

    Attributes:
        calls: (name, arguments as text).
        ids: of the calls; not compared, since they are made anew for each answer.
        pieces: how many argument deltas each call came in (a stream only).
        usage: of the whole answer.
    """

    reasoning: str
    content: str
    calls: list[tuple[str, str]]
    finish: str | None
    stop_reason: int | str | None
    usage: dict[str, Any]
    ids: list[str] = field(default_factory=list, compare=False)
    pieces: list[int] = field(default_factory=list, compare=False)

    @property
    def shown(self) -> tuple[str, str, list[tuple[str, str]], str | None]:
        """What most tests look at."""
        return self.reasoning, self.content, self.calls, self.finish


def whole(body: dict[str, Any], index: int = 0) -> Said:
    """A choice of an answer in one piece; asserts its shape."""
    choice = body["choices"][index]
    message = choice["message"]
    assert message["reasoning"] == message["reasoning_content"]
    calls = message.get("tool_calls")
    assert calls is None or calls
    if message["content"] == "":
        assert not calls
        assert not message["reasoning"]
    assert all(call["type"] == "function" for call in calls or ())
    return Said(
        message["reasoning"] or "",
        message["content"] or "",
        [(call["function"]["name"], call["function"]["arguments"]) for call in calls or ()],
        choice["finish_reason"],
        choice["stop_reason"],
        body["usage"],
        [call["id"] for call in calls or ()],
    )


def joined(text: str, index: int = 0) -> Said:
    """A choice of a streamed answer put together; asserts its shape."""
    *chunks, done = events(text)
    assert done == "[DONE]"
    usage = chunks.pop()
    assert usage["choices"] == []
    parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
    head, *parts = parts
    assert head["delta"] == {"role": "assistant", "content": ""}
    assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
    last = parts[-1]
    assert last["delta"] == {}
    texts = {"reasoning": "", "content": ""}
    calls: list[dict[str, Any]] = []
    pieces: list[int] = []
    for part in parts[:-1]:
        delta = part["delta"]
        assert set(delta) in ({"content"}, {"reasoning", "reasoning_content"}, {"tool_calls"}), delta
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for key in texts:
            assert delta.get(key) != ""
            texts[key] += delta.get(key, "")
        for piece in delta.get("tool_calls", ()):
            _add_piece(piece, calls, pieces)
    shown = [(call["name"], call["arguments"]) for call in calls]
    ids = [call["id"] for call in calls]
    finish, stop_reason = last["finish_reason"], last["stop_reason"]
    return Said(texts["reasoning"], texts["content"], shown, finish, stop_reason, usage["usage"], ids, pieces)


def _add_piece(piece: dict[str, Any], calls: list[dict[str, Any]], pieces: list[int]) -> None:
    if "id" in piece:
        assert piece["type"] == "function"
        assert piece["index"] == len(calls)
        assert piece["function"]["arguments"] == ""
        calls.append({"id": piece["id"], **piece["function"]})
        pieces.append(0)
        return
    assert piece["index"] == len(calls) - 1, "calls come one after the other"
    assert set(piece["function"]) == {"arguments"}
    assert piece["function"]["arguments"], "no empty deltas"
    calls[-1]["arguments"] += piece["function"]["arguments"]
    pieces[-1] += 1


async def ask(bench: Bench, **fields: Any) -> Said:
    """A chat answer asked for both ways, which must say the same; returns the streamed one."""
    [said] = await ask_choices(bench, 1, **fields)
    return said


async def ask_choices(bench: Bench, n: int, **fields: Any) -> list[Said]:
    """All choices of a chat answer asked for both ways."""
    fields["n"] = n
    at_once = ok(await bench.chat(**fields)).json()
    text = (await ask_streamed(bench, **fields)).text
    said = [joined(text, index) for index in range(n)]
    assert said == [whole(at_once, index) for index in range(n)]
    return said


async def ask_streamed(bench: Bench, **fields: Any) -> httpx.Response:
    """A streamed chat answer with usage."""
    return ok(await bench.chat(**fields, stream=True, stream_options={"include_usage": True}))


def ok(answer: httpx.Response) -> httpx.Response:
    """The answer, which must be no error."""
    assert answer.status_code == 200, answer.text
    return answer


def spelt(bench: Bench, text: str, per_tick: int = 1, *, ending: Ending = Ending()) -> Script:  # noqa: B008 - frozen
    """A script that says `text` in the tokens of the model, so many in a tick (0: all at once), then ends."""
    return ticks(bench, encoded(bench, text), per_tick, ending)


def encoded(bench: Bench, text: str) -> list[int]:
    """Text in the tokens of the model."""
    return bench.gateway.catalog.find("").text.tokenizer.encode(text, add_special_tokens=False)


def by_character(bench: Bench, text: str) -> Script:
    """A script that says `text` in the smallest pieces there are, markers that are tokens excepted."""
    markers = sorted(bench.model.markers, key=len, reverse=True)
    ids: list[int] = []
    while text:
        marker = next((marker for marker in markers if text.startswith(marker)), None)
        if marker is not None:
            ids.append(bench.model.id_of(marker))
            text = text.removeprefix(marker)
        else:
            ids += [bench.model.id_of(f"<0x{byte:02X}>") for byte in text[0].encode()]
            text = text[1:]
    return ticks(bench, ids, 1)


def ticks(bench: Bench, ids: Sequence[int], per_tick: int, ending: Ending = Ending()) -> Script:  # noqa: B008
    """These tokens, so many in a tick, then the end; a normal end is the end token."""
    said = [*ids, bench.model.id_of("<EOS>")] if ending == Ending() else [*ids]
    size = per_tick or len(said)
    return FixedScript([said[at : at + size] for at in range(0, len(said), size)], ending)


def sweep(bench: Bench, text: str) -> list[Script]:
    """One text cut in every way: characters, tokens, 2…7 tokens to a tick, all at once."""
    return [by_character(bench, text), *(spelt(bench, text, size) for size in (1, 2, 3, 4, 5, 6, 7, 0))]


async def ask_swept(bench: Bench, text: str, scripts: Sequence[Script] = (), **fields: Any) -> Said:
    """The one answer to `text` however it is cut, streamed and whole; the last way is returned."""
    seen: Said | None = None
    for script in scripts or (by_character(bench, text), *(spelt(bench, text, size) for size in (1, 3, 0))):
        bench.say(script)
        said = await ask(bench, **fields)
        assert seen is None or seen.shown == said.shown
        seen = said
    assert seen is not None
    return seen
