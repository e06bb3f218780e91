"""The in-flight ledger: which request is at which rank, pure. Each request ends exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from smg_trio.core.errors import InvalidRequest

DeliveryT = TypeVar("DeliveryT")


class InFlight(Generic[DeliveryT]):
    """One request in flight.

    Attributes:
        request_id: as the engine knows it.
        rank: the engine that has it.
        delivery: where its outputs go (opaque to this room's pure parts).
        sent: whether the engine has been told of it.
        ended: whether it has left the ledger, for whatever reason.
        queue_s: seconds in the engine's queue, once the engine has said.
    """

    __slots__ = ("delivery", "ended", "queue_s", "rank", "request_id", "sent")

    def __init__(self, request_id: str, rank: int, delivery: DeliveryT) -> None:
        self.request_id = request_id
        self.rank = rank
        self.delivery = delivery
        self.sent = False
        self.ended = False
        self.queue_s: float | None = None


class Ledger(Generic[DeliveryT]):
    """All requests in flight at one worker, by id and counted by rank.

    A request enters by `open` and leaves by `end`, once; ending it again is harmless and says so.
    """

    def __init__(self, rank_count: int) -> None:
        self.entries: dict[str, InFlight[DeliveryT]] = {}
        self._by_rank: list[dict[str, InFlight[DeliveryT]]] = [{} for _ in range(rank_count)]

    def __len__(self) -> int:
        return len(self.entries)

    def open(self, request_id: str, rank: int, delivery: DeliveryT) -> InFlight[DeliveryT]:
        """Enter a request. Raises InvalidRequest if its id is already in flight (it would end the engine)."""
        if request_id in self.entries:
            raise InvalidRequest(f"request `{request_id}` is already in flight", param="request_id")
        entry = InFlight(request_id, rank, delivery)
        self.entries[request_id] = entry
        self._by_rank[rank][request_id] = entry
        return entry

    def end(self, entry: InFlight[DeliveryT]) -> bool:
        """Take a request out; False if it had already left."""
        if entry.ended:
            return False
        entry.ended = True
        del self.entries[entry.request_id]
        del self._by_rank[entry.rank][entry.request_id]
        return True

    def anywhere(self) -> bool:
        """Whether anything is in flight at the worker, whichever process of the gateway sent it."""
        return bool(self.entries)

    def in_flight(self, rank: int) -> int:
        """Number of requests at `rank`."""
        return len(self._by_rank[rank])

    def of_rank(self, rank: int) -> Iterator[InFlight[DeliveryT]]:
        """The requests at `rank`; safe to end them while iterating."""
        return iter(list(self._by_rank[rank].values()))
