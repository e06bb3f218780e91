from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.errors import ConfigError
from smg_trio.launcher.process import Ending, LineSplitter, open_engine_process

# A leader and a child in its group; both say their id, and TERM is heeded or not.
FAMILY = r"""
import os, signal, sys
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.write(1, b"child %d\n" % os.getpid())
    signal.pause()
if sys.argv[1] == "orphan":
    os._exit(3)
os.write(1, b"leader %d\n" % os.getpid())
signal.pause()
"""


class Listener:
    """Keeps what an engine says and lets a test wait for it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._news = trio.Event()

    def say(self, line: str) -> None:
        self.lines.append(line)
        self._news.set()
        self._news = trio.Event()

    async def wait_for(self, enough: Callable[[list[str]], bool]) -> None:
        with trio.fail_after(20):
            while not enough(self.lines):
                await self._news.wait()

    def pid(self, who: str) -> int:
        [line] = [line for line in self.lines if line.startswith(who)]
        return int(line.split()[1])


def is_gone(pid: int) -> bool:
    """Whether a process has ended, or does within moments: closing its files comes a little before that."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 5.0)[0])
    finally:
        os.close(descriptor)


def lives(pid: int) -> bool:
    """Whether a process runs now."""
    os.kill(pid, 0)
    return True


def python(source: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", source, *arguments]


async def test_lines_of_both_outputs_come_in_order_and_the_exit_code_follows() -> None:
    heard = Listener()
    source = (
        "import sys; print('one', flush=True); sys.stderr.write('two\\n\\rthree\\r'); "
        "sys.stdout.write('four'); sys.exit(5)"
    )
    async with open_engine_process(python(source), {}, heard.say, Ending(trio.Event())) as engine:
        assert await engine.wait() == 5
        assert heard.lines == engine.last_lines() == ["one", "two", "three", "four"]


async def test_only_the_last_lines_are_kept() -> None:
    heard = Listener()
    source = "for number in range(100): print(number)"
    async with open_engine_process(python(source), {}, heard.say, Ending(trio.Event())) as engine:
        await engine.wait()
        assert len(heard.lines) == 100
        assert engine.last_lines() == [str(number) for number in range(60, 100)]


async def test_variables_are_added_to_the_inherited_ones() -> None:
    heard = Listener()
    source = "import os; print(os.environ['ENGINE_ONLY'], 'PATH' in os.environ)"
    async with open_engine_process(python(source), {"ENGINE_ONLY": "x"}, heard.say, Ending(trio.Event())) as engine:
        await engine.wait()
    assert heard.lines == ["x True"]
    assert "ENGINE_ONLY" not in os.environ


async def test_leaving_ends_the_whole_group() -> None:
    heard = Listener()
    async with open_engine_process(python(FAMILY, "kind"), {}, heard.say, Ending(trio.Event())) as engine:
        await heard.wait_for(lambda lines: len(lines) == 2)
        assert engine.pid == heard.pid("leader") == os.getpgid(heard.pid("child"))
        assert engine.pid != os.getpgid(0)
    assert is_gone(heard.pid("leader"))
    assert is_gone(heard.pid("child"))


async def test_cancellation_ends_the_group_before_it_goes_on() -> None:
    heard = Listener()
    with trio.CancelScope() as scope:
        async with open_engine_process(python(FAMILY, "kind"), {}, heard.say, Ending(trio.Event())) as engine:
            await heard.wait_for(lambda lines: len(lines) == 2)
            scope.cancel()
            await engine.wait()
    assert scope.cancelled_caught
    assert is_gone(heard.pid("leader"))
    assert is_gone(heard.pid("child"))


async def test_what_a_dead_leader_leaves_behind_is_ended() -> None:
    heard = Listener()
    async with open_engine_process(python(FAMILY, "orphan"), {}, heard.say, Ending(trio.Event())) as engine:
        assert await engine.wait() == 3
        await heard.wait_for(lambda lines: len(lines) == 1)
        assert lives(heard.pid("child"))
    assert is_gone(heard.pid("child"))


async def test_a_group_that_ignores_the_request_is_killed_when_there_is_a_hurry() -> None:
    heard, ending = Listener(), Ending(trio.Event())
    with trio.fail_after(20):
        async with open_engine_process(python(FAMILY, "stubborn"), {}, heard.say, ending) as engine:
            await heard.wait_for(lambda lines: len(lines) == 2)
            ending.hurry.set()
        assert await engine.wait() == -signal.SIGKILL
    assert is_gone(heard.pid("child"))


async def test_a_group_that_ignores_the_request_is_killed_after_thirty_seconds(
    mock_clock: trio.testing.MockClock,
) -> None:
    heard = Listener()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        done = trio.Event()

        async def own_engine() -> None:
            async with open_engine_process(python(FAMILY, "stubborn"), {}, heard.say, Ending(trio.Event())):
                await done.wait()

        nursery.start_soon(own_engine)
        await heard.wait_for(lambda lines: len(lines) == 2)
        done.set()
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(29.9)
        await trio.testing.wait_all_tasks_blocked()
        assert lives(heard.pid("leader"))
        mock_clock.jump(0.1)
    assert is_gone(heard.pid("leader"))
    assert is_gone(heard.pid("child"))
    assert trio.current_time() - began == pytest.approx(30.0)


async def test_groups_are_held_from_their_start_to_their_end() -> None:
    told: list[tuple[str, int]] = []
    ending = Ending(trio.Event(), lambda group: told.append(("hold", group)), lambda group: told.append(("let", group)))
    async with open_engine_process(python("pass"), {}, Listener().say, ending) as engine:
        assert told == [("hold", engine.pid)]
    assert told == [("hold", engine.pid), ("let", engine.pid)]


async def test_a_program_that_cannot_be_run_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--engine-python: cannot run /no/such/python: No such file"):
        async with open_engine_process(["/no/such/python"], {}, Listener().say, Ending(trio.Event())):
            pytest.fail("it cannot have started")


@given(st.lists(st.text(alphabet="aé\n\r", max_size=12)))
def test_lines_do_not_depend_on_how_the_bytes_were_cut(parts: list[str]) -> None:
    whole: list[str] = []
    splitter = LineSplitter(whole.append)
    splitter.feed("".join(parts).encode())
    splitter.finish()
    cut: list[str] = []
    splitter = LineSplitter(cut.append)
    for byte in "".join(parts).encode():
        splitter.feed(bytes([byte]))
    splitter.finish()
    assert cut == whole == [line for line in "".join(parts).replace("\r", "\n").split("\n") if line]


def test_a_line_without_end_is_passed_on_in_pieces() -> None:
    lines: list[str] = []
    splitter = LineSplitter(lines.append)
    for _ in range(50):
        splitter.feed(b"x" * 1000)
    splitter.finish()
    assert "".join(lines) == "x" * 50_000
    assert max(map(len, lines)) < 20_000
