"""Forgets what has been kept for long enough."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from smg_trio.history.base import HistoryUnavailable

if TYPE_CHECKING:
    from smg_trio.history.base import HistoryStore

logger = logging.getLogger("smg_trio.history")

_SHORTEST_S: Final = 1.0
_LONGEST_S: Final = 600.0


async def keep_forgetting(store: HistoryStore, retention_s: float) -> None:
    """Forget what is older than the retention, again after a tenth of it (1 s to 10 min), until it is cancelled."""
    while True:
        try:
            forgotten = await store.forget_old(retention_s)
        except HistoryUnavailable:
            pass  # the store has said so
        else:
            if forgotten:
                logger.info("forgot %d stored responses and conversations older than %g s", forgotten, retention_s)
        await trio.sleep(min(max(retention_s / 10, _SHORTEST_S), _LONGEST_S))
