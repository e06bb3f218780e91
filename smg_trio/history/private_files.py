"""Keeps the files of the SQLite history, which hold what clients asked and were told, to the user of the gateway."""

from __future__ import annotations

import logging
import os
import stat
from typing import Final

logger = logging.getLogger("smg_trio.history")

_MODE: Final = 0o600
_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")
"""Of the files beside the database; SQLite gives those that it makes the database's own mode."""
IN_MEMORY: Final = ":memory:"


def create_private(path: str) -> None:
    """Make an empty file that only this user can read, unless there is one. Raises OSError."""
    if path == IN_MEMORY:
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    except FileExistsError:
        return
    try:
        os.fchmod(descriptor, _MODE)  # whatever the umask has left of it
    finally:
        os.close(descriptor)


def warn_of_open_files(path: str) -> None:
    """Say in the log which of the database's files other users can open; it is for the operator to change that."""
    found = [name for name in (path + suffix for suffix in _SUFFIXES) if _is_open_to_others(name)]
    if path != IN_MEMORY and found:
        names = " ".join(found)
        logger.warning("other users of this host can open the stored responses (chmod 600 %s closes them)", names)


def _is_open_to_others(path: str) -> bool:
    try:
        return bool(stat.S_IMODE(os.stat(path).st_mode) & 0o077)
    except OSError:
        return False
