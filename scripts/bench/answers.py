"""From the recorded bytes of an answer to its tokens, their times, and what is wrong with them. Pure."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

Pieces = Sequence[tuple[int, bytes]]


@dataclass(slots=True)
class Answer:
    """One answer as the client saw it; times are CLOCK_MONOTONIC, ns.

    Attributes:
        token_times: when each token's event was complete.
        end_at: when the last byte came.
        lost, extra: expected tokens that did not come, and tokens that were not expected.
        disordered: all tokens came, in another order.
        fault: what came instead of an answer.
    """

    seed: int
    sent_at: int
    end_at: int
    token_times: list[int]
    lost: int = 0
    extra: int = 0
    disordered: bool = False
    fault: str = ""


def read_answer(seed: int, sent_at: int, pieces: Pieces, expected: Sequence[str]) -> Answer:
    """Reads a recorded answer and compares it with the `expected` words."""
    answer = Answer(seed, sent_at, pieces[-1][0] if pieces else sent_at, [])
    said: list[str] = []
    try:
        for at, text in _texts(pieces):
            words = text.split()
            said += words
            answer.token_times += [at] * len(words)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        answer.fault = f"{error!r}: {b''.join(data for _, data in pieces)[:300]!r}"
    wanted, came = Counter(expected), Counter(said)
    answer.lost, answer.extra = (wanted - came).total(), (came - wanted).total()
    answer.disordered = wanted == came and list(expected) != said
    return answer


def _texts(pieces: Pieces) -> Iterator[tuple[int, str]]:
    """(time, content) of each event of a stream, or of the one body."""
    data = b"".join(piece for _, piece in pieces)
    head, found, body = data.partition(b"\r\n\r\n")
    if not found or b" 200 " not in head[:16]:
        raise ValueError("no answer")
    chunks = _chunks(pieces) if _is_chunked(head) else iter([(pieces[-1][0], body)])
    if b"text/event-stream" not in head.lower():
        whole = b"".join(chunk for _, chunk in chunks)
        yield pieces[-1][0], json.loads(whole)["choices"][0]["message"]["content"]
        return
    rest = b""
    for at, chunk in chunks:
        *events, rest = (rest + chunk).split(b"\n\n")
        for event in events:
            yield at, _content(event)


def _is_chunked(head: bytes) -> bool:
    return b"transfer-encoding: chunked" in head.lower()


def _content(event: bytes) -> str:
    payload = event.removeprefix(b"data: ")
    if payload == b"[DONE]" or event.startswith(b":"):
        return ""
    value: dict[str, Any] = json.loads(payload)
    if "error" in value:
        raise ValueError("error event")
    choices = value["choices"]
    return (choices[0]["delta"].get("content") or "") if choices else ""


def _chunks(pieces: Pieces) -> Iterator[tuple[int, bytes]]:
    """(time of its last byte, data) of each chunk of a chunked body."""
    data = b"".join(piece for _, piece in pieces)
    ends = list(accumulate(len(piece) for _, piece in pieces))
    position = data.index(b"\r\n\r\n") + 4
    while True:
        start = data.index(b"\r\n", position) + 2
        size = int(data[position : start - 2], 16)
        if size == 0:
            return
        position = start + size
        yield pieces[bisect_left(ends, position)][0], data[start:position]
        position += 2
