"""The tasks that notice an engine going away: socket monitors first, silence last.

A killed engine's connections are closed by the kernel, and the sockets' monitors say so within milliseconds,
whether it was idle or busy. The notice of the input ROUTER names the engine; others do not, and then any that has no
connection any more is looked for with a message that engines ignore.

A broken connection to an engine on another host is not its death: it connects again, without a word, and goes on with
what it had. But outputs that were on the way are gone, and nothing in the next ones shows it (seen with vLLM 0.32:
streams with a hole and finish_reason length). So whatever was in flight on a connection that broke has failed, and is
stopped at the engine when it is back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import EngineDead, EngineSilent, ProtocolViolation, SmgError
from smg_trio.core.workers import RankPhase
from smg_trio.wire.handshake import identity_of_rank, rank_of_identity
from smg_trio.worker.links import Link, OutputLink, PeerUnreachable
from smg_trio.worker.liveness import GivenUp

if TYPE_CHECKING:
    from smg_trio.core.engines import EngineInfo
    from smg_trio.wire.codec import EngineCodec
    from smg_trio.worker.group import Group

logger = logging.getLogger("smg_trio.worker")

_PROBE_DELAYS_S = (0.0, 0.005, 0.02, 0.1, 0.5, 1.0)
"""A dying engine closes its sockets one by one, so who is gone is asked again for a while."""
_PAUSED_ANSWER_LIMIT_S = 1.0
"""A living engine answers between two steps, a paused one immediately."""
_LAST_WORDS_S = 0.02
"""Between a disconnect notice and giving the engine up: what it had already pushed is still read and counted."""
_FIRST_SIGN_S = 0.5
_LONGEST_SIGN_S = 60.0


class PeerWatch:
    """Watches the connections of one binding of a worker's sockets. Short follow-ups run in `nursery`."""

    def __init__(self, input_link: Link, group: Group, codec: EngineCodec, nursery: trio.Nursery) -> None:
        self._input_link = input_link
        self._group = group
        self._codec = codec
        self._nursery = nursery
        self._noticed = trio.Event()
        self._look = trio.CancelScope()
        self._speaking: dict[int, EngineInfo] = {}

    async def watch_inputs(self) -> None:
        """Take disconnect notices of the input ROUTER until cancelled. Raises LinkClosed."""
        while True:
            identity = await self._input_link.wait_peer_lost()
            if identity is None:
                self.look_for_gone()
                continue
            try:
                rank = rank_of_identity(identity)
            except ProtocolViolation:
                continue
            # What a stranger with another identity sent has been refused and counted; its leaving means nothing.
            if rank >= self._group.engine_count:
                continue
            if self._group.remote:
                self._lose(rank, self._group.handshake.info(rank))
            else:
                self._nursery.start_soon(self._settle_named, rank)

    async def watch_outputs(self, output_link: OutputLink) -> None:
        """Take disconnect notices of the output PULL, which name no engine, until cancelled. Raises LinkClosed."""
        while True:
            identity = await output_link.wait_peer_lost()
            if self._group.remote:
                self.output_broke(identity)
            else:
                self.look_for_gone()

    def note_output(self, link: OutputLink, origin: int, rank: int, info: EngineInfo) -> None:
        """An output connection is known to be a rank's."""
        if self._group.remote:
            link.name_origin(origin, identity_of_rank(rank))
            self._speaking[rank] = info

    def take_broken_outputs(self, link: OutputLink) -> None:
        """Before messages of a remote engine are taken in: end what was in flight on connections that broke before."""
        for identity in link.peers_lost():
            self.output_broke(identity)

    def output_moved(self, rank: int) -> None:
        """A rank's output has come by another connection than before: that one broke, which is not known here yet."""
        self._lose(rank, self._group.handshake.info(rank))

    def output_broke(self, identity: bytes | None) -> None:
        """An output connection has ended: of the rank that `identity` names, else of one not known by it yet."""
        handshake = self._group.handshake
        if identity is not None:
            rank = rank_of_identity(identity)
            self._lose(rank, handshake.info(rank))
            return
        for rank in list(handshake.ready_ranks()):
            info = handshake.info(rank)
            if self._speaking.get(rank) is not info and self._group.ledger.in_flight(rank):
                self._lose(rank, info)
        self.look_for_gone()

    def look_for_gone(self) -> None:
        """Somebody has gone, or says so: have `watch_gone` find out who."""
        self._noticed.set()
        self._look.cancel()

    async def watch_gone(self) -> None:
        """Lose the engines that have no connection any more, permanently.

        One task for all notices, which starts its look anew at each: strangers may come and go as fast as they like.
        """
        while True:
            await self._noticed.wait()
            self._noticed = trio.Event()
            with trio.CancelScope() as self._look:
                await self._settle_anonymous()

    async def _settle_named(self, rank: int) -> None:
        info = self._group.handshake.info(rank)
        await trio.sleep(_LAST_WORDS_S)
        # A notice names a descriptor. If it is read late, another connection may have that number by now: so look
        # whether this engine is the one that went, and if not, who else.
        if await self.find_gone([rank]):
            self._lose(rank, info)
        else:
            self.look_for_gone()

    async def _settle_anonymous(self) -> None:
        infos = {rank: self._group.handshake.info(rank) for rank in self._group.handshake.ready_ranks()}
        for rank in await self.find_gone(list(infos)):
            self._lose(rank, infos[rank])

    def _lose(self, rank: int, info: EngineInfo | None) -> None:
        """Give up the engine that registered with `info`; a successor that has come meanwhile is another one."""
        if info is None or self._group.handshake.info(rank) is not info:
            return
        if self._group.handshake.phase(rank) is RankPhase.READY:
            self._group.lose([rank], self._group.disconnected("the engine closed its connection"))
        else:
            self._group.vanished_while_loading(rank)

    async def settle_sentinel(self) -> None:
        """An engine has said that it died, but not which: find out, and lose it."""
        died = EngineDead("engine core reported fatal failure")
        handshake = self._group.handshake
        infos = {rank: handshake.info(rank) for rank in handshake.ready_ranks()}
        if self._group.engine_count == 1 or handshake.lockstep:
            self._group.lose(infos, died)
            return
        found = await self.find_gone(list(infos))
        unchanged = [rank for rank, info in infos.items() if handshake.info(rank) is info]
        gone = [rank for rank in found if rank in unchanged]
        if gone:
            self._group.lose(gone, died)
        elif len(unchanged) == self._group.engine_count:
            # None of them has gone, before or since. Those that live will answer, and be taken back.
            self._group.lose(unchanged, died, connected=GivenUp.DEAF)

    async def find_gone(self, ranks: list[int]) -> list[int]:
        """Which of `ranks` have no connection to the input ROUTER; [] if all still have one after a while."""
        for delay_s in _PROBE_DELAYS_S:
            if delay_s:
                await trio.sleep(delay_s)
            gone = [rank for rank in ranks if not self.is_reachable(rank)]
            if gone or not any(self._group.handshake.phase(rank) is not RankPhase.WAITING for rank in ranks):
                return gone
        return []

    def is_reachable(self, rank: int) -> bool:
        """Whether the rank has a connection to the input ROUTER now."""
        # An abort of nothing is the one message that both protocols take and ignore.
        try:
            self._input_link.send_nowait([identity_of_rank(rank), *self._codec.encode_abort([])])
        except PeerUnreachable:
            return False
        except trio.WouldBlock:
            return True
        return True


async def watch_silence(group: Group) -> None:
    """The watchdog: lose engines that are connected, owe output and have said nothing for the limit. For ever.

    One sleep until the deadline, which outputs move on by a store; no timer is touched per message.
    """
    while True:
        deadline = group.silence.deadline()
        if deadline is None:
            await group.owing.wait()
        elif trio.current_time() < deadline:
            await trio.sleep_until(deadline)
        else:
            await _end_silence(group)


async def reclaim(group: Group) -> None:
    """Ask engines that were given up and are still connected for a sign of life, ever more rarely. For ever.

    A stopped process that goes on, a host that was suspended: nothing else would tell, for an engine with nothing to do
    says nothing.
    """
    pause_s = _FIRST_SIGN_S
    while True:
        if group.ask_for_signs():
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_SIGN_S)
        else:
            await group.gave_up.wait()
            pause_s = _FIRST_SIGN_S


async def _end_silence(group: Group) -> None:
    """Lose the engines that are silent, but for those that say that they are paused: they were told to say nothing."""
    limit_s, handshake = group.silence.limit_s, group.handshake
    owing = {rank: handshake.info(rank) for rank in group.ranks_owing()}
    asked = [rank for rank in owing if not await _is_paused(group, rank)]
    # Meanwhile an engine may have gone, and another have come in its place.
    silent = [rank for rank in asked if owing[rank] is not None and handshake.info(rank) is owing[rank]]
    if silent:
        logger.warning("no engine output for %gs with in-flight requests; treating engine as dead", limit_s)
        group.lose(silent, EngineSilent(limit_s), connected=GivenUp.SILENT)


async def _is_paused(group: Group, rank: int) -> bool:
    """Whether a vLLM engine says that it is paused or asleep. Its answer is a sign of life: the clock starts anew."""
    if not group.can_be_asked:
        return False
    try:
        with trio.move_on_after(_PAUSED_ANSWER_LIMIT_S):
            return await group.call_utility(rank, "is_scheduler_paused", ()) is True
    except SmgError:
        return False
    return False
