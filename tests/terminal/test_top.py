"""`top` against a real gateway: one snapshot and its exit code, and the live screen in a real terminal."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from smg_trio.core.errors import ConfigError
from smg_trio.terminal.feed_client import FeedRefused, FeedUnreachable, read_message
from smg_trio.terminal.top import NOT_READY, TopOptions, run_top
from tests.e2e.harness import ENDLESS, HELLO, PATIENCE_S, chat_body, open_gateway
from tests.ports import lasting_port


async def once(url: str, **options: object) -> tuple[int, str]:
    output = io.StringIO()
    with trio.fail_after(PATIENCE_S):
        code = await run_top(TopOptions(url=url, once=True, **options), output)  # type: ignore[arg-type]
    return code, output.getvalue()


async def test_one_snapshot_shows_workers_requests_and_rates(tmp_path: Path) -> None:
    async with (
        open_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.01}) as bench,
        bench.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as answer,
    ):
        assert answer.status_code == 200
        bench.feed.interval_s = 0.2
        code, text = await once(bench.base_url)
        assert code == 0
        assert "1 of 1 ready" in text
        assert bench.urls[0] in text
        assert "generating" in text
        assert "output 0 tok/s" not in text
        code, text = await once(bench.base_url + "/", as_json=True)
        assert json.loads(text)["rates"]["output_tokens_per_s"] > 0


async def test_a_gateway_without_the_live_page_is_an_error_that_names_the_flag(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, dashboard=False) as bench:
        with pytest.raises(FeedRefused, match=r"404.*--no-dashboard"):
            await once(bench.base_url)


async def test_a_gateway_that_is_not_ready_is_shown_and_has_a_code_of_its_own(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        bench.feed.interval_s = 0.05
        code, text = await once(bench.base_url)
        assert code == NOT_READY
        assert "not ready: insufficient healthy workers" in text
        assert "waiting for HELLO" in text


async def test_what_keeps_it_from_watching_is_said(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, api_key=("secret",)) as bench:
        bench.feed.interval_s = 0.05
        with pytest.raises(FeedRefused, match="wants an API key"):
            await once(bench.base_url)
        with pytest.raises(FeedRefused, match="does not accept this API key"):
            await once(bench.base_url, api_key="wrong")
        with pytest.raises(FeedRefused, match="has no feed"):
            await once(bench.base_url + "/nowhere")
        assert (await once(bench.base_url, api_key="secret"))[0] == NOT_READY
    with pytest.raises(FeedUnreachable, match="cannot reach"):
        await once("http://127.0.0.1:1")
    for url in ("127.0.0.1:30000", "ftp://x", "http://"):
        with pytest.raises(ConfigError):
            await once(url)


@pytest.mark.parametrize("message", ["", "[]", '{"type": "snapshot", "schema": 2}', '{"type": "other"}'])
def test_other_feeds_are_not_taken_for_ours(message: str) -> None:
    with pytest.raises(FeedRefused):
        read_message(message)


class Terminal:
    """A terminal of 30 lines by 120 columns and the program in it."""

    def __init__(self, master: int, process: trio.Process) -> None:
        self._master = master
        self.process = process
        self.shown = ""

    async def wait_shown(self, found: Callable[[str], bool]) -> None:
        """Read until what was written since the last call satisfies `found`."""
        self.shown = ""
        with trio.fail_after(PATIENCE_S):
            while not found(self.shown):
                await trio.lowlevel.wait_readable(self._master)
                self.shown += os.read(self._master, 65536).decode("utf-8", "replace")

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def is_cooked(self) -> bool:
        """Whether lines are edited again, as before a program changed that."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ICANON)


@asynccontextmanager
async def terminal(url: str) -> AsyncIterator[Terminal]:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "smg_trio", "top", "--url", url]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "TERM": "xterm-256color"}
    process = await trio.lowlevel.open_process(
        command, stdin=slave, stdout=slave, stderr=subprocess.STDOUT, env=environment
    )
    shown = Terminal(master, process)
    shown.resize(30, 120)
    try:
        yield shown
    finally:
        process.kill()
        await process.wait()
        os.close(slave)
        os.close(master)


async def test_the_screen_follows_the_gateway_over_a_restart_until_q(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="the live screen needs rich")
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    port = lasting_port()
    async with open_gateway(tmp_path / "first", HELLO, port=port) as bench:
        bench.feed.interval_s = 0.1
        async with terminal(bench.base_url) as top:
            await top.wait_shown(lambda text: "1 of 1 ready" in text and "q ends" in text)
            assert not top.is_cooked()
            top.resize(10, 60)
            bench.kill(bench.engine)
            await top.wait_shown(lambda text: "not ready" in text)
            bench.shutdown.ask()
            await top.wait_shown(lambda text: "trying again" in text)
            await bench.ended.wait()
            async with open_gateway(tmp_path / "second", HELLO, port=port) as second:
                await top.wait_shown(lambda text: "1 of 1 ready" in text)
                top.press("x")
                top.press("q")
                with trio.fail_after(PATIENCE_S):
                    assert await top.process.wait() == 0
                assert top.is_cooked()
                assert second.feed.sequence > 0


async def test_an_interrupt_ends_the_screen_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="the live screen needs rich")
    async with open_gateway(tmp_path, HELLO, connect=False) as bench, terminal(bench.base_url) as top:
        await top.wait_shown(lambda text: "not ready" in text)
        top.process.send_signal(signal.SIGINT)
        with trio.fail_after(PATIENCE_S):
            assert await top.process.wait() == 0
        assert top.is_cooked()


async def test_a_wrong_key_ends_the_screen_with_a_word(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="the live screen needs rich")
    async with open_gateway(tmp_path, HELLO, connect=False, api_key=("k",)) as bench, terminal(bench.base_url) as top:
        await top.wait_shown(lambda text: "wants an API key" in text)
        with trio.fail_after(PATIENCE_S):
            assert await top.process.wait() == 1
