"""CPU time and memory of other processes, and which core they run on. Linux."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for known in found:
        for task in Path(f"/proc/{known}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def cpu_s(pid: int) -> float:
    """User and system time of a process tree so far, all threads, ended ones included.

    The kernel's CPU clock of the process (clock_getcpuclockid(3)) counts in nanoseconds; utime + stime of
    /proc/PID/stat, the same quantity, counts in hundredths of a second.
    """
    return sum(time.clock_gettime(~one << 3 | 2) for one in tree(pid))


def waited_s(pid: int) -> float:
    """How long a process tree's living threads have been ready to run while others had the core."""
    files = (file for one in tree(pid) for file in Path(f"/proc/{one}/task").glob("*/schedstat"))
    return sum(int(file.read_text().split()[1]) for file in files) / 1e9


def rss_mb(pid: int) -> float:
    """Resident memory of a process tree, 10^6 bytes."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in tree(pid)) * page / 1e6


def start(
    command: Sequence[str], *, cores: set[int], env: Mapping[str, str], log: IO[bytes], pipes: bool = False
) -> subprocess.Popen[bytes]:
    """Start a command on some cores, its own process group, output to `log` (or stdin and stdout to pipes)."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        channel: Any = subprocess.PIPE if pipes else None
        return subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdin=channel or subprocess.DEVNULL,
            stdout=channel or log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.sched_setaffinity(0, before)


def stop(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes: SIGTERM to all, SIGKILL to what still runs five seconds later."""
    for process in running:
        process.terminate()
    deadline = time.monotonic() + 5
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def calibration_us() -> float:
    """Time of a fixed loop of plain Python on the caller's core, best of five: the machine's speed today."""
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        total = 0
        for number in range(100_000):
            total += number ^ (total & 0xFF)
        best = min(best, time.perf_counter() - began)
    return round(best * 1e6, 1)
