"""The last errors that were sent to clients, for the live page and `top`, with the same messages."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from weakref import ref

from smg_trio.api.errors import error_view
from smg_trio.core.errors import SmgError
from smg_trio.gateway.observability.observer import Generation, RequestObserver

REMEMBERED = 50
MAX_MESSAGE_CHARS = 500


@dataclass(frozen=True, slots=True)
class ErrorSeen:
    """One error.

    Attributes:
        time: seconds since the epoch.
        status: the HTTP status it has, or would have had before the first byte.
        endpoint: which API, in a word, or its path.
        worker_urls: of those that were at it.
    """

    time: float
    status: int
    code: str
    message: str
    endpoint: str
    model: str
    worker_urls: tuple[str, ...]
    request_id: str


class RecentErrors(RequestObserver):
    """Remembers clients' faults and ours apart, so that neither hides the other. One for all requests."""

    def __init__(self) -> None:
        self._clients: deque[ErrorSeen] = deque(maxlen=REMEMBERED)
        self._ours: deque[ErrorSeen] = deque(maxlen=REMEMBERED)
        self._last: ref[SmgError] | None = None

    def generation_failed(self, generation: Generation, error: SmgError) -> None:
        """See `RequestObserver`."""
        answer = generation.answer
        self.note(
            error, generation.endpoint, generation.request_id, model=answer.model_id, worker_urls=answer.worker_urls
        )

    def note(
        self,
        error: BaseException,
        endpoint: str,
        request_id: str = "",
        *,
        model: str = "",
        worker_urls: Collection[str] = (),
    ) -> None:
        """Remember an error. One that passes through several places on its way out is remembered once, at the first."""
        if isinstance(error, SmgError):
            if self._last is not None and self._last() is error:
                return
            self._last = ref(error)
        view = error_view(error)
        seen = ErrorSeen(
            time=time.time(),
            status=view.status,
            code=view.code,
            message=view.message[:MAX_MESSAGE_CHARS],
            endpoint=endpoint,
            model=model,
            worker_urls=tuple(sorted(worker_urls)),
            request_id=request_id,
        )
        (self._clients if view.status < 500 else self._ours).append(seen)

    def all(self) -> list[ErrorSeen]:
        """The newest first."""
        return sorted([*self._clients, *self._ours], key=lambda seen: seen.time, reverse=True)
