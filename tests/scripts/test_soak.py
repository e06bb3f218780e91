"""The short form of the soak, and that it would see what it looks for."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import trio

from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.text.model_files import load_model_text

SCRIPTS = Path(__file__).parents[2] / "scripts"


async def test_twenty_streams_lose_and_leak_nothing() -> None:
    command = [sys.executable, str(SCRIPTS / "soak.py"), "--seconds", "4"]
    with trio.fail_after(60):
        ended = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
    assert ended.returncode == 0, ended.stdout.decode()
    assert b"0 faults" in ended.stdout
    assert b" left" in ended.stdout


def test_a_lost_doubled_or_swapped_token_is_seen() -> None:
    script = runpy.run_path(str(SCRIPTS / "disorder" / "formula.py"))
    compare, token_of = script["compare"], script["token_of"]
    tokenizer = load_model_text(DEMO_MODEL).tokenizer
    expected = [token_of(5, position) for position in range(50)]
    usage = {"completion_tokens": 50}

    def fault(found: list[int], text: str | None = None) -> str:
        shown = tokenizer.decode(expected) if text is None else text
        return str(compare(expected, found, shown, tokenizer, "length", usage))

    assert not fault(expected)
    assert fault(expected[:-1])
    assert fault([*expected[:20], *expected[19:]])
    assert fault([*expected[:10], expected[11], expected[10], *expected[12:]])
    assert fault(expected, tokenizer.decode(expected)[:-1])
    assert compare(expected, expected, tokenizer.decode(expected), tokenizer, "stop", usage)
    assert compare(expected, expected, tokenizer.decode(expected), tokenizer, "length", None)
    assert len(set(expected)) > 40
