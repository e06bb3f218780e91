"""The task that owns the output PULL: frames → batches → each request's memory channel. It waits for no consumer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import EngineDead, ProtocolViolation
from smg_trio.wire.codec import EngineCodec, is_dead_sentinel
from smg_trio.worker.liveness import GivenUp

if TYPE_CHECKING:
    from smg_trio.core.engines import EngineInfo
    from smg_trio.core.outputs import EngineBatch
    from smg_trio.worker.group import Group
    from smg_trio.worker.links import OutputLink
    from smg_trio.worker.peer_watch import PeerWatch
    from smg_trio.worker.relay import Relay

logger = logging.getLogger("smg_trio.worker")

UNDECODABLE_LIMIT = 3
"""Consecutive undecodable outputs that mean the other side speaks something else (the reference's limit)."""
UNKNOWN_LIMIT_S = 10.0
"""After so much silence of engines that owe output, what cannot be decoded counts as theirs, from any peer: an engine
that speaks something else from its first word on is never known by its answers."""


async def dispatch(
    link: OutputLink,
    group: Group,
    codec: EngineCodec,
    peers: PeerWatch,
    nursery: trio.Nursery,
    relay: Relay | None = None,
) -> None:
    """Read outputs until cancelled. Raises LinkClosed. Cancelled, unread messages stay in the socket.

    ``relay``: gets them too, for processes that the engine has no socket pair for.
    """
    decode, apply = codec.decode_outputs, group.apply
    sources = _Sources(link, group, peers)
    while True:
        messages = await link.receive_many()
        now = trio.current_time()
        lagging = len(messages) > 1
        if group.remote:
            peers.take_broken_outputs(link)
        sources.look_at_ranks()
        for index, frames in enumerate(messages):
            if is_dead_sentinel(frames):
                if sources.is_engine(index):
                    logger.warning("received ENGINE_CORE_DEAD sentinel from engine")
                    nursery.start_soon(peers.settle_sentinel)
                else:
                    group.refuse(group.refusals.output, "ENGINE_CORE_DEAD by a connection that no engine has used", now)
                    peers.look_for_gone()
                continue
            try:
                batch = decode(frames)
            except ProtocolViolation as violation:
                sources.undecodable(index, violation, now)
                continue
            if sources.watching or group.remote:
                sources.decoded(index, batch)
            if relay is not None:
                relay.pass_on(batch.rank, frames)
            apply(batch, now, lagging=lagging)


class _Sources:
    """Which connections to the output socket are engines': those by which something came that only an engine can know.

    The socket lies in a private directory, but any process of the same user can connect to it, and a PULL does not tell
    who is there.

    Attributes:
        watching: every decoded output has to be told: some engine is not known by its connection yet, or something was
            undecodable since.
    """

    __slots__ = ("_engines", "_group", "_link", "_peers", "_ranks", "_undecodable", "watching")

    def __init__(self, link: OutputLink, group: Group, peers: PeerWatch) -> None:
        self._link = link
        self._group = group
        self._peers = peers
        self._engines: dict[int, tuple[int, EngineInfo]] = {}
        self._ranks: list[int] = []
        self._undecodable: dict[int | None, int] = {}
        self.watching = True

    def look_at_ranks(self) -> None:
        """Before each batch: engines that came or went have other connections than those before."""
        handshake = self._group.handshake
        ranks = handshake.ready_ranks()
        if ranks is not self._ranks:
            self._ranks = ranks
            self._engines = {
                origin: (rank, info) for origin, (rank, info) in self._engines.items() if handshake.info(rank) is info
            }
            self._note_watching()

    def _note_watching(self) -> None:
        self.watching = bool(self._undecodable) or len(self._engines) < len(self._ranks)

    def is_engine(self, index: int) -> bool:
        """Whether the message at `index` of the batch came from an engine."""
        origin = self._link.origin(index)
        return origin is None or origin in self._engines

    def decoded(self, index: int, batch: EngineBatch) -> None:
        """The message at `index` of the batch was an output."""
        origin = self._link.origin(index)
        self._undecodable.pop(origin, None)
        if origin is not None and origin not in self._engines and self._group.expects(batch):
            info = self._group.handshake.info(batch.rank)
            if self._group.remote and (batch.rank, info) in self._engines.values():
                self._peers.output_moved(batch.rank)
            elif info is not None:
                self._engines[origin] = (batch.rank, info)
                self._peers.note_output(self._link, origin, batch.rank, info)
        self._note_watching()

    def undecodable(self, index: int, violation: ProtocolViolation, now: float) -> None:
        """The message at `index` of the batch could not be decoded."""
        group = self._group
        group.refuse(group.refusals.output, f"ignoring undecodable engine output ({violation.detail})", now)
        if not self.is_engine(index) and group.silence.silent_s(now) < UNKNOWN_LIMIT_S:
            return
        origin = self._link.origin(index)
        count = self._undecodable.get(origin, 0) + 1
        if count < UNDECODABLE_LIMIT:
            self._undecodable[origin] = count
            self.watching = True
            return
        self._undecodable.clear()
        logger.warning("engine output undecodable repeatedly; failing all in-flight requests")
        group.lose_all(EngineDead("the engine's output cannot be decoded"), connected=GivenUp.DEAF)
