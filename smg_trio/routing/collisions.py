"""Workers that cannot exist beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from smg_trio.core.errors import Conflict
from smg_trio.routing.pending_workers import url_taken

if TYPE_CHECKING:
    from smg_trio.worker.nursery import Worker


def refuse_collision(worker: Worker, others: Iterable[Worker]) -> None:
    """Raises Conflict if the worker would have another one's URL or bind its handshake address."""
    for other in others:
        if other.spec.url == worker.spec.url:
            raise url_taken(worker.spec.url, other.spec.worker_id)
        if other.addresses.handshake == worker.addresses.handshake:
            raise Conflict(
                f"ZMQ worker {worker.spec.url} would bind handshake address {worker.addresses.handshake}, already "
                f"claimed by worker {other.spec.url}: the derived port is a hash of the ipc path, so rename this "
                "worker's ipc path or set zmq_handshake_address to a free tcp:// address"
            )
