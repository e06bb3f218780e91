"""A lease on a worker: counted as its load from the moment it is chosen until the answer has ended."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeAlias, TypeVar

from smg_trio.core.errors import SmgError
from smg_trio.upstream.http_worker import HttpWorker
from smg_trio.worker.nursery import Worker

AnyWorker: TypeAlias = Worker | HttpWorker
"""A worker with engines that dial in, or a server behind HTTP."""
W_co = TypeVar("W_co", bound=AnyWorker, covariant=True)
Verdict = SmgError | bool | None
"""How a lease ended: True for well, an error, or None if that says nothing of the worker."""


class WorkerLease(Generic[W_co]):
    """Close it on every path, once or more; closing never blocks.

    The caller reports how the request ended with `succeeded` or `failed` before closing; the last report counts.
    Without one (the client has left) the worker is not judged.
    """

    __slots__ = ("_on_close", "_verdict", "worker")

    def __init__(self, worker: W_co, on_close: Callable[[Verdict], None]) -> None:
        self.worker = worker
        self._verdict: Verdict = None
        self._on_close: Callable[[Verdict], None] | None = on_close

    def succeeded(self) -> None:
        """The engine has answered to the end."""
        self._verdict = True

    def failed(self, error: SmgError) -> None:
        """The request ended with an error."""
        self._verdict = error

    def close(self) -> None:
        """Give the worker back; idempotent."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(self._verdict)

    def __enter__(self) -> WorkerLease[W_co]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


Lease: TypeAlias = WorkerLease[Worker]
"""A lease on a worker with engines."""
HttpLease: TypeAlias = WorkerLease[HttpWorker]
"""A lease on a worker behind HTTP."""
