"""The feed: a snapshot a second, made once for all watchers, and none while there are none.

A watcher takes the newest snapshot when it has sent the one before, and never sees those that came between: a slow one
costs nothing but its connection.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from smg_trio.gateway.dashboard.observer import Observer
from smg_trio.gateway.dashboard.snapshot import snapshot_value

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway

INTERVAL_S = 1.0


class Watcher:
    """One who watches, from now on."""

    __slots__ = ("_feed", "_seen")

    def __init__(self, feed: LiveFeed, seen: int) -> None:
        self._feed = feed
        self._seen = seen

    async def next_snapshot(self) -> str | None:
        """The newest snapshot, as JSON, once it is another one than before; None once the feed has ended."""
        feed = self._feed
        while feed.sequence == self._seen and not feed.ended:
            await feed.published()
        if feed.ended:
            return None
        self._seen = feed.sequence
        return feed.snapshot


class LiveFeed:
    """Run it beside the server; it makes snapshots while there are watchers.

    Attributes:
        snapshot, sequence: the newest one, and its number from 1; 0 before there is one.
        interval_s: seconds between two of them.
        ended: nothing comes any more.
        watchers: how many watch.
    """

    def __init__(self, gateway: Gateway, interval_s: float = INTERVAL_S) -> None:
        self._gateway = gateway
        self.interval_s = interval_s
        self._news = trio.Event()
        self._watched = trio.Event()
        self._unwatched = trio.Event()
        self._end = trio.Event()
        self.snapshot = ""
        self.sequence = 0
        self.watchers = 0

    @property
    def ended(self) -> bool:
        """See the class."""
        return self._end.is_set()

    @contextmanager
    def watch(self) -> Iterator[Watcher]:
        """Watch until the block is left."""
        # What was shown to an earlier watcher may be hours old.
        watcher = Watcher(self, seen=0 if self.watchers else self.sequence)
        self._watched.set()
        self.watchers += 1
        try:
            yield watcher
        finally:
            self.watchers -= 1
            if not self.watchers:
                self._watched = trio.Event()
                self._unwatched.set()
                self._unwatched = trio.Event()

    async def watchers_gone(self) -> None:
        """Wait until the last watcher has left."""
        await self._unwatched.wait()

    async def published(self) -> None:
        """Wait for the next snapshot, or the end."""
        await self._news.wait()

    async def wait_end(self) -> None:
        """Wait until the feed has ended."""
        await self._end.wait()

    def end(self) -> None:
        """Let every watcher go. For good."""
        self._end.set()
        self._tell()

    async def run(self) -> None:
        """Make snapshots until cancelled."""
        while True:
            await self._watched.wait()
            await self._run_watched()

    async def _run_watched(self) -> None:
        observer, due, lag_s = Observer(self._gateway), trio.current_time(), None
        while self.watchers:
            self._publish(observer, lag_s)
            # One that was late does not bring the next one so near that rates between the two would be noise.
            due = max(due + self.interval_s, trio.current_time() + self.interval_s / 2)
            await trio.sleep_until(due)
            lag_s = max(trio.current_time() - due, 0.0)

    def _publish(self, observer: Observer, lag_s: float | None) -> None:
        seen, rates = observer.observe(trio.current_time(), lag_s)
        value = snapshot_value(seen, rates, sequence=self.sequence + 1, interval_s=self.interval_s)
        self.snapshot = json.dumps(value, separators=(",", ":"))
        self.sequence += 1
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, trio.Event()
        news.set()
