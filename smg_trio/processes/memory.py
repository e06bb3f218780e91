"""The memory that all processes of a gateway have mapped: an anonymous file, passed on by its descriptor."""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress

from smg_trio.core.board import Board, board_bytes


class SharedBoard:
    """A board in shared memory.

    Attributes:
        descriptor: of the memory; for processes that are started to inherit.
    """

    def __init__(self, descriptor: int, processes: int) -> None:
        """Map the memory behind a descriptor, which another process may have made."""
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, board_bytes(processes))
        self.board = Board(memoryview(self._map), processes)

    @classmethod
    def create(cls, processes: int) -> SharedBoard:
        """New memory, all zeros."""
        descriptor = _anonymous_file()
        os.ftruncate(descriptor, board_bytes(processes))
        return cls(descriptor, processes)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        with suppress(OSError):  # a sandbox may forbid it
            return os.memfd_create("smg-trio-board")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
