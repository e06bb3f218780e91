"""The short form of the soak, and that it would see what it looks for."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import trio

from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.text.model_files import load_model_text

SCRIPT = Path(__file__).parents[2] / "scripts" / "soak.py"


async def test_twenty_streams_lose_and_leak_nothing() -> None:
    command = [sys.executable, str(SCRIPT), "--seconds", "5", "--streams", "20"]
    with trio.fail_after(60):
        ended = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
    assert ended.returncode == 0, ended.stdout.decode()
    assert b" 0 faults" in ended.stdout


def test_a_lost_doubled_or_swapped_token_is_seen() -> None:
    script = runpy.run_path(str(SCRIPT))
    compare, token_of = script["_compare"], script["token_of"]
    tokenizer = load_model_text(DEMO_MODEL).tokenizer
    expected = [token_of(5, position) for position in range(50)]
    usage = {"completion_tokens": 50}

    def fault(found: list[int], text: str | None = None) -> str:
        shown = tokenizer.decode(expected) if text is None else text
        return str(compare(expected, found, shown, tokenizer, "length", usage, True))

    assert not fault(expected)
    assert fault(expected[:-1])
    assert fault([*expected[:20], *expected[19:]])
    assert fault([*expected[:10], expected[11], expected[10], *expected[12:]])
    assert fault(expected, tokenizer.decode(expected)[:-1])
    assert compare(expected, expected, tokenizer.decode(expected), tokenizer, "length", usage, False)
    assert compare(expected, expected, tokenizer.decode(expected), tokenizer, "stop", usage, True)
    assert len(set(expected)) > 40
