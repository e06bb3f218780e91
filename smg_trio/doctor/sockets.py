"""Workers' socket paths: the directory and its rights, what is left in it, and who serves the sockets now."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from smg_trio.doctor.findings import Check, Finding, Status
from smg_trio.worker.socket_directory import directory_fault, writable_by_others

if TYPE_CHECKING:
    from smg_trio.doctor.host import Host, Process
    from smg_trio.wire.addresses import WorkerAddresses


@dataclass(frozen=True, slots=True)
class SocketPath:
    """What the file system says about a worker's sockets.

    Attributes:
        directory: that holds them.
        status: of the directory by lstat, None if it is absent.
        failure: why it cannot be looked at, empty if it can.
        ancestor: the nearest directory that exists, if it is absent.
        writable: whether this user may make files in the directory, or in the ancestor.
        not_sockets: files in the sockets' places that are something else.
        lock: of the lock file by lstat, None if it is absent.
    """

    directory: Path
    status: os.stat_result | None
    failure: str
    ancestor: Path
    writable: bool
    not_sockets: tuple[str, ...] = ()
    lock: os.stat_result | None = None


def read_socket_path(addresses: WorkerAddresses) -> SocketPath:
    """Look at a worker's directory and files. Blocking, quick; changes nothing."""
    directory = Path(addresses.input_path).parent
    status, failure = _lstat(str(directory))
    ancestor = directory
    while not os.path.lexists(ancestor) and ancestor != ancestor.parent:
        ancestor = ancestor.parent
    others = []
    for path in (addresses.input_path, addresses.output_path):
        found, _ = _lstat(path)
        if found is not None and not stat.S_ISSOCK(found.st_mode):
            others.append(path)
    lock, _ = _lstat(f"{addresses.path}.lock")
    writable = os.access(ancestor, os.W_OK | os.X_OK)
    return SocketPath(directory, status, failure, ancestor, writable, tuple(others), lock)


def _lstat(path: str) -> tuple[os.stat_result | None, str]:
    try:
        return os.lstat(path), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, str(error.strerror)


def check_socket_path(url: str, path: SocketPath, uid: int) -> Iterator[Finding]:
    """Whether a gateway of user `uid` can have its sockets there. Pure."""
    yield _directory_finding(url, path, uid)
    for file in path.not_sockets:
        yield _problem(
            url, f"{file} exists and is not a socket.", f"Remove {file}, or name another --worker-urls path."
        )
    if path.lock is not None and not (stat.S_ISREG(path.lock.st_mode) and path.lock.st_uid == uid):
        yield _problem(
            url,
            f"the lock file beside the sockets is not a regular file of uid {uid}.",
            "Remove it, or name a --worker-urls path in a directory of this user's own.",
        )


def _directory_finding(url: str, path: SocketPath, uid: int) -> Finding:
    directory = path.directory
    if path.failure:
        return _problem(url, f"{directory} cannot be looked at: {path.failure}.", _other_directory(uid))
    if path.status is None:
        if path.writable:
            return Finding(Check.SOCKETS, Status.OK, url, f"{directory} will be created with mode 0700")
        text = f"{directory} is absent and uid {uid} may not create it in {path.ancestor}."
        return _problem(url, text, f"Run: install -d -m 0700 -o USER {directory}, for the gateway's user; or: "
                        + _other_directory(uid))  # fmt: skip
    fault = directory_fault(directory, path.status, uid)
    if fault:
        return _problem(url, f"{fault}.", _other_directory(uid))
    if not path.writable:
        return _problem(url, f"uid {uid} may not create files in {directory}.", f"Run: chmod 0700 {directory}")
    mode = f"{stat.S_IMODE(path.status.st_mode):04o}"
    if writable_by_others(path.status):
        text = f"{directory} has mode {mode}: others may write to it; the gateway will set it to 0700"
        return Finding(Check.SOCKETS, Status.WARNING, url, text, f"Run: chmod 0700 {directory}")
    return Finding(Check.SOCKETS, Status.OK, url, f"{directory} belongs to uid {uid}, mode {mode}")


def _other_directory(uid: int) -> str:
    return f"Name a path in a directory that only uid {uid} may write to, such as ipc:///run/user/{uid}/smg/w0."


def _problem(url: str, text: str, remedy: str) -> Finding:
    return Finding(Check.SOCKETS, Status.PROBLEM, url, text, remedy)


def serving_pids(addresses: WorkerAddresses, path: SocketPath, host: Host) -> set[int]:
    """The processes of a live gateway that serves these sockets, as far as they can be seen. Pure."""
    pids = {process.pid for process in _listening(addresses, host)}
    holder = host.locks.get(path.lock.st_ino) if path.lock is not None else None
    if holder is not None and is_served(addresses, host):
        pids.add(holder)
    return pids


def is_served(addresses: WorkerAddresses, host: Host) -> bool:
    """Whether somebody listens on these sockets. Pure."""
    return any(one.listening and one.path == addresses.input_path for one in host.unix)


def _listening(addresses: WorkerAddresses, host: Host) -> list[Process]:
    return host.holders({one.inode for one in host.unix if one.listening and one.path == addresses.input_path})


def check_served(url: str, addresses: WorkerAddresses, pids: set[int], host: Host) -> Iterator[Finding]:
    """Say who serves the sockets now. Pure."""
    if pids:
        who = ", ".join(str(host.processes.get(pid, f"process {pid}")) for pid in sorted(pids))
        yield Finding(Check.SOCKETS, Status.NOTE, url, f"served by a running gateway: {who}")
    elif is_served(addresses, host):
        yield Finding(
            Check.SOCKETS, Status.NOTE, url, "served by a running gateway, whose process cannot be seen from here"
        )
