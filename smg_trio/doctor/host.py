"""What Linux tells about sockets, locks and processes of this host. The parsers are pure; `read_host` reads ``/proc``.

The tables are those of one network namespace; processes are those of one PID namespace, and what other users' processes
hold open is told to root only. So "nobody" here means "nobody that can be seen".
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Final

_TCP_LISTEN, _TCP_ESTABLISHED = "0A", "01"  # include/net/tcp_states.h
_UNIX_ACCEPTS: Final = 0x10000  # __SO_ACCEPTCON in the flags of /proc/net/unix
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_SHOWN_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """One row of ``/proc/net/tcp`` or ``tcp6``. `listening`: accepts connections; else it is one, or waits to be."""

    port: int
    remote_port: int
    listening: bool
    established: bool
    inode: int


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """One row of ``/proc/net/unix`` that has a path: a listener, or a connection that was accepted from it."""

    path: str
    listening: bool
    inode: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process; `sockets` are the inodes of those it holds, empty where that may not be seen."""

    pid: int
    parent: int
    words: tuple[str, ...]
    sockets: frozenset[int] = frozenset()

    def __str__(self) -> str:
        # Options may hold keys, and reports are passed on.
        words = list(takewhile(lambda word: word == "-m" or not word.startswith("-"), self.words))
        command = " ".join([*map(os.path.basename, words[:1]), *words[1:]])[:_SHOWN_CHARS]
        return f"process {self.pid} ({command})" if command else f"process {self.pid}"


@dataclass(frozen=True, slots=True)
class Host:
    """This host at one moment.

    Attributes:
        uid: the effective user of the doctor, whom the gateway is taken to run as.
        tcp, unix: sockets of the network namespace.
        locks: pid that holds a lock, by the inode of the locked file.
        processes: by pid.
    """

    uid: int
    tcp: tuple[TcpSocket, ...] = ()
    unix: tuple[UnixSocket, ...] = ()
    locks: Mapping[int, int] = field(default_factory=dict)
    processes: Mapping[int, Process] = field(default_factory=dict)

    def listeners(self, port: int) -> list[TcpSocket]:
        """The TCP sockets that listen on a port, of whichever address."""
        return [one for one in self.tcp if one.listening and one.port == port]

    def holders(self, inodes: Collection[int]) -> list[Process]:
        """The processes that hold one of these sockets, as far as they can be seen."""
        wanted = frozenset(inodes)
        return [process for process in self.processes.values() if process.sockets & wanted]

    def is_of(self, process: Process, pids: Collection[int]) -> bool:
        """Whether a process is one of `pids`, or was started by one of them, directly or not."""
        seen: set[int] = set()
        pid = process.pid
        while pid not in seen:
            if pid in pids:
                return True
            seen.add(pid)
            pid = self.processes[pid].parent if pid in self.processes else pid
        return False


def tcp_sockets(table: str) -> Iterator[TcpSocket]:
    """The rows of ``/proc/net/tcp`` or ``/proc/net/tcp6``."""
    for row in table.splitlines()[1:]:
        columns = row.split()
        if len(columns) < 10:
            continue
        _, local, remote, state = columns[:4]
        yield TcpSocket(
            port=int(local.rpartition(":")[2], 16),
            remote_port=int(remote.rpartition(":")[2], 16),
            listening=state == _TCP_LISTEN,
            established=state == _TCP_ESTABLISHED,
            inode=int(columns[9]),
        )


def unix_sockets(table: str) -> Iterator[UnixSocket]:
    """The rows of ``/proc/net/unix`` that have a path; paths are as they were bound, relative ones too."""
    for row in table.splitlines()[1:]:
        columns = row.split(maxsplit=7)
        if len(columns) == 8:
            yield UnixSocket(columns[7], bool(int(columns[3], 16) & _UNIX_ACCEPTS), int(columns[6]))


def lock_holders(table: str) -> dict[int, int]:
    """Who holds the locks of ``/proc/locks``: pid by inode; those who wait for one are left out."""
    holders: dict[int, int] = {}
    for row in table.splitlines():
        columns = row.split()
        if len(columns) >= 6 and columns[1] != "->":
            holders[int(columns[5].rpartition(":")[2])] = int(columns[4])
    return holders


def read_host() -> Host:
    """This host now; what cannot be read is left out. Blocking, some milliseconds."""
    tcp = [socket for name in ("tcp", "tcp6") for socket in tcp_sockets(_text(f"/proc/net/{name}"))]
    unix = unix_sockets(_text("/proc/net/unix"))
    processes = {process.pid: process for process in _processes()}
    return Host(os.geteuid(), tuple(tcp), tuple(unix), lock_holders(_text("/proc/locks")), processes)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _processes() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            words = tuple(word for word in _text(f"/proc/{name}/cmdline").split("\0") if word)
            # The name of the program in the second column may hold blanks and brackets.
            after_name = _text(f"/proc/{name}/stat").rpartition(")")[2].split()
            if len(after_name) > 1:
                yield Process(int(name), int(after_name[1]), words, frozenset(_sockets_of(name)))


def _sockets_of(pid: str) -> Iterator[int]:
    with suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found = _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
                if found:
                    yield int(found[1])
