"""The task that owns the sending side of the input ROUTER: commands in, frames out, in order."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import EngineDead, EngineFault, SmgError, UnsupportedFeature
from smg_trio.core.workers import RankPhase
from smg_trio.wire.handshake import identity_of_rank
from smg_trio.worker.commands import (
    Command,
    SendAbort,
    SendAdd,
    SendOrphanAbort,
    SendRelayed,
    SendSign,
    SendUtility,
    SendWave,
)
from smg_trio.worker.links import Link, LinkClosed, PeerUnreachable
from smg_trio.worker.liveness import GivenUp

if TYPE_CHECKING:
    from smg_trio.wire.codec import EngineCodec
    from smg_trio.wire.packing import Frame
    from smg_trio.worker.group import Group

logger = logging.getLogger("smg_trio.worker")

SEND_LIMIT_S = 10.0
"""How long handing one message to an engine may take before it counts as dead (the reference's limit)."""

_TURN = 64
"""Commands carried out before other tasks get their turn."""
_LARGE_FRAME_BYTES = 16_384
"""Other tasks get their turn after a larger request."""


class InputOwner:
    """Sends what the command channel says.

    An engine that is not connected, or does not take a message within `send_limit_s`, is lost.
    """

    def __init__(
        self,
        link: Link,
        group: Group,
        codec: EngineCodec,
        commands: trio.MemoryReceiveChannel[Command],
        send_limit_s: float = SEND_LIMIT_S,
    ) -> None:
        self._link = link
        self._group = group
        self._codec = codec
        self._commands = commands
        self._send_limit_s = send_limit_s

    async def run(self) -> None:
        """Send until cancelled; commands not yet carried out then stay in the channel. Raises LinkClosed, OSError."""
        while True:
            await self._carry_out(await self._commands.receive())
            for _ in range(_TURN):
                try:
                    command = self._commands.receive_nowait()
                except trio.WouldBlock:
                    break
                await self._carry_out(command)

    async def _carry_out(self, command: Command) -> None:
        if isinstance(command, SendAdd):
            entry = command.entry
            frames = None if entry.ended else self._encode_add(command)
            if frames is not None:
                entry.sent = True
                await self._send(entry.rank, frames)
                if len(frames[-1]) > _LARGE_FRAME_BYTES:
                    await trio.lowlevel.checkpoint()
        elif isinstance(command, SendAbort):
            if command.entry.sent:
                await self._send(command.entry.rank, self._codec.encode_abort([command.entry.request_id]))
        elif isinstance(command, SendOrphanAbort):
            await self._send(command.rank, self._codec.encode_abort([command.request_id]))
        elif isinstance(command, SendWave):
            for rank in self._group.handshake.ready_ranks():
                await self._send(rank, self._codec.encode_start_wave(command.wave))
        elif isinstance(command, SendRelayed):
            await self._send(command.rank, command.frames)
        elif isinstance(command, SendSign):
            self._ask_for_sign(command)
        else:
            await self._call_utility(command)

    def _encode_add(self, command: SendAdd) -> list[Frame] | None:
        try:
            return self._codec.encode_add(command.request, wave=command.wave, client_index=command.client_index)
        except SmgError as error:
            self._group.fail(command.entry, error)
        except Exception:
            # One request that cannot be encoded must not take the worker's other requests with it.
            logger.exception("cannot encode a request")
            self._group.fail(command.entry, EngineFault("the request could not be sent to the engine"))
        return None

    async def _call_utility(self, command: SendUtility) -> None:
        try:
            frames = self._codec.encode_utility(
                command.call_id, command.method, command.arguments, client_index=command.client_index
            )
        except UnsupportedFeature as error:
            self._group.fail_utility(command.call_id, error)
        except Exception:
            # As with requests: one call that cannot be encoded must not take the worker with it.
            logger.exception("cannot encode the engine call %s", command.method)
            self._group.fail_utility(command.call_id, EngineFault("the call could not be sent to the engine"))
        else:
            await self._send(command.rank, frames)

    def _ask_for_sign(self, command: SendSign) -> None:
        request = command.request
        frames: Sequence[Frame]
        if request is None:
            frames = self._codec.encode_utility(command.call_id, "is_sleeping", (), client_index=command.client_index)
        else:
            frames = self._codec.encode_add(request)
        try:
            self._link.send_nowait([identity_of_rank(command.rank), *frames])
        except trio.WouldBlock:
            return
        except PeerUnreachable:
            self._group.gone_for_good(command.rank)

    async def _send(self, rank: int, frames: Sequence[Frame]) -> None:
        message = [identity_of_rank(rank), *frames]
        try:
            try:
                self._link.send_nowait(message)
            except trio.WouldBlock:
                # An engine that has been given up is not waited for: others behind the same socket would wait too.
                if self._group.handshake.phase(rank) is RankPhase.READY:
                    await self._send_blocked(rank, message)
        except PeerUnreachable:
            if self._group.handshake.phase(rank) is RankPhase.READY:
                self._group.lose([rank], self._group.disconnected("the engine is not connected"))

    async def _send_blocked(self, rank: int, message: Sequence[Frame]) -> None:
        with trio.move_on_after(self._send_limit_s) as scope:
            await self._link.send(message)
        if scope.cancelled_caught:
            logger.warning("engine input send timed out; treating engine as dead")
            self._group.lose([rank], EngineDead("the engine does not take requests"), connected=GivenUp.DEAF)

    def flush_aborts(self) -> None:
        """Before the socket closes: send the aborts that are queued; what cannot go immediately is dropped."""
        while True:
            try:
                command = self._commands.receive_nowait()
            except trio.WouldBlock:
                return
            if isinstance(command, SendAbort) and command.entry.sent:
                frames = self._codec.encode_abort([command.entry.request_id])
                try:
                    self._link.send_nowait([identity_of_rank(command.entry.rank), *frames])
                except (PeerUnreachable, LinkClosed, trio.WouldBlock, OSError):
                    continue
