"""The short form of the chaos, and that it would see what it looks for."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

SCRIPTS = Path(__file__).parents[2] / "scripts"


async def test_a_gateway_in_chaos_keeps_its_books() -> None:
    command = [sys.executable, str(SCRIPTS / "chaos.py"), "--seconds", "3", "--seed", "5", "--clients", "12"]
    with trio.fail_after(60):
        ended = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
    assert ended.returncode == 0, ended.stdout.decode()
    assert b" 0 faults" in ended.stdout
    assert b"streamed" in ended.stdout


class Ends:
    """What the script makes of a request's end."""

    def __init__(self) -> None:
        script = runpy.run_path(str(SCRIPTS / "disorder" / "ends.py"))
        self.asked_type, self.end_of = script["Asked"], script["end_of"]

    def asked(self, **fields: Any) -> Any:
        return self.asked_type(**({"prompt": (1, 2), "seed": 3, "length": 4, "n": 1, "stream": True} | fields))

    def fault(self, asked: Any, status: int, text: str) -> str:
        return str(self.end_of(asked, status, text).fault)


def stream_of(tokens: list[int], *, finish: str | None = "length", tail: str = "data: [DONE]\n\n") -> str:
    chunks: list[dict[str, Any]] = [{"index": 0, "token_ids": [token], "finish_reason": None} for token in tokens]
    if finish is not None:
        chunks.append({"index": 0, "token_ids": [], "finish_reason": finish})
    return "".join(f"data: {json.dumps({'choices': [chunk]})}\n\n" for chunk in chunks) + tail


def error_event(code: str) -> str:
    return f"data: {json.dumps({'error': {'message': 'x', 'code': code}})}\n\n"


DONE = "data: [DONE]\n\n"


def test_a_stream_has_exactly_one_end_and_its_own_tokens() -> None:
    ends = Ends()
    asked = ends.asked()
    tokens = asked.expected(0)
    good = stream_of(tokens)
    assert not ends.fault(asked, 200, good)
    assert not ends.fault(asked, 200, ": ping\n\n" + good)
    assert not ends.fault(asked, 200, stream_of(tokens[:2], finish=None, tail=error_event("engine_dead") + DONE))
    wrong = {
        "no end": stream_of(tokens, tail=""),
        "two ends": good + DONE,
        "no finish": stream_of(tokens, finish=None),
        "another finish": stream_of(tokens, finish="stop"),
        "a token lost": stream_of(tokens[:-1]),
        "a token doubled": stream_of([tokens[0], *tokens]),
        "a foreign token": stream_of([*tokens[:-1], tokens[-1] + 1]),
        "an error after the finish": stream_of(tokens, tail=error_event("engine_dead") + DONE),
        "two errors": stream_of(tokens[:2], finish=None, tail=error_event("a") + error_event("b") + DONE),
        "tokens after an error": error_event("engine_dead") + stream_of(tokens),
        "an error of our own": stream_of(tokens[:1], finish=None, tail=error_event("internal_error") + DONE),
        "foreign tokens before an error": stream_of([9999], finish=None, tail=error_event("engine_dead") + DONE),
    }
    assert [name for name, text in wrong.items() if not ends.fault(asked, 200, text)] == []


def test_a_whole_answer_has_all_its_choices_each_with_the_tokens_of_its_seed() -> None:
    ends = Ends()
    asked = ends.asked(stream=False, n=2)

    def body(*tokens: list[int], finish: str = "length") -> str:
        choices = [{"index": i, "token_ids": ids, "finish_reason": finish} for i, ids in enumerate(tokens)]
        return json.dumps({"choices": choices})

    first, second = asked.expected(0), asked.expected(1)
    assert first != second
    assert not ends.fault(asked, 200, body(first, second))
    for wrong in (body(first), body(second, first), body(first, second[:-1]), body(first, second, finish="stop")):
        assert ends.fault(asked, 200, wrong)


@pytest.mark.parametrize(
    ("valid", "status", "code", "wrong"),
    [
        (True, 503, "engine_dead", False),
        (True, 429, "admission_queue_full", False),
        (True, 400, "invalid_value", True),
        (False, 400, "invalid_value", False),
        (True, 404, "model_not_found", True),
        (True, 500, "internal_error", True),
    ],
)
def test_a_refusal_fits_the_request(valid: bool, status: int, code: str, wrong: bool) -> None:
    ends = Ends()
    text = json.dumps({"error": {"message": "x", "code": code}})
    assert bool(ends.fault(ends.asked(valid=valid), status, text)) is wrong
    assert ends.fault(ends.asked(valid=valid), 503, "<html>")
    assert ends.fault(ends.asked(valid=False), 200, stream_of(ends.asked().expected(0)))
