"""Which workers behind HTTP keep which responses: noted here, so that requests about them find the worker.

A worker knows this gateway's key alone, so it cannot tell whose a response is; that is noted too.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple, Protocol

import trio

from smg_trio.core.conversations import is_visible

MOST_RELAYED: Final = 100_000


class RelayedResponse(NamedTuple):
    """Which worker keeps a response, and whether the key holder who asks may see it."""

    worker_url: str
    visible: bool


class RelayedResponses(Protocol):
    """What a history store keeps of them. See `HistoryStore` for owners, errors and cancellation."""

    async def put_relayed(self, response_id: str, worker_url: str, owner: str) -> None:
        """A worker has made the response. Nothing changes if it is noted for another owner."""
        ...

    async def find_relayed(self, response_id: str, owner: str) -> RelayedResponse | None:
        """Where it is; None if that is not known."""
        ...

    async def delete_relayed(self, response_id: str, owner: str) -> None:
        """It has been deleted at its worker."""
        ...


class RelayedInMemory:
    """See `RelayedResponses`. No call waits; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._relayed: OrderedDict[str, tuple[str, str, float]] = OrderedDict()

    async def put_relayed(self, response_id: str, worker_url: str, owner: str) -> None:
        """See `RelayedResponses.put_relayed`."""
        before = self._relayed.get(response_id)
        if before is not None and before[1] != owner:
            return
        self._relayed[response_id] = worker_url, owner, trio.current_time()
        self._relayed.move_to_end(response_id)
        if len(self._relayed) > MOST_RELAYED:
            self._relayed.popitem(last=False)

    async def find_relayed(self, response_id: str, owner: str) -> RelayedResponse | None:
        """See `RelayedResponses.find_relayed`."""
        found = self._relayed.get(response_id)
        return None if found is None else RelayedResponse(found[0], is_visible(found[1], owner))

    async def delete_relayed(self, response_id: str, owner: str) -> None:
        """See `RelayedResponses.delete_relayed`."""
        found = self._relayed.get(response_id)
        if found is not None and is_visible(found[1], owner):
            del self._relayed[response_id]

    def _forget_relayed(self, moment: float) -> int:
        """Forget what was noted before that moment on trio's clock; how many."""
        forgotten = 0
        while self._relayed and next(iter(self._relayed.values()))[2] < moment:
            self._relayed.popitem(last=False)
            forgotten += 1
        return forgotten
