"""The tasks that let engines in: the handshake ROUTER (HELLO → INIT, READY) and registrations on the input ROUTER.

Both stay for the worker's life, so an engine that comes late, again, or before the gateway is answered immediately.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import EngineDead, ProtocolViolation
from smg_trio.core.workers import RankPhase, WorkerSpec
from smg_trio.wire.handshake import (
    decode_handshake,
    decode_registration,
    encode_init,
    identity_of_rank,
    rank_of_identity,
)
from smg_trio.worker.handshake import HelloFromConnected, Progress, RankReady, Refused, SendInit, Step
from smg_trio.worker.links import Link, PeerUnreachable

if TYPE_CHECKING:
    from smg_trio.wire.addresses import WorkerAddresses
    from smg_trio.worker.group import Group
    from smg_trio.worker.log_throttle import LogThrottle
    from smg_trio.worker.peer_watch import PeerWatch

logger = logging.getLogger("smg_trio.worker")

READY_LIMIT_S = 5.0
"""Engines say READY within milliseconds of their registration."""
_TURN = 64
_FLOOD_PAUSE_S = 0.05
"""After so many messages at once: more than a thousand a second would take the loop's time from the streams."""
HANDSHAKE_MESSAGE_LIMIT_S = 600.0
"""How long each handshake message is waited for before the log says so (the reference's limit)."""


class HandshakeListener:
    """Answers engines that dial in to one worker.

    Args:
        pairs: how many socket pairs its engines are told of.
        changed: called whenever a rank's phase has changed.
        wait_change: returns at the next change of a rank's phase.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        addresses: WorkerAddresses,
        pairs: int,
        handshake_link: Link,
        group: Group,
        peers: PeerWatch,
        changed: Callable[[], None],
        wait_change: Callable[[], Awaitable[None]],
    ) -> None:
        self._spec = spec
        self._addresses = addresses
        self._pairs = (
            1 if spec.protocol is EngineProtocol.TOKENSPEED else pairs
        )  # which uses the first, whatever it is told
        self._link = handshake_link
        self._group = group
        self._peers = peers
        self._changed = changed
        self._wait_change = wait_change
        self._refused: set[int] = set()
        self._news = trio.Event()
        self._doubted: dict[int, bool] = {}  # rank -> whether another HELLO has come since the look at its engine began

    async def listen(self, nursery: trio.Nursery) -> None:
        """Take HELLO and READY until cancelled. Raises LinkClosed."""
        logger.info("waiting for engines to connect to %s", self._spec.url)
        while True:
            messages = await self._link.receive_many(_TURN)
            for frames in messages:
                try:
                    step = self._read_handshake(frames)
                except ProtocolViolation as violation:
                    step = Refused(f"unexpected startup handshake message: {violation.detail}")
                if isinstance(step, HelloFromConnected):
                    self._doubt(step.rank, nursery)
                else:
                    self._take(step)
            if len(messages) == _TURN:
                # No group of engines says so much at once. What waits in the sockets is bounded, and each peer's first.
                await trio.sleep(_FLOOD_PAUSE_S)

    def _doubt(self, rank: int, nursery: trio.Nursery) -> None:
        """Find out whether the engine of a rank that has registered is gone, in one task for all who say HELLO."""
        if rank in self._doubted:
            self._refuse(f"HELLO for engine id {rank} while another one is being checked")
            self._doubted[rank] = True
            return
        self._doubted[rank] = False
        nursery.start_soon(self._settle_second_hello, rank)

    async def answer_refused(self) -> None:
        """Answer a HELLO that was refused because its rank was connected, once it no longer is, until cancelled.

        An engine speaks once and waits. The engine that has the rank's identity by now gets INIT; if none is there any
        more, nothing has changed.
        """
        handshake = self._group.handshake
        while True:
            await self._wait_change()
            for rank in [rank for rank in self._refused if handshake.phase(rank) is RankPhase.WAITING]:
                reason = handshake.reason(rank)
                self._take(handshake.hello(rank))
                if handshake.phase(rank) is RankPhase.WAITING:
                    handshake.lost(rank, reason)

    async def shed_peers(self) -> None:
        """Have the link hang up on the oldest of too many connections until cancelled. Raises LinkClosed."""
        while True:
            await self._link.wait_peer_lost()

    def _read_handshake(self, frames: list[bytes]) -> Step:
        if len(frames) != 2:
            raise ProtocolViolation("handshake", f"expected 2 frames, got {len(frames)}")
        rank = rank_of_identity(frames[0])
        status = decode_handshake(frames[1]).status
        if status == "HELLO":
            return self._group.handshake.hello(rank)
        if status == "READY":
            return self._group.handshake.ready(rank)
        raise ProtocolViolation("handshake", f"unexpected handshake status {status[:40]!r}")

    async def take_registrations(self, input_link: Link, nursery: trio.Nursery) -> None:
        """Take registrations on the input ROUTER's receiving side until cancelled. Raises LinkClosed."""
        while True:
            for frames in await input_link.receive_many():
                try:
                    step = self._read_registration(frames)
                except ProtocolViolation as violation:
                    step = Refused(f"unexpected startup handshake message: {violation.detail}")
                self._take(step, self._group.refusals.input)
                if isinstance(step, Progress):
                    nursery.start_soon(self._do_without_ready, step.rank)

    async def _do_without_ready(self, rank: int) -> None:
        """Believe a registered engine whose READY does not come.

        The handshake port is open to every local process, and one that dials in with the engine's identity takes its
        connection. The registration came through our own directory.
        """
        info = self._group.handshake.info(rank)
        await trio.sleep(READY_LIMIT_S)
        handshake = self._group.handshake
        if handshake.phase(rank) is RankPhase.LOADING and info is not None and handshake.info(rank) is info:
            logger.warning("rank %d of %s has registered but its READY is missing; going on", rank, self._spec.url)
            self._take(handshake.ready(rank))

    def _read_registration(self, frames: list[bytes]) -> Step:
        if len(frames) != 2:
            detail = f"expected 2 frames for engine input registration, got {len(frames)}"
            raise ProtocolViolation("registration", detail)
        info = replace(decode_registration(frames[1], self._spec.protocol), pairs=self._pairs)
        if self._addresses.remote and self._spec.protocol is EngineProtocol.VLLM and info.data_parallel_size > 1:
            return Refused(
                f"the engines of {self._spec.url} run in lockstep (a mixture of experts with several ranks), which "
                "is not supported over tcp://"
            )
        return self._group.handshake.registered(rank_of_identity(frames[0]), info)

    def _take(self, step: Step, refused: LogThrottle | None = None) -> None:
        url = self._spec.url
        if isinstance(step, Refused):
            self._refuse(step.reason, refused)
            return
        if isinstance(step, SendInit):
            if step.again:
                # An engine that restarted, or a stranger, who could say so forever.
                self._refuse(f"rank {step.rank} said HELLO again while loading")
            else:
                logger.info("rank %d of %s said HELLO", step.rank, url)
            self._refused.discard(step.rank)
            self._group.hello_taken(step.rank)
            self._send_init(step.rank)
        elif isinstance(step, RankReady):
            logger.info("engine connected: rank %d of %s (%s)", step.rank, url, step.info.engine_version)
            ready = len(self._group.handshake.ready_ranks())
            if ready == self._spec.engine_count:
                logger.info("engines connected", extra={"fields": {"engine_count": ready}})
            if not self._group.handshake.serving_ranks:
                logger.info("%s: %s", url, self._group.handshake.summary())
        elif isinstance(step, Progress):
            logger.debug("rank %d of %s: %s", step.rank, url, step.seen)
        self._news.set()
        self._news = trio.Event()
        self._changed()

    def _refuse(self, reason: str, log: LogThrottle | None = None) -> None:
        self._group.refuse(log or self._group.refusals.handshake, reason, trio.current_time())

    def _send_init(self, rank: int) -> None:
        init = encode_init(*self._addresses.told(self._pairs))
        try:
            self._link.send_nowait([identity_of_rank(rank), init])
        except (PeerUnreachable, trio.WouldBlock):
            self._group.handshake.lost(rank, "vanished after HELLO")

    async def _settle_second_hello(self, rank: int) -> None:
        """A HELLO for a connected rank: take it if the connected engine turns out to be gone, else refuse it."""
        try:
            while not (gone := await self._peers.find_gone([rank])) and self._doubted[rank]:
                # An engine speaks once and waits: an engine that came late is owed the whole time too.
                self._doubted[rank] = False
            if gone:
                self._group.lose([rank], EngineDead("the engine restarted"))
                self._group.vanished_while_loading(rank)
        finally:
            del self._doubted[rank]
        step = self._group.handshake.hello(rank)
        if isinstance(step, HelloFromConnected):
            self._refused.add(rank)
            step = Refused(f"duplicate HELLO for engine id {rank} after INIT phase: the connected engine is alive")
        self._take(step)

    async def note_slow_handshake(self, limit_s: float = HANDSHAKE_MESSAGE_LIMIT_S) -> None:
        """Say in the log, each time the limit passes without news while no engine serves, what is waited for."""
        while True:
            if self._group.handshake.serving_ranks:
                await self._news.wait()
                continue
            with trio.move_on_after(limit_s) as scope:
                await self._news.wait()
            if scope.cancelled_caught and not self._group.handshake.serving_ranks:
                loading = any(rank.phase is RankPhase.LOADING for rank in self._group.rank_snapshots())
                logger.warning(
                    "ZMQ backend handshake failed for %s: startup handshake timed out while waiting for %s after %gs; "
                    "still listening",
                    self._spec.url,
                    "READY" if loading else "HELLO",
                    limit_s,
                )
