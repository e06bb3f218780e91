"""The terminal chat against a real gateway with a fake engine."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import trio

from smg_trio.terminal.chat import ChatFailed, ChatOptions, run_chat
from tests.e2e.harness import ENDLESS, open_gateway


async def _talk(url: str, lines: list[str], **options: object) -> str:
    output = io.StringIO()
    pending = list(lines)

    async def read_line() -> str | None:
        await trio.lowlevel.checkpoint()
        return pending.pop(0) if pending else None

    assert await run_chat(ChatOptions(url=url, **options), read_line, output) == 0  # type: ignore[arg-type]
    return output.getvalue()


async def test_turns_go_on_from_each_other(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS) as bench:
        answer = await _talk(bench.base_url, ["Hi", "", "And?"], max_output_tokens=5)
        assert answer.count("[max_output_tokens]") == 2
        first, second = bench.engine.received[-2:]
        assert len(second.prompt_token_ids) > len(first.prompt_token_ids)


async def test_a_fault_is_said_and_the_chat_goes_on(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS) as bench:
        assert "does not exist" in await _talk(bench.base_url, ["Hi"], model="nope")


async def test_a_gateway_that_is_not_there_is_said() -> None:
    with pytest.raises(ChatFailed, match="cannot talk to"):
        await _talk("http://127.0.0.1:1", ["Hi"])


async def test_a_missing_key_is_said(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, api_key=("secret",)) as bench:
        with pytest.raises(ChatFailed, match="401"):
            await _talk(bench.base_url, ["Hi"])
        assert "[max_output_tokens]" in await _talk(bench.base_url, ["Hi"], api_key="secret", max_output_tokens=3)
