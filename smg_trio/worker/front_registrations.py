"""How a front learns of engines: each registers on every socket pair that its INIT listed. The keeper does the rest."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import ProtocolViolation
from smg_trio.wire.handshake import decode_registration, rank_of_identity, relayed_pairs

if TYPE_CHECKING:
    from smg_trio.core.engines import EngineInfo
    from smg_trio.core.workers import WorkerSpec
    from smg_trio.worker.group import Group
    from smg_trio.worker.links import Link

logger = logging.getLogger("smg_trio.worker")


async def take_registrations(link: Link, group: Group, spec: WorkerSpec, pairs: int) -> None:
    """Take what engines say on the input ROUTER, until cancelled. Raises LinkClosed.

    An engine that registers has been told of `pairs` pairs, by the keeper of this front.
    """
    while True:
        for frames in await link.receive_many():
            try:
                rank, info = _read(frames, spec, pairs)
            except ProtocolViolation as violation:
                group.refuse(group.refusals.input, f"unexpected message: {violation.detail}", trio.current_time())
                continue
            logger.info("engine connected: rank %d of %s (%s)", rank, spec.url, info.engine_version)
            group.registered(rank, info)


def _read(frames: list[bytes], spec: WorkerSpec, pairs: int) -> tuple[int, EngineInfo]:
    if len(frames) != 2:
        raise ProtocolViolation("registration", f"expected 2 frames, got {len(frames)}")
    rank = rank_of_identity(frames[0])
    if rank >= spec.engine_count:
        raise ProtocolViolation("registration", f"input registration for unexpected engine id {rank}")
    info = decode_registration(frames[1], spec.protocol)
    relayed = relayed_pairs(frames[1])
    return rank, replace(info, pairs=relayed or pairs, relayed=bool(relayed))
