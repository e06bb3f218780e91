"""The task that owns the output PULL: frames → batches → each request's memory channel. It waits for no consumer."""

from __future__ import annotations

import logging

import trio

from smg_trio.core.errors import EngineDead, ProtocolViolation
from smg_trio.wire.codec import EngineCodec, is_dead_sentinel
from smg_trio.worker.group import GivenUp, Group
from smg_trio.worker.links import Link
from smg_trio.worker.peer_watch import PeerWatch

logger = logging.getLogger("smg_trio.worker")

UNDECODABLE_LIMIT = 3
"""Consecutive undecodable outputs that mean the other side speaks something else (the reference's limit)."""


async def dispatch(link: Link, group: Group, codec: EngineCodec, peers: PeerWatch, nursery: trio.Nursery) -> None:
    """Read outputs for ever. Raises LinkClosed. Cancelled, unread messages stay in the socket."""
    decode, apply = codec.decode_outputs, group.apply
    undecodable = 0
    while True:
        messages = await link.receive_many()
        now = trio.current_time()
        for frames in messages:
            if is_dead_sentinel(frames):
                logger.warning("received ENGINE_CORE_DEAD sentinel from engine")
                nursery.start_soon(peers.settle_sentinel)
                continue
            try:
                batch = decode(frames)
            except ProtocolViolation as violation:
                undecodable += 1
                _note_undecodable(group, undecodable, violation)
                continue
            undecodable = 0
            apply(batch, now)


def _note_undecodable(group: Group, count: int, violation: ProtocolViolation) -> None:
    logger.warning("ignoring undecodable engine output (%s)", violation.detail)
    if count >= UNDECODABLE_LIMIT:
        logger.warning("engine output undecodable repeatedly; failing all in-flight requests")
        group.lose_all(EngineDead("the engine's output cannot be decoded"), connected=GivenUp.DEAF)
