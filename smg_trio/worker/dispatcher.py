"""The task that owns the output PULL: frames → batches → each request's memory channel. It waits for no consumer."""

from __future__ import annotations

import logging

import trio

from smg_trio.core.errors import EngineDead, ProtocolViolation
from smg_trio.wire.codec import EngineCodec, is_dead_sentinel
from smg_trio.worker.group import GivenUp, Group
from smg_trio.worker.links import Link
from smg_trio.worker.log_throttle import LogThrottle
from smg_trio.worker.peer_watch import PeerWatch

logger = logging.getLogger("smg_trio.worker")

UNDECODABLE_LIMIT = 3
"""Consecutive undecodable outputs that mean the other side speaks something else (the reference's limit)."""


async def dispatch(link: Link, group: Group, codec: EngineCodec, peers: PeerWatch, nursery: trio.Nursery) -> None:
    """Read outputs for ever. Raises LinkClosed. Cancelled, unread messages stay in the socket."""
    decode, apply = codec.decode_outputs, group.apply
    sources = _Sources(link, group)
    while True:
        messages = await link.receive_many()
        now = trio.current_time()
        sources.look_at_ranks()
        for index, frames in enumerate(messages):
            if is_dead_sentinel(frames):
                logger.warning("received ENGINE_CORE_DEAD sentinel from engine")
                nursery.start_soon(peers.settle_sentinel)
                continue
            try:
                batch = decode(frames)
            except ProtocolViolation as violation:
                sources.undecodable(index, violation, now)
                continue
            if sources.watching:
                sources.decoded(index)
            apply(batch, now)


class _Sources:
    """Who said what could not be decoded: an engine, which then speaks something else, or a stranger.

    The output socket lies in a private directory, but any process of the same user can connect to it.

    Attributes:
        watching: every decoded output has to be told: not all engines have said one yet, or something was undecodable
            since.
    """

    __slots__ = ("_counted", "_group", "_kept", "_known", "_link", "_log", "_ranks", "_undecodable", "watching")

    def __init__(self, link: Link, group: Group) -> None:
        self._link = link
        self._group = group
        self._known: set[int] = set()
        self._ranks: list[int] | None = None
        self._undecodable = 0
        self._kept = self._counted = False
        self._log = LogThrottle()
        self.watching = link.keep_origins = True

    def look_at_ranks(self) -> None:
        """Before each batch: engines that came or went have other connections than those before."""
        self._kept, self._counted = self._link.keep_origins, False
        ranks = self._group.handshake.ready_ranks()
        if ranks is not self._ranks:
            self._ranks = ranks
            self._known.clear()
            self.watching = self._link.keep_origins = True

    def decoded(self, index: int) -> None:
        """The message at `index` of the batch was an output."""
        self._undecodable = 0
        origin = self._link.origin(index)
        if origin is not None:
            self._known.add(origin)
        if self._ranks is not None and len(self._known) >= len(self._ranks):
            self.watching = self._link.keep_origins = False

    def undecodable(self, index: int, violation: ProtocolViolation, now: float) -> None:
        """The message at `index` of the batch could not be decoded."""
        for line in self._log.note(f"ignoring undecodable engine output ({violation.detail})", now):
            logger.warning("%s", line)
        origin = self._link.origin(index)
        self.watching = self._link.keep_origins = True
        if origin is not None and origin not in self._known and self._all_known:
            return
        if not self._kept:
            # Whose it is will be known from the next batch on, so this one counts once.
            if self._counted:
                return
            self._counted = True
        self._undecodable += 1
        if self._undecodable >= UNDECODABLE_LIMIT:
            self._undecodable = 0
            logger.warning("engine output undecodable repeatedly; failing all in-flight requests")
            self._group.lose_all(EngineDead("the engine's output cannot be decoded"), connected=GivenUp.DEAF)

    @property
    def _all_known(self) -> bool:
        return bool(self._ranks) and len(self._known) >= len(self._ranks or ())
