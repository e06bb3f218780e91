"""A lease on a worker: counted as its load from the moment it is chosen until the answer has ended."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from smg_trio.worker.nursery import Worker


class Lease:
    """Close it on every path, once or more; closing never blocks."""

    __slots__ = ("_on_close", "worker")

    def __init__(self, worker: Worker, on_close: Callable[[Worker], None]) -> None:
        self.worker = worker
        self._on_close: Callable[[Worker], None] | None = on_close

    def close(self) -> None:
        """Give the worker back; idempotent."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(self.worker)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
