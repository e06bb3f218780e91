"""An answer that a worker behind HTTP gives, as observers see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.core.events import NO_TOKENS, Usage
from smg_trio.upstream.usage import UsageReader, usage_of_body

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smg_trio.core.requests import SamplingParams
    from smg_trio.pipeline.engine_requests import RequestCounts
    from smg_trio.routing.lease import HttpLease


class RelayedAnswer:
    """See `observer.ObservedAnswer`. Its prompt is not known here before the worker has said how long it is.

    Attributes:
        lease: on the worker of the present attempt.
        reads: of a response that comes as a stream.
        body: of one that comes in one piece.
        finished: the response has come to its end.
        counts_events: a stream without usage counts for the limits of its key by its events, one token each.
    """

    prompt_tokens = 0
    usage_known = False
    sampling: SamplingParams | None = None
    choices = 0
    pending_outputs = 0
    adapter = ""
    kept_text: Sequence[str] = ()

    def __init__(self, model_id: str, request_id: str, asked_tokens: int, *, pooled: bool) -> None:
        self.model_id = model_id
        self.request_id = request_id
        self.asked_tokens = asked_tokens
        self.pooled = pooled
        self.lease: HttpLease | None = None
        self.reads = UsageReader()
        self.body = b""
        self.finished = False
        self.counts_events = False
        self._ended_with: Usage | None = None

    @property
    def worker_urls(self) -> set[str]:
        """URL of the worker that answers."""
        return set() if self.lease is None else {self.lease.worker.spec.url}

    @property
    def engines(self) -> set[tuple[str, int]]:
        """The worker that answers, as one engine."""
        return {(url, 0) for url in self.worker_urls}

    def request_counts(self) -> list[RequestCounts]:
        """None: its server counts what its engines do."""
        return []

    @property
    def worker_ids(self) -> set[str]:
        """Id of the worker that answers."""
        return set() if self.lease is None else {self.lease.worker.spec.worker_id}

    @property
    def finish_reasons(self) -> list[str]:
        """Not read."""
        return []

    def keep_text(self) -> None:
        """Text is not read on its way."""

    def read_usage(self) -> None:
        """The response is over: find what it says of its tokens."""
        found = usage_of_body(self.body) if self.body else self.reads.usage()
        self.usage_known = found is not None
        if found is None and self.counts_events:
            found = Usage(0, self.reads.events)
        self._ended_with = found

    def usage(self) -> Usage:
        """As the response said at its end; nothing before that."""
        return self._ended_with or NO_TOKENS
