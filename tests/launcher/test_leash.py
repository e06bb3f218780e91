from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial

import trio

from smg_trio.launcher import leash
from smg_trio.launcher.leashing import open_leash

IDLE = "import signal; print('up', flush=True); signal.pause()"


def idle_group() -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", IDLE], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    return child


def test_the_leash_knows_who_lives_from_whole_lines_only() -> None:
    assert leash.follow(["+12\n", "+34\n", "-12\n", "+5\n", "nonsense\n", "+\n", "+678"]) == {34, 5}
    assert leash.follow([]) == set()


async def test_what_is_held_when_serve_goes_is_ended() -> None:
    held, released = idle_group(), idle_group()
    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                # Reaped at once, as whoever inherits the engines of a dead serve does.
                nursery.start_soon(partial(trio.to_thread.run_sync, held.wait))
                async with open_leash(trio.Event()) as ending:
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
        async with open_leash(trio.Event()) as ending:
            [pid] = [int(word) for word in _children() if word not in earlier and _is_leash(int(word))]
            os.kill(pid, signal.SIGKILL)
            await trio.to_thread.run_sync(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            ending.hold(1)
            ending.release(1)


def _children() -> list[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        own = file.read().split()
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children") as file:
            own += file.read().split()
    return sorted(set(own))


def _is_leash(pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return leash.__file__.encode() in file.read()
