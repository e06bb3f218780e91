"""Single keys from a terminal, without Enter; the terminal is as it was afterwards."""

from __future__ import annotations

import os
import termios
import tty
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

import trio


class Keys:
    """Where keys come from."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    async def next_keys(self) -> str:
        """Wait for keys; "" at the terminal's end."""
        await trio.lowlevel.wait_readable(self._fd)
        try:
            return os.read(self._fd, 64).decode("utf-8", "replace")
        except OSError:
            return ""


@asynccontextmanager
async def open_keys(stream: TextIO) -> AsyncIterator[Keys | None]:
    """Keys of the terminal behind `stream`; None if it is none. Ctrl-C stays an interrupt."""
    if not stream.isatty():
        yield None
        return
    fd = stream.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield Keys(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
