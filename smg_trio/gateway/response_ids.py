"""Which response ids are in use by requests being answered now, and which workers behind HTTP keep which response.

Clients may choose the id of a response, and a client that retries chooses the same one again. An id has one request at
a time; what is kept in the history is asked there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from smg_trio.core.errors import Conflict


class ResponseIds:
    """The ids in use."""

    def __init__(self) -> None:
        self._in_use: set[str] = set()

    @contextmanager
    def claim(self, response_id: str) -> Iterator[None]:
        """Use an id until the block is left. Raises Conflict while another request uses it."""
        if response_id in self._in_use:
            raise id_in_use(response_id)
        self._in_use.add(response_id)
        try:
            yield
        finally:
            self._in_use.discard(response_id)


def id_in_use(response_id: str) -> Conflict:
    """What a second request with the id is answered, whether the first is running or kept."""
    return Conflict(
        f"request_id '{response_id}' is in use by another response; choose another one, or leave it out.",
        param="request_id",
    )


_MOST_PINNED: Final = 100_000


class Pin(NamedTuple):
    """Which worker keeps a response, and whose it is (see `KeyRing.owner`)."""

    worker_id: str
    owner: str


class ResponsePins:
    """Which worker behind HTTP keeps which response; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._pins: OrderedDict[str, Pin] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pins)

    def note(self, response_id: str, worker_id: str, owner: str) -> None:
        """A worker has made the response."""
        self._pins[response_id] = Pin(worker_id, owner)
        self._pins.move_to_end(response_id)
        if len(self._pins) > _MOST_PINNED:
            self._pins.popitem(last=False)

    def find(self, response_id: str) -> Pin | None:
        """Where it is; None if that is not known."""
        return self._pins.get(response_id)

    def forget(self, response_id: str) -> None:
        """It has been deleted."""
        self._pins.pop(response_id, None)
