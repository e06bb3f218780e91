"""What the log says only once in a process: things that hold for many requests alike."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

logger = logging.getLogger("smg_trio.pipeline")

_MOST: Final = 1000
"""Different notes; nothing that a client makes up may fill the log or the memory."""


class Notes:
    """Notes already written."""

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written: set[str] = set()

    def once(self, texts: Iterable[str], subject: str = "") -> None:
        """Log each of `texts`, which are about `subject`, unless it was logged before."""
        for text in texts:
            line = f"{subject}: {text}" if subject else text
            if line not in self._written and len(self._written) < _MOST:
                self._written.add(line)
                logger.warning("%s", line)
