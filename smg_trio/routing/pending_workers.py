"""Workers that were asked for and are not there (yet), pure: those being prepared, and those refused with the reason.

A refused one stays visible until it is deleted, its URL is asked for again, or many others were refused after it.
"""

from __future__ import annotations

from dataclasses import replace

from smg_trio.core.errors import Conflict
from smg_trio.core.workers import PendingWorker, WorkerState

MAX_REFUSED = 100


def url_taken(url: str, worker_id: str) -> Conflict:
    """The refusal of a second worker with the same URL, in the reference's words."""
    return Conflict(
        f"Worker already exists at URL '{url}' with ID {worker_id}. "
        f"Use PUT /workers/{worker_id} to replace or PATCH /workers/{worker_id} to update."
    )


class PendingWorkers:
    """By worker id, in order of arrival."""

    def __init__(self) -> None:
        self._by_id: dict[str, PendingWorker] = {}

    def open(self, application: PendingWorker) -> None:
        """Take an application in. Raises Conflict if one for the same URL is being prepared."""
        for other in self.all():
            if other.url == application.url:
                if other.state is WorkerState.PENDING:
                    raise url_taken(other.url, other.worker_id)
                del self._by_id[other.worker_id]
        self._by_id[application.worker_id] = application

    def refuse(self, worker_id: str, reason: str) -> None:
        """The worker cannot be; nothing happens if its application has been withdrawn."""
        application = self._by_id.pop(worker_id, None)
        if application is None:
            return
        refused = [other.worker_id for other in self.all() if other.state is WorkerState.FAILED]
        if len(refused) >= MAX_REFUSED:
            del self._by_id[refused[0]]
        self._by_id[worker_id] = replace(application, state=WorkerState.FAILED, reason=reason)

    def close(self, worker_id: str) -> bool:
        """The worker is there, or no longer wanted. True if there was an application."""
        return self._by_id.pop(worker_id, None) is not None

    def get(self, worker_id: str) -> PendingWorker | None:
        """The application of that id."""
        return self._by_id.get(worker_id)

    def all(self) -> list[PendingWorker]:
        """Every application."""
        return list(self._by_id.values())
