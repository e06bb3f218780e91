"""Waiting for what other tasks or the other side of a connection bring about."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from trio.abc import ReceiveStream

PATIENCE_S = 10.0
"""No wait of a test is longer; none comes near it unless something is wrong."""


async def until(holds: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds that no event announces."""
    with trio.fail_after(limit_s):
        while not holds():
            await trio.lowlevel.checkpoint()


async def read_to_end(stream: ReceiveStream) -> bytes:
    """All that comes until the other side closes; a reset counts as the end."""
    data = b""
    with trio.fail_after(PATIENCE_S):
        try:
            async for piece in stream:
                data += piece
        except trio.BrokenResourceError:
            pass
    return data
