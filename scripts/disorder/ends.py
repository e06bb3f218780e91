"""How a request may end, and what would be wrong with an end. Pure.

Engines say a formula of prompt and seed, so a lost, doubled or foreign token is seen whichever worker answered, at
whichever attempt.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

from smg_trio.testing.commands import EngineRequest
from smg_trio.testing.script import LengthScript

REFUSALS = frozenset({429, 500, 502, 503, 504})
"""Statuses of a request that no fault of its own has stopped."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A completions request.

    Attributes:
        prompt: int[T].
        length: tokens per choice.
        valid: whether it may be refused with 400; then it must be.
    """

    prompt: tuple[int, ...]
    seed: int
    length: int
    n: int
    stream: bool
    valid: bool = True

    def body(self, model: str) -> dict[str, Any]:
        """The JSON body."""
        return {
            "model": model, "prompt": list(self.prompt), "seed": self.seed, "n": self.n, "stream": self.stream,
            "max_tokens": self.length if self.valid else -1, "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip

    def expected(self, choice: int) -> list[int]:
        """The tokens of a choice."""
        request = EngineRequest(
            request_id="", prompt_token_ids=list(self.prompt), max_tokens=None, seed=self.seed + choice
        )
        return [tick[0] for tick in itertools.islice(LengthScript().ticks(request), self.length)]


@dataclass(frozen=True, slots=True)
class End:
    """How a request ended: a word to count by, and what was wrong with it, if anything."""

    kind: str
    fault: str = ""


def end_of(asked: Asked, status: int, text: str) -> End:
    """The end of a request whose whole response is there."""
    if status == 400:
        return End("refused 400", "" if not asked.valid else f"400 for a valid request: {text[:200]}")
    if status != 200:
        return _refusal(status, text)
    if not asked.valid:
        return End("answered", "an invalid request was answered")
    return _stream_end(asked, text) if asked.stream else _whole_end(asked, text)


def _refusal(status: int, text: str) -> End:
    kind = f"refused {status}"
    if status not in REFUSALS:
        return End(kind, f"status {status}: {text[:200]}")
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return End(kind, f"status {status} without an error body: {text[:200]}")
    fault = f"{error}" if error["code"] == "internal_error" or not error["message"] else ""
    return End(f"{kind} {error['code']}", fault)


def _whole_end(asked: Asked, text: str) -> End:
    choices = json.loads(text)["choices"]
    found = {choice["index"]: choice["token_ids"] for choice in choices}
    if len(choices) != asked.n or len(found) != asked.n:
        return End("answered", f"{len(choices)} choices of {asked.n}")
    for index, tokens in found.items():
        if fault := _difference(asked.expected(index), tokens):
            return End("answered", fault)
    wrong = [choice["finish_reason"] for choice in choices if choice["finish_reason"] != "length"]
    return End("answered", f"finished with {wrong}" if wrong else "")


def _stream_end(asked: Asked, text: str) -> End:
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    if not blocks or blocks[-1] != "data: [DONE]" or blocks.count("data: [DONE]") != 1:
        return End("streamed", f"{blocks.count('data: [DONE]')} times [DONE]; ends with {blocks[-1:]!r:.200}")
    chunks = [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]
    errors = [chunk["error"] for chunk in chunks if "error" in chunk]
    kind = f"broke off {errors[0]['code']}" if errors else "streamed"
    if any(error["code"] == "internal_error" for error in errors):
        return End(kind, f"{errors}")
    if len(errors) > 1 or (errors and "error" not in chunks[-1]):
        return End(kind, f"{len(errors)} error events, or something after one")
    found, finishes, fault = _gather(asked, chunks)
    if fault:
        return End(kind, fault)
    if not errors and finishes != ["length"] * asked.n:
        return End(kind, f"finished with {finishes}")
    if errors and len(finishes) == asked.n:
        return End(kind, "an error after the whole answer")
    for index, tokens in enumerate(found):
        expected = asked.expected(index)
        if fault := _difference(expected[: len(tokens)] if errors else expected, tokens):
            return End(kind, fault)
    return End(kind)


def _gather(asked: Asked, chunks: list[dict[str, Any]]) -> tuple[list[list[int]], list[str], str]:
    """Tokens per choice, the finish reasons, and what was wrong with the order of things."""
    found: list[list[int]] = [[] for _ in range(asked.n)]
    finishes: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.get("choices", ()):
            index = choice["index"]
            if index in finishes:
                return found, [], f"choice {index} goes on after its finish"
            found[index] += choice.get("token_ids") or ()
            if choice["finish_reason"] is not None:
                finishes[index] = choice["finish_reason"]
    return found, list(finishes.values()), ""


def _difference(expected: list[int], found: list[int]) -> str:
    if found == expected:
        return ""
    place = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), -1)
    return f"{len(found)} tokens of {len(expected)}, first difference at {place}"
