"""The benchmark's reading of answers: whatever way a gateway cuts its bytes, lost and doubled tokens show."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from bench.answers import read_answer
from bench.words import Words
from smg_trio.testing.demo import DEMO_MODEL

WORDS = ["one", "two", "three", "four"]
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(content: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": content}}]}).encode() + b"\n\n"


def chunked(*parts: bytes) -> bytes:
    return SSE_HEAD + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def stream(words: list[str]) -> bytes:
    return chunked(event(""), *(event(f" {word}") for word in words), b"data: [DONE]\n\n")


@given(cuts=st.sets(st.integers(1, len(stream(WORDS)) - 1), max_size=12))
def test_a_stream_reads_the_same_under_any_cutting_and_times_each_token_by_its_last_byte(cuts: set[int]) -> None:
    data = stream(WORDS)
    edges = [0, *sorted(cuts), len(data)]
    pieces = [(end, data[start:end]) for start, end in pairwise(edges)]
    answer = read_answer(1, 0, pieces, WORDS)
    assert (answer.lost, answer.extra, answer.disordered, answer.fault) == (0, 0, False, "")
    ends = [data.index(event(f" {word}")) + len(event(f" {word}")) for word in WORDS]
    assert answer.token_times == [min(edge for edge in edges if edge >= end) for end in ends]


def test_lost_doubled_and_swapped_tokens_are_told_apart() -> None:
    seen = [["one", "two", "four"], ["one", "two", "two", "three", "four"], ["two", "one", "three", "four"]]
    answers = [read_answer(1, 0, [(5, stream(words))], WORDS) for words in seen]
    assert [(one.lost, one.extra, one.disordered) for one in answers] == [(1, 0, False), (0, 1, False), (0, 0, True)]


def test_several_tokens_in_one_event_are_counted_each() -> None:
    answer = read_answer(1, 0, [(7, chunked(event("one two three"), event(" four")))], WORDS)
    assert answer.token_times == [7] * 4


def test_bodies_with_a_length_are_read_streamed_or_not() -> None:
    body = json.dumps({"choices": [{"message": {"content": "one"}}]}).encode()
    for kind, data in ((b"application/json", body), (b"text/event-stream", event("one") + b"data: [DONE]\n\n")):
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(data))
        answer = read_answer(1, 0, [(3, head + data)], ["one"])
        assert (answer.token_times, answer.fault) == ([3], "")


def test_an_error_or_a_cut_answer_is_a_fault_and_its_tokens_are_lost() -> None:
    refused = read_answer(1, 0, [(1, b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n")], WORDS)
    cut = read_answer(1, 0, [(1, stream(WORDS)[:-40])], WORDS)
    failed = read_answer(1, 0, [(1, chunked(event("one"), b'data: {"error": {"message": "no"}}\n\n'))], WORDS)
    assert all(answer.fault for answer in (refused, cut, failed))
    assert (refused.lost, failed.lost) == (4, 3)


def test_a_seed_s_answer_is_always_the_same_and_another_s_is_not() -> None:
    words = Words(DEMO_MODEL)
    answers = [words.answer(seed, 50) for seed in (7, 7, 8)]
    assert [len(answer) for answer in answers] == [50] * 3
    assert answers[0] == answers[1] != answers[2]
