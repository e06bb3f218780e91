"""Ends the engines if ``serve`` itself is killed: a small process that outlives it for that purpose.

Engines live in sessions of their own, so nothing else would end them, and they would keep their GPUs. It reads
a pipe of which only ``serve`` holds the other end: lines ``+<group>`` and ``-<group>`` say which process groups live,
and the pipe's end, which the kernel brings about however ``serve`` ended, says that the rest must go: SIGTERM, and
SIGKILL after a while. Run as a script, it imports nothing outside the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable

TERMINATE_LIMIT_S = 30.0
_LOOK_EVERY_S = 0.1


def main(lines: Iterable[str]) -> None:
    """Follow the lines until they end, then end every group that still lives."""
    # A signal to many processes that ends serve must not end the orphan guard before its work.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_groups(follow(lines))


def follow(lines: Iterable[str]) -> set[int]:
    """The groups that live when the lines end."""
    groups: set[int] = set()
    for line in lines:
        sign, group = line[:1], line[1:].strip()
        # The last line may be cut off: serve can die at any byte.
        if not line.endswith("\n") or not group.isdigit():
            continue
        if sign == "+":
            groups.add(int(group))
        else:
            groups.discard(int(group))
    return groups


def end_groups(groups: set[int]) -> None:
    """SIGTERM to all, SIGKILL to those that are left after the limit."""
    deadline = time.monotonic() + TERMINATE_LIMIT_S
    pause = threading.Event()
    living = {group for group in groups if _signal(group, signal.SIGTERM)}
    while living and time.monotonic() < deadline:
        pause.wait(_LOOK_EVERY_S)
        living = {group for group in living if _signal(group, 0)}
    for group in living:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    main(sys.stdin)
