"""What the log says only once in a process: things that hold for many requests alike."""

from __future__ import annotations

import logging
from typing import Final

logger = logging.getLogger(__name__)

_MOST: Final = 1000
"""Different notes; nothing that a client makes up may fill the log or the memory."""


class Notes:
    """Notes already written."""

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written: set[str] = set()

    def once(self, text: str) -> None:
        """Log `text`, unless it was logged before."""
        if text not in self._written and len(self._written) < _MOST:
            self._written.add(text)
            logger.warning("%s", text)
