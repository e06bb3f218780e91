"""Workers made of what they are told: engines that dial in, or a server behind HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smg_trio.upstream.http_worker import HttpWorker, HttpWorkerOptions
from smg_trio.worker.nursery import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from smg_trio.core.media import PixelForm
    from smg_trio.core.workers import WorkerSpec
    from smg_trio.routing.lease import AnyWorker
    from smg_trio.routing.rules import WorkerTimeouts
    from smg_trio.worker.links import Transport
    from smg_trio.worker.siblings import Siblings


@dataclass(frozen=True, slots=True)
class WorkerMaker:
    """What all workers of a registry have in common; see `Registry`."""

    transport: Transport
    timeouts: WorkerTimeouts
    pixel_form: PixelForm | None
    siblings: Callable[[WorkerSpec], Siblings | None]
    http_options: HttpWorkerOptions | None

    def make(self, spec: WorkerSpec) -> AnyWorker:
        """A worker, to be run. Raises ConfigError for a malformed URL."""
        siblings = self.siblings(spec)
        if spec.over_http:
            return HttpWorker(spec, self.http_options, cells=None if siblings is None else siblings.cells)
        return Worker(
            spec,
            self.transport,
            siblings=siblings,
            silence_limit_s=self.timeouts.silence_limit_s,
            send_limit_s=self.timeouts.send_limit_s,
            handshake_limit_s=self.timeouts.handshake_limit_s,
            pixel_form=self.pixel_form,
        )
