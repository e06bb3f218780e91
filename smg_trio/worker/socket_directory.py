"""Rules for the directory that holds a worker's sockets. Blocking file-system calls, all of them tiny.

The data sockets carry prompts, so the directory is 0700 and ours; leftovers of a gateway that died are removed, but
only if they are sockets; and one live gateway per path is enforced by a lock file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

from smg_trio.core.errors import ConfigError


def ensure_socket_directory(socket_path: str) -> None:
    """Create the parent of `socket_path` with mode 0700 if absent; check it otherwise.

    Raises ConfigError if it is no directory (a symlink is none), belongs to another user, or cannot be made.
    """
    directory = Path(socket_path).parent
    try:
        status = directory.lstat()
    except FileNotFoundError:
        _make_directories(directory)
        status = directory.lstat()
    except OSError as error:
        raise _refusal(f"failed to stat ipc socket dir for {socket_path}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise _refusal(f"ipc socket dir {directory} exists but is not a directory")
    if status.st_uid != os.geteuid():
        raise _refusal(
            f"ipc socket dir {directory} is owned by uid {status.st_uid} (expected {os.geteuid()}); refusing to bind "
            "unauthenticated ZMQ sockets in a directory owned by another user"
        )


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
        """Take the lock. Raises ConfigError if a live gateway holds it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise _refusal(f"another live gateway serves the sockets at {self._path[:-5]}") from None
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Drop the lock and its file; idempotent."""
        if self._descriptor is None:
            return
        # Unlinked while still locked: whoever opens the name next gets a file of their own.
        Path(self._path).unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None


def _refusal(problem: str) -> ConfigError:
    return ConfigError("--worker-urls", problem)
