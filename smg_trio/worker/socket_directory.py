"""Rules for the directory that holds a worker's sockets. Blocking file-system calls, all of them tiny.

The data sockets carry prompts, so the directory is ours and no other user may write to it; leftovers of a gateway that
died are removed, but only if they are sockets; and one live gateway per path is enforced by a lock file.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from smg_trio.core.errors import ConfigError

logger = logging.getLogger("smg_trio.worker")

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_SHARED_ON_PURPOSE = stat.S_ISVTX | stat.S_ISGID


def default_socket_directory(environment: Mapping[str, str], user_id: int) -> str:
    """Where files of workers without a path of their own lie: ``$SMG_ZMQ_SOCKET_DIR``, or a private one in ``/tmp``."""
    return environment.get("SMG_ZMQ_SOCKET_DIR") or f"/tmp/smg-zmq-{user_id}"  # noqa: S108 - checked before use


def ensure_socket_directory(socket_path: str) -> None:
    """Create the parent of `socket_path` with mode 0700 if absent; check it otherwise.

    A directory that others may write to is set to 0700, with a warning: they could put sockets of their own in place
    of ours. One that is shared on purpose, such as ``/tmp`` (sticky) or a set-group-ID directory, is refused instead.

    Raises ConfigError if it is no directory (a symlink is none), belongs to another user, is shared, or cannot be made.
    """
    directory = Path(socket_path).parent
    try:
        status = directory.lstat()
    except FileNotFoundError:
        _make_directories(directory)
        status = directory.lstat()
    except OSError as error:
        raise _refusal(f"failed to stat ipc socket dir for {socket_path}: {error.strerror}") from None
    fault = directory_fault(directory, status, os.geteuid())
    if fault:
        raise _refusal(fault)
    if writable_by_others(status):
        _tighten(directory, status)


def directory_fault(directory: Path, status: os.stat_result, uid: int) -> str:
    """Why `uid` may not keep sockets in a directory that exists; empty if nothing speaks against it. Pure.

    `status` is what lstat said of it.
    """
    if not stat.S_ISDIR(status.st_mode):
        return f"ipc socket dir {directory} exists but is not a directory"
    if status.st_uid != uid:
        return (
            f"ipc socket dir {directory} is owned by uid {status.st_uid} (expected {uid}); refusing to bind "
            "unauthenticated ZMQ sockets in a directory owned by another user"
        )
    if writable_by_others(status) and status.st_mode & _SHARED_ON_PURPOSE:
        own = directory / f"smg-zmq-{uid}" / "engine-0"
        return (
            f"ipc socket dir {directory} is shared with other users (mode {stat.S_IMODE(status.st_mode):04o}), who "
            f"could reach the ZMQ sockets; use a directory below it, such as ipc://{own}, which is created with mode "
            "0700"
        )
    return ""


def writable_by_others(status: os.stat_result) -> bool:
    """Whether other users may put sockets of their own into a directory. Pure."""
    return bool(status.st_mode & _WRITABLE_BY_OTHERS)


def _tighten(directory: Path, seen: os.stat_result) -> None:
    mode = f"{stat.S_IMODE(seen.st_mode):04o}"
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not os.path.samestat(os.fstat(descriptor), seen):
                raise _refusal(f"ipc socket dir {directory} was replaced while it was being checked")
            os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _refusal(f"failed to set the mode of ipc socket dir {directory}: {error.strerror}") from None
    logger.warning("ipc socket dir %s had mode %s: others could write to it; set to 0700", directory, mode)


def _make_directories(directory: Path) -> None:
    missing = [directory]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise _refusal(f"failed to create ipc socket dir for {directory}: {error.strerror}") from None


def remove_stale_socket(path: str) -> bool:
    """Unlink a socket left at `path`; True if there was one. Raises ConfigError for anything that is no socket."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _refusal(f"failed to stat ipc socket path {path}: {error.strerror}") from None
    if not stat.S_ISSOCK(mode):
        raise _refusal(f"ipc socket path {path} exists but is not a socket; refusing to unlink")
    try:
        os.unlink(path)
    except OSError as error:
        raise _refusal(f"failed to remove stale ipc socket {path}: {error.strerror}") from None
    return True


class SocketPathLock:
    """An exclusive lock on ``<path>.lock``: held while a gateway owns the sockets at `path`.

    The kernel drops it when the process ends, however it ends, so a lock that can be taken proves that the
    sockets beside it are stale.
    """

    def __init__(self, socket_path: str) -> None:
        self._path = f"{socket_path}.lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock. Raises ConfigError if a live gateway holds it or the lock file cannot be one."""
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise _refusal(f"another live gateway serves the sockets at {self._path[:-5]}") from None
            raise
        self._descriptor = descriptor

    def _open(self) -> int:
        try:
            descriptor = os.open(
                self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
            )
        except OSError as error:
            raise _refusal(f"failed to open the lock file {self._path}: {error.strerror}") from None
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            return descriptor
        os.close(descriptor)
        # The user who made it may hold a lock on it permanently.
        raise _refusal(f"the lock file {self._path} is not a regular file of uid {os.geteuid()}; remove it")

    def release(self) -> None:
        """Drop the lock and its file; idempotent."""
        if self._descriptor is None:
            return
        # Unlinked while still locked: the next process that opens the name gets a file of its own.
        Path(self._path).unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None


def _refusal(problem: str) -> ConfigError:
    return ConfigError("--worker-urls", problem)
