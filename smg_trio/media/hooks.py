"""What is told while media are read and processed; the gateway makes metrics of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from smg_trio.core.media import Modality

Origin = Literal["inline", "fetched"]


def _ignore(*_: object) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class MediaHooks:
    """Callables that must neither block nor raise.

    Attributes:
        read: an item was read: modality, where from, its bytes, seconds from the start of reading (waiting for memory
            included).
        refused: an item was refused: modality, and the error's code (``invalid_media``, ``media_too_large``, …).
        looked_up: an item was looked up among those processed before, and was there or not.
        processed: an item was decoded and resized: modality, seconds, waiting for the helper process included.
        bytes_in_flight: what the media of all requests hold now; called at each change.
        waiting: requests that wait for memory now; called at each change.
    """

    read: Callable[[Modality, Origin, int, float], None] = _ignore
    refused: Callable[[Modality, str], None] = _ignore
    looked_up: Callable[[bool], None] = _ignore
    processed: Callable[[Modality, float], None] = _ignore
    bytes_in_flight: Callable[[int], None] = _ignore
    waiting: Callable[[int], None] = _ignore
