"""What a request needs of a gateway's other processes: nothing, where there is only one.

`Sharing` is what the only process has. `smg_trio.processes` has two others: the keeper's and a front's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from smg_trio.gateway.tasks.background import BackgroundTasks
from smg_trio.history.relayed import RelayedInMemory, RelayedResponses
from smg_trio.routing.rules import admission_queue_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from smg_trio.core.workers import WorkerSpec
    from smg_trio.gateway.http import Headers, Request, Response
    from smg_trio.gateway.security.key_limits import KeyMeters, KeySlot
    from smg_trio.gateway.security.key_ring import KeyHolder
    from smg_trio.routing.admission import AdmissionQueue
    from smg_trio.settings.settings import Settings


class Sharing:
    """Of the only process: everything is its own.

    Attributes:
        forwards: requests about workers and engines are answered by another process.
        settles: whether the listener stays open for a while when the gateway ends, so that probes are answered.
    """

    forwards = False
    settles = True

    def admission(self, settings: Settings) -> AdmissionQueue:
        """Which requests may begin."""
        return admission_queue_of(settings, os.cpu_count() or 1)

    def background(self) -> BackgroundTasks:
        """Responses that no client waits for."""
        return BackgroundTasks()

    def relayed(self) -> RelayedResponses:
        """Which workers behind HTTP keep which responses, where there is no history."""
        return RelayedInMemory()

    def worker_ready(self, worker: WorkerSpec) -> str:
        """Why a worker that has its engines does not serve yet, if so; else ``""``."""
        return ""

    def answers(self, own: int) -> int:
        """How many answers are in flight in all processes; `own`: in this one."""
        return own

    async def key_slot(self, meters: KeyMeters, holder: KeyHolder) -> KeySlot:
        """A slot among those of a holder who has limits. Raises RateLimited."""
        return meters.of(holder).enter()

    async def key_headers(self, meters: KeyMeters, holder: KeyHolder) -> Headers:
        """What a holder who has limits has left."""
        return meters.of(holder).headers()

    async def claim_response(self, response_id: str) -> Callable[[], None]:
        """Use an id that a client has given to its response, in no other process; what gives it back.

        Raises Conflict while another process uses it. Within a process `ResponseIds` sees to it.
        """
        return _nothing

    async def forward(self, template: str, request: Request) -> Response:
        """Have another process answer a request whose body has been read. Only where `forwards`.

        ``template``: the path of its route.
        """
        raise NotImplementedError

    async def models_changed(self) -> None:
        """Return when a model or an adapter that was changed, loaded or unloaded is so for every client."""

    async def exposition(self, own: bytes) -> bytes:
        """All metrics of the gateway as Prometheus text; `own`: those of this process."""
        return own


def _nothing() -> None:
    return
