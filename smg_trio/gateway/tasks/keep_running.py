"""Keeps a failure of one of the gateway's own tasks from ending the gateway.

These tasks run side by side in one nursery, and what one of them raises cancels the others, the HTTP server included.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

logger = logging.getLogger("smg_trio.gateway")

_PAUSE_S = 1.0
"""Before a task that failed is started again: what fails at each start must not take the whole loop."""


async def keep_running(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Await `run` until it returns; whenever it raises, log the exception and start it again after a second.

    `run` must be able to start anew from whatever state it left behind. Raises nothing but cancellation.
    """
    while True:
        try:
            await run()
        except Exception:
            logger.exception("%s failed; it is started again in %g s", name, _PAUSE_S)
        else:
            return
        await trio.sleep(_PAUSE_S)
