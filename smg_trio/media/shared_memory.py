"""Memory that a helper process wrote, mapped into the gateway, and given back without holding up the loop."""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import weakref
from typing import Final

import trio

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE
_FREED_AT_ONCE_BYTES: Final = 1 << 20
"""Memory that the kernel takes back in a fraction of a millisecond."""


class SharedMemory:
    """Maps memory, and closes its descriptor in a thread once nobody looks at it any more.

    The kernel takes back a large item's pages when its last user lets go of them: 30 ms for 72 MB were measured. A
    mapping ends where its last view does, which may be in the loop. So each descriptor is kept open beyond its mapping,
    and it is the close in a thread that frees the pages.
    """

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[int](math.inf)
        self._token: trio.lowlevel.TrioToken | None = None

    async def run(self) -> None:
        """Close what is let go of, until cancelled; what is let go of later is closed where that happens."""
        self._token = trio.lowlevel.current_trio_token()
        try:
            async for descriptor in self._receive:
                await trio.to_thread.run_sync(os.close, descriptor)
        finally:
            self._token = None
            with contextlib.suppress(trio.WouldBlock):
                while True:
                    os.close(self._receive.receive_nowait())

    def map(self, descriptor: int) -> mmap.mmap:
        """A view of the memory, which owns the descriptor.

        Raises:
            ValueError, OSError: its size or its bytes could still be changed, or it is empty; the descriptor is closed.
        """
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ValueError("memory that is not sealed")
            mapped = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except BaseException:
            os.close(descriptor)
            raise
        weakref.finalize(mapped, self._let_go, descriptor, len(mapped)).atexit = False
        return mapped

    def _let_go(self, descriptor: int, size: int) -> None:
        """In whichever thread the last view ended."""
        token = self._token
        if size > _FREED_AT_ONCE_BYTES and token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(self._close_soon, descriptor)
                return
        os.close(descriptor)

    def _close_soon(self, descriptor: int) -> None:
        if self._token is None:
            os.close(descriptor)
        else:
            self._send.send_nowait(descriptor)
