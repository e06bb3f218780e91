from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial

import trio

from smg_trio.launcher import orphan_guard
from smg_trio.launcher.orphan_guard_client import open_orphan_guard

IDLE = "import signal; print('up', flush=True); signal.pause()"


def idle_group() -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", IDLE], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    return child


def test_the_leash_knows_who_lives_from_whole_lines_only() -> None:
    assert orphan_guard.follow(["+12\n", "+34\n", "-12\n", "+5\n", "nonsense\n", "+\n", "+678"]) == {34, 5}
    assert orphan_guard.follow([]) == set()


async def test_what_is_held_when_serve_goes_is_ended() -> None:
    held, released = idle_group(), idle_group()
    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                # Reaped at once, as whoever inherits the engines of a dead serve does.
                nursery.start_soon(partial(trio.to_thread.run_sync, held.wait))
                async with open_orphan_guard(trio.Event()) as ending:
                    ending.hold(held.pid)
                    ending.hold(released.pid)
                    ending.release(released.pid)
        assert held.returncode == -signal.SIGTERM
        assert released.poll() is None
    finally:
        for child in (held, released):
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


async def test_a_leash_that_is_gone_is_no_trouble() -> None:
    with trio.fail_after(20):
        earlier = _children()
        async with open_orphan_guard(trio.Event()) as ending:
            [pid] = _children() - earlier  # its command line is not there yet while the kernel starts it
            os.kill(pid, signal.SIGKILL)
            await trio.to_thread.run_sync(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            ending.hold(1)
            ending.release(1)


def _children() -> set[int]:
    """Found in the table of all processes: a thread's list of its own children may miss one."""
    return {int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _is_child(entry)}


def _is_child(entry: str) -> bool:
    try:
        with open(f"/proc/{entry}/status") as status:
            return f"\nPPid:\t{os.getpid()}\n" in status.read()
    except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
        return False
