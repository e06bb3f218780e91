"""Socket pairs that engines know and no process has.

They are those of a gateway of more processes that was here before, and that of a front which cannot be started for the
moment. What its requests make waits in the engines for the process that binds the pair, and none would ever tell them
to stop. So the keeper binds such pairs and has whatever speaks there stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import ConfigError, ProtocolViolation
from smg_trio.worker.commands import SendOrphanAbort
from smg_trio.worker.socket_directory import remove_stale_socket

if TYPE_CHECKING:
    from smg_trio.wire.addresses import WorkerAddresses
    from smg_trio.wire.codec import EngineCodec
    from smg_trio.worker.commands import Command
    from smg_trio.worker.group import Group
    from smg_trio.worker.links import Link, Transport

logger = logging.getLogger("smg_trio.worker")

_MOST = 256


class AbsentPairs:
    """`run` it in the keeper, or in the only process of a gateway that had more.

    Args:
        pairs: how many the present gateway has.
        wait_change: returns at the next change of a rank's phase.
    """

    def __init__(
        self,
        transport: Transport,
        addresses: WorkerAddresses,
        pairs: int,
        group: Group,
        codec: EngineCodec,
        commands: trio.MemorySendChannel[Command],
        wait_change: Callable[[], Awaitable[None]],
    ) -> None:
        self._transport = transport
        self._addresses = addresses
        self._pairs = pairs
        self._group = group
        self._codec = codec
        self._commands = commands
        self._wait_change = wait_change

    async def run(self) -> None:
        """Bind what is missing as engines are found that know it. Cancelled, all are closed."""
        bound = self._pairs
        async with trio.open_nursery() as nursery:
            while True:
                infos = map(self._group.handshake.info, self._group.handshake.ready_ranks())
                known = min(max((info.pairs for info in infos if info is not None), default=0), _MOST)
                for index in range(bound, known):
                    nursery.start_soon(self.hold, index)
                bound = max(bound, known)
                await self._wait_change()

    async def hold(self, index: int) -> None:
        """Bind one pair and have stopped what speaks there, until cancelled; then it can be bound by its process."""
        pair = self._addresses.pair(index)
        links: list[Link] = []
        try:
            for path in (pair.input_path, pair.output_path):
                remove_stale_socket(path)
            links.append(self._transport.bind_input(pair.input))
            links.append(self._transport.bind_output(pair.output))
            logger.info("holding socket pair %d, which no process has", index)
            await self._stop_requests(links[1])
        except (OSError, ConfigError) as error:
            logger.warning("socket pair %d, which no process has, cannot be held: %s", index, error)
        finally:
            for link in links:
                link.close()
            if links:
                remove_stale_socket(pair.input_path)
                remove_stale_socket(pair.output_path)

    async def _stop_requests(self, output: Link) -> None:
        stopped: set[str] = set()
        while True:
            for frames in await output.receive_many():
                try:
                    batch = self._codec.decode_outputs(frames)
                except ProtocolViolation:
                    continue
                for request_id, one in batch.outputs:
                    if one.finish_reason is not None:
                        stopped.discard(request_id)
                    elif request_id not in stopped:
                        stopped.add(request_id)
                        self._commands.send_nowait(SendOrphanAbort(batch.rank, request_id))
