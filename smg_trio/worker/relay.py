"""Engines that know fewer socket pairs than there are processes: the keeper is the engine to the others.

TokenSpeed uses one pair. A vLLM engine knows the pairs that its INIT listed, which may have been those of a gateway of
fewer processes. Per rank and per front without a pair of its own the keeper holds a line: a DEALER with the rank's
identity and a PUSH, connected to that front's pair as the engine's would be. It registers in the engine's place, hands
every output message as it is to every such front (they ignore ids that they do not know), and every message of a front
as it is to the engine. When the engine goes the lines are closed, which fronts notice as they notice an engine going.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from smg_trio.wire.handshake import encode_relayed_registration, identity_of_rank
from smg_trio.worker.commands import SendRelayed
from smg_trio.worker.links import Link, LinkClosed, Transport

if TYPE_CHECKING:
    from smg_trio.core.engines import EngineInfo
    from smg_trio.wire.addresses import WorkerAddresses
    from smg_trio.worker.commands import Command
    from smg_trio.worker.group import Group

logger = logging.getLogger("smg_trio.worker")


class _Line:
    """The connections to one front in one engine's place."""

    def __init__(self, transport: Transport, addresses: WorkerAddresses, rank: int, front: int) -> None:
        pair = addresses.pair(front)
        self.rank = rank
        self.front = front
        self.input: Link = transport.dial_input(pair.input, identity_of_rank(rank))
        self.output: Link = transport.dial_output(pair.output)

    def close(self) -> None:
        self.input.close()
        self.output.close()


class Relay:
    """All lines of one binding of a worker's sockets, in the keeper. `run` it; `pass_on` is for the dispatcher.

    Args:
        wait_change: returns at the next change of a rank's phase.
        stalled: told the number of a front that has not taken what waits for it, up to the bound.
    """

    def __init__(
        self,
        transport: Transport,
        addresses: WorkerAddresses,
        pairs: int,
        group: Group,
        commands: trio.MemorySendChannel[Command],
        wait_change: Callable[[], Awaitable[None]],
        stalled: Callable[[int], None],
    ) -> None:
        self._transport = transport
        self._addresses = addresses
        self._pairs = pairs
        self._group = group
        self._commands = commands
        self._wait_change = wait_change
        self._stalled = stalled
        self._lines: dict[int, tuple[EngineInfo, list[_Line]]] = {}

    async def run(self) -> None:
        """Open and close lines as engines come and go. Cancelled, all are closed."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    self._look(nursery)
                    await self._wait_change()
        finally:
            for rank in list(self._lines):
                self._close(rank)

    def _look(self, nursery: trio.Nursery) -> None:
        handshake = self._group.handshake
        for rank in range(self._group.engine_count):
            info = handshake.info(rank) if rank in handshake.ready_ranks() else None
            known = self._lines.get(rank)
            if known is not None and known[0] is not info:
                self._close(rank)
            if info is not None and rank not in self._lines and info.pairs < self._pairs:
                self._open(rank, info, nursery)

    def _open(self, rank: int, info: EngineInfo, nursery: trio.Nursery) -> None:
        fronts = range(max(info.pairs, 1), self._pairs)
        logger.info(
            "rank %d knows %d of %d socket pairs: the keeper passes on what the others say",
            rank,
            info.pairs,
            self._pairs,
        )
        lines = [_Line(self._transport, self._addresses, rank, front) for front in fronts]
        self._lines[rank] = info, lines
        for line in lines:
            line.input.send_nowait([encode_relayed_registration(info)])
            nursery.start_soon(self._read, line)

    def _close(self, rank: int) -> None:
        for line in self._lines.pop(rank)[1]:
            line.close()

    async def _read(self, line: _Line) -> None:
        """Hand on what the front says to the engine."""
        try:
            while True:
                for frames in await line.input.receive_many():
                    self._group.relayed_ids.note(frames)
                    self._commands.send_nowait(SendRelayed(line.rank, frames))
        except LinkClosed:
            return

    def relays(self, rank: int) -> bool:
        """Whether what the rank says is for other processes, too."""
        return rank in self._lines

    def pass_on(self, rank: int, frames: list[bytes]) -> None:
        """An output message of the rank has come: hand it to every front without a pair of its own."""
        known = self._lines.get(rank)
        if known is None:
            return
        for line in known[1]:
            try:
                line.output.send_nowait(frames)
            except trio.WouldBlock:
                self._stalled(line.front)
