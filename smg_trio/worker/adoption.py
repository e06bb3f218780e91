"""Takes over engines that a gateway before this one had connected, without a restart of theirs.

The sockets are bound at the same paths, so living engines reconnect within moments. One that can be reached and (where
the protocol has a way to ask) answers is READY with its kept registration; one that cannot within the limit is waited
for like any other. Requests of the old gateway are aborted when they first speak.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import trio

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.errors import SmgError
from smg_trio.core.workers import RankPhase

if TYPE_CHECKING:
    from smg_trio.worker.group import Group
    from smg_trio.worker.peer_watch import PeerWatch

logger = logging.getLogger("smg_trio.worker")

ADOPTION_LIMIT_S = 10.0
"""How long an engine that was connected before is looked for. libzmq tries to reconnect every 0.1 s."""
_ASK_LIMIT_S = 3.0
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5


async def adopt_engines(
    group: Group, peers: PeerWatch, protocol: EngineProtocol, kept: Mapping[int, EngineInfo]
) -> None:
    """Look for every kept engine at once. Cancelled, those found stay adopted."""
    async with trio.open_nursery() as nursery:
        for rank, info in kept.items():
            nursery.start_soon(_adopt, group, peers, protocol, rank, info)


async def take_back(
    group: Group, peers: PeerWatch, protocol: EngineProtocol, wait_change: Callable[[], Awaitable[None]]
) -> None:
    """Take engines on other hosts back once they have connected again, which they do without a word. For ever."""
    looked_for: set[int] = set()

    async def look(rank: int, info: EngineInfo) -> None:
        # A registration of its own: what was known of the connections of the last is of no use.
        await _adopt(group, peers, protocol, rank, replace(info), inf)
        looked_for.discard(rank)

    async with trio.open_nursery() as nursery:
        while True:
            for rank, info in group.disconnected_engines.items():
                if rank not in looked_for:
                    looked_for.add(rank)
                    nursery.start_soon(look, rank, info)
            await wait_change()


async def _adopt(
    group: Group,
    peers: PeerWatch,
    protocol: EngineProtocol,
    rank: int,
    info: EngineInfo,
    limit_s: float = ADOPTION_LIMIT_S,
) -> None:
    with trio.move_on_after(limit_s):
        pause_s = _FIRST_PAUSE_S
        while group.handshake.phase(rank) is RankPhase.WAITING:
            if peers.is_reachable(rank) and await _answers(group, protocol, rank, info):
                break
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        # A HELLO that came meanwhile is of a new engine: then there is nothing to adopt.
        if group.handshake.phase(rank) is RankPhase.WAITING:
            logger.info("rank %d is alive and was connected before: adopted", rank)
            group.adopt(rank, info)


async def _answers(group: Group, protocol: EngineProtocol, rank: int, info: EngineInfo) -> bool:
    """vLLM engines can be asked; of a TokenSpeed engine an open connection is all that can be seen."""
    if protocol is not EngineProtocol.VLLM:
        return True
    try:
        with trio.move_on_after(_ASK_LIMIT_S):
            await group.call_utility(rank, "is_sleeping", (), info)
            return True
    except SmgError:
        return False
    return False
