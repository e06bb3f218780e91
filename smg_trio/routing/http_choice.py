"""The choice among workers behind HTTP: same policies, breakers and leases as for those with engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from smg_trio.routing.policies import RoutingContext
from smg_trio.upstream.http_worker import HttpWorker

if TYPE_CHECKING:
    from collections.abc import Collection

    from smg_trio.routing.lease import HttpLease
    from smg_trio.routing.roster import Roster


class HttpChoice:
    """What the registry offers to those who relay requests. Never waits."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def __bool__(self) -> bool:
        """Whether there is any worker behind HTTP."""
        return self._roster.behind_http

    def workers(self, model: str | None = None) -> list[HttpWorker]:
        """The workers behind HTTP, or those of them that serve `model`, in order of registration."""
        roster = self._roster
        entries = roster.entries.values() if model is None else roster.of_model(model, over_http=True)
        return [entry.worker for entry in entries if isinstance(entry.worker, HttpWorker)]

    def lease(
        self, model: str, text: bytes, *, routing_key: str | None = None, avoid: Collection[str] = ()
    ) -> HttpLease:
        """As `Registry.lease`. `text`: what prompts are told apart by, in place of token ids."""
        now = trio.current_time()
        context = RoutingContext(text, routing_key, model)
        lease: HttpLease = self._roster.choose(model, context, avoid, now, over_http=True).lease(now)
        return lease

    def lease_pinned(self, url: str) -> HttpLease | None:
        """A lease on that very worker, which holds what the request is about; None if it takes no requests now."""
        now = trio.current_time()
        found = (entry for entry in self._roster.entries.values() if entry.over_http and entry.worker.spec.url == url)
        entry = next(found, None)
        if entry is None or not entry.takes_requests(now):
            return None
        lease: HttpLease = entry.lease(now)
        return lease

    def preferred(self, model: str, text: bytes, *, routing_key: str | None = None) -> bool:
        """Which kind of worker the policy chooses for a request on a model that has both. Raises as `Registry.lease`.

        Nothing is leased: a worker of that kind is chosen when the request is sent.
        """
        context = RoutingContext(text, routing_key, model)
        return self._roster.choose(model, context, (), trio.current_time(), over_http=None).over_http

    def can_take(self, model: str, avoid: Collection[str]) -> bool:
        """Whether a worker behind HTTP other than those would take a request on the model now."""
        now = trio.current_time()
        entries = self._roster.of_model(model, over_http=True)
        return any(entry.worker.spec.worker_id not in avoid and entry.takes_requests(now) for entry in entries)
