"""Background responses whose front has ended: they are failed, for nobody generates them any more."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smg_trio.core.errors import SmgError

if TYPE_CHECKING:
    from smg_trio.history.base import HistoryStore
    from smg_trio.processes.front_process import Front

logger = logging.getLogger("smg_trio.processes")

_UNFINISHED = ("queued", "in_progress")


async def fail_unfinished(front: Front, history: HistoryStore | None) -> None:
    """Keep every response that a front had not finished when it ended as failed."""
    unfinished, front.background = front.background, {}
    if history is None:
        return
    for response_id, owner in unfinished.items():
        try:
            await _fail(history, response_id, owner)
        except SmgError as error:
            logger.warning("background response %s cannot be kept as failed: %s", response_id, error.message)


async def _fail(history: HistoryStore, response_id: str, owner: str) -> None:
    found = await history.get_response(response_id, owner)
    if found is None or found.value.get("status") not in _UNFINISHED:
        return
    error = {"code": "server_error", "message": "The process that generated the response has ended."}
    value: dict[str, Any] = {**found.value, "status": "failed", "error": error}
    await history.update_response(replace(found, value=value))
