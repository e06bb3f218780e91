"""A fake engine on any network: the shell around `engine_core`, with controls for tests.

One run is one life: dial, handshake, register, serve, die. The tasks of a life are the reader (owns the input
link) and the stepper (owns the output link). `run` returns when the engine is dead for good; run it again for a
new life, or use `restart` to have it live again immediately. Records outlive a life.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from smg_trio.testing.codec import EngineCodec, codec_for
from smg_trio.testing.engine_core import EngineCore, EngineRecord
from smg_trio.testing.lockstep import LockstepGroup
from smg_trio.testing.messages import ENGINE_CORE_DEAD, FrontMessage, Message
from smg_trio.testing.options import EngineOptions, HandshakeStage
from smg_trio.testing.script import LengthScript, Script, ScriptChooser
from smg_trio.worker.links import Link, LinkClosed

if TYPE_CHECKING:
    from smg_trio.testing.commands import EngineRequest, UtilityCall
    from smg_trio.testing.dialer import Dialer

GARBAGE = b"\xc1\xff\x00garbage"


def _default_script(request: EngineRequest) -> Script:
    return LengthScript()


class FakeEngine:
    """One engine of either protocol; see `EngineOptions` for how it behaves.

    Attributes:
        options: may be replaced between lives.
        record: everything asked of it so far; `received`, `aborts` and `waves` are short-cuts.
        exit_reason: why the last life ended, None while it lives.
        silent: outputs are swallowed, see `go_silent`.
    """

    def __init__(
        self,
        options: EngineOptions,
        dialer: Dialer,
        handshake_address: str,
        *,
        choose_script: ScriptChooser = _default_script,
        group: LockstepGroup | None = None,
    ) -> None:
        if options.lockstep and group is None:
            group = LockstepGroup(options.group_size, sync_interval=options.dp_sync_interval)
        self.options = options
        self.record = EngineRecord()
        self.exit_reason: str | None = None
        self.choose_script = choose_script
        self._dialer = dialer
        self._address = handshake_address
        self._group = group
        self._changed = trio.Event()
        self._connected = False
        self._restart = False
        self.silent = False
        self._reading = trio.Event()
        self._reading.set()
        self._life: _Life | None = None

    async def run(self) -> str:
        """Live until death; returns why it died. Cancelling is a SIGKILL: links close, nothing is said."""
        while True:
            self._restart, self.silent, self.exit_reason = False, False, None
            self.resume_reading()
            reason = await self._live()
            self.exit_reason = reason
            self.note_change()
            if not self._restart:
                return reason

    @property
    def received(self) -> list[EngineRequest]:
        """Requests in order of arrival."""
        return self.record.received

    @property
    def aborts(self) -> list[str]:
        """Aborted request ids in order of arrival."""
        return self.record.aborts

    @property
    def waves(self) -> list[tuple[int, int]]:
        """(wave, exclude rank) of each wake-up."""
        return self.record.waves

    @property
    def utilities(self) -> list[UtilityCall]:
        """Utility calls in order of arrival."""
        return self.record.utilities

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        life = self._life
        return life.core.in_flight if life is not None else 0

    async def wait_connected(self) -> None:
        """Wait until registration and READY have been sent."""
        await self.wait_until(lambda: self._connected)

    async def wait_received(self, count: int = 1) -> list[EngineRequest]:
        """Wait until at least ``count`` requests have come in all, and return them."""
        await self.wait_until(lambda: len(self.received) >= count)
        return self.received

    async def wait_aborted(self, request_id: str) -> None:
        """Wait until the id has been aborted."""
        await self.wait_until(lambda: request_id in self.aborts)

    async def wait_waves(self, count: int = 1) -> list[tuple[int, int]]:
        """Wait until at least ``count`` wake-ups have come in all, and return them."""
        await self.wait_until(lambda: len(self.waves) >= count)
        return self.waves

    async def wait_dead(self) -> str:
        """Wait until a life has ended; returns why."""
        await self.wait_until(lambda: self.exit_reason is not None)
        return self.exit_reason or ""

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds()``; looked at after each message, step and change of state."""
        while not holds():
            await self._changed.wait()
        await trio.lowlevel.checkpoint()

    def die(self, *, sentinel: bool = True, reason: str = "told to die") -> None:
        """End this life, with or without the sentinel frame."""
        if self._life is not None:
            self._life.end(reason, sentinel=sentinel)

    def restart(self, *, sentinel: bool = False) -> None:
        """End this life and start the next one immediately, from HELLO."""
        self._restart = True
        self.die(sentinel=sentinel, reason="restarted")

    def go_silent(self) -> None:
        """From now on swallow every output; the engine works on and takes requests."""
        self.silent = True

    def speak_again(self) -> None:
        """End the silence; what was swallowed is gone."""
        self.silent = False

    def stop_reading(self) -> None:
        """Leave what comes in unread in the link, like a hung input thread; told twice is told once."""
        if self._reading.is_set():
            self._reading = trio.Event()

    def resume_reading(self) -> None:
        """Read again."""
        self._reading.set()

    async def may_read(self) -> None:
        """Wait while it has been told to stop reading."""
        await self._reading.wait()

    def close_input(self) -> None:
        """Close the input links only: half-open, as a vLLM engine is after a request it cannot decode."""
        if self._life is not None:
            self._life.close_inputs()

    def send_raw(self, frames: Sequence[bytes]) -> None:
        """Put any message on the first output link. Raises RuntimeError when not connected."""
        if self._life is None or not self._life.outputs:
            raise RuntimeError("the engine is not connected")
        self._life.outputs[0].send_nowait(frames)

    def send_garbage(self, count: int = 1) -> None:
        """Send ``count`` output messages that are not msgpack."""
        for _ in range(count):
            self.send_raw([GARBAGE])

    async def _live(self) -> str:
        codec = codec_for(self.options)
        core = EngineCore(self.options, codec, self._choose, group=self._group, record=self.record)
        life = self._life = _Life(self, core, codec)
        try:
            return await life.run(self._dialer, self._address)
        finally:
            self._connected = False
            self._life = None
            if self._group is not None:
                self._group.leave(self.options.rank)

    def _choose(self, request: EngineRequest) -> Script:
        return self.choose_script(request)  # looked up each time: tests replace it while the engine runs

    def note_connected(self) -> None:
        """For its life: the handshake is over."""
        self._connected = True
        self.note_change()

    def note_change(self) -> None:
        """For its life: something that is waited for may have changed."""
        if self._changed.statistics().tasks_waiting:
            self._changed.set()
            self._changed = trio.Event()


class _Life:
    """One incarnation: its links, its core, its two tasks."""

    def __init__(self, engine: FakeEngine, core: EngineCore, codec: EngineCodec) -> None:
        self.core = core
        self.inputs: list[Link] = []
        self.outputs: list[Link] = []
        self._engine = engine
        self._codec = codec
        self._wake = trio.Event()
        self._scope = trio.CancelScope()
        self._reason = "killed"
        self._sentinel = False
        self._mute = False
        self._outbox: list[Message] = []
        if core.rank is not None:
            core.rank.notify = self._notify

    def end(self, reason: str, *, sentinel: bool) -> None:
        self._reason, self._sentinel = reason, sentinel
        self._scope.cancel()

    async def run(self, dialer: Dialer, address: str) -> str:
        try:
            with self._scope:
                if await self._start(dialer, address):
                    await self._serve()
            if self._sentinel and not self._mute:
                for output in self.outputs:
                    with contextlib.suppress(trio.WouldBlock):  # like the real ones: no waiting for room
                        output.send_nowait([ENGINE_CORE_DEAD])
        finally:
            for link in (*self.inputs, *self.outputs):
                link.close()
        return self._reason

    def close_inputs(self) -> None:
        for link in self.inputs:
            link.close()

    async def _start(self, dialer: Dialer, address: str) -> bool:
        """Handshake and registration; False if the engine is told to vanish on the way."""
        options = self._engine.options
        handshake = dialer.dial_handshake(address, options.identity)
        try:
            if not self._codec.malformed_is_fatal:  # TokenSpeed loads first and then says HELLO
                await trio.sleep(options.load_time_s)
            handshake.send_nowait([options.hello or self._codec.hello()])
            if self._vanishes(HandshakeStage.HELLO):
                return await self._linger()
            init = await self._receive_init(handshake)
            if init is None or self._vanishes(HandshakeStage.INIT):
                return False
            if self._codec.malformed_is_fatal:
                await trio.sleep(options.load_time_s)
            self._open(dialer, init)
            return await self._announce(handshake)
        finally:
            handshake.close()

    async def _receive_init(self, handshake: Link) -> bytes | None:
        timeout_s = self._engine.options.init_timeout_s or self._codec.init_timeout_s
        with trio.move_on_after(timeout_s):
            return (await handshake.receive_many(1))[0][0]
        self._reason = f"no INIT within {timeout_s:g}s"
        return None

    def _open(self, dialer: Dialer, init: bytes) -> None:
        inputs, outputs = self._codec.addresses(init)
        identity = self._engine.options.identity
        self.inputs = [dialer.dial_input(address, identity) for address in inputs]
        self.outputs = [dialer.dial_output(address) for address in outputs]

    async def _announce(self, handshake: Link) -> bool:
        """Send registration and READY in the order asked for."""
        options = self._engine.options
        steps = [
            (HandshakeStage.REGISTRATION, self.inputs, options.registration or self._codec.registration()),
            (HandshakeStage.READY, [handshake], self._codec.ready()),
        ]
        if options.ready_first or not self._codec.malformed_is_fatal:
            steps.reverse()
        for stage, links, message in steps:
            for link in links:
                link.send_nowait([message])
            if self._vanishes(stage):
                return await self._linger()
        self._engine.note_connected()
        return True

    def _vanishes(self, stage: HandshakeStage) -> bool:
        if self._engine.options.vanish_after is not stage:
            return False
        self._reason = f"vanished after {stage}"
        return True

    async def _linger(self) -> bool:
        """Give what was just sent a moment to leave before the links close; always False."""
        await trio.sleep(0.05)
        return False

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            for link in self.inputs:
                nursery.start_soon(self._read, link)
            await self._step()

    async def _read(self, link: Link) -> None:
        engine, core = self._engine, self.core
        try:
            while core.takes_input():
                await engine.may_read()
                batch = await link.receive_many()
                if engine.options.input_delay_s:
                    await trio.sleep(engine.options.input_delay_s)
                await engine.may_read()  # told to stop while it waited: what came since is not looked at
                for frames in batch:
                    self._outbox += core.receive(frames, trio.current_time())
                    if not core.takes_input():
                        break
                self._notify()
                engine.note_change()
        except LinkClosed:
            return
        self.close_inputs()

    async def _step(self) -> None:
        core = self.core
        while True:
            now = trio.current_time()
            self._outbox += core.wake(now)
            await self._flush()
            if core.doom is not None:
                self.end(core.doom, sentinel=True)
                await trio.lowlevel.checkpoint()
            due = math.inf if core.due is None else core.due
            if due > now:
                await self._sleep_until(due)
            else:  # late, or steps that take no time: the reader must get its turn all the same
                await trio.lowlevel.checkpoint()
            if trio.current_time() >= due:
                self._outbox += core.step(trio.current_time())
                self._engine.note_change()

    async def _sleep_until(self, due: float) -> None:
        wake = self._wake
        with trio.move_on_at(due):
            await wake.wait()
        if wake.is_set():
            self._wake = trio.Event()

    async def _flush(self) -> None:
        while self._outbox:
            messages, self._outbox = self._outbox, []
            if self._engine.silent:
                continue
            for message in messages:
                output = self._output_of(message)
                if output is None:
                    continue
                try:
                    output.send_nowait(message)
                except trio.WouldBlock:
                    await output.send(message)

    def _output_of(self, message: Message) -> Link | None:
        """None once the engine is mute: its output thread has died of a client index that is none (vLLM 0.32.0)."""
        client_index = message.client_index if isinstance(message, FrontMessage) else 0
        if self._mute or client_index == -1 or not -len(self.outputs) <= client_index < len(self.outputs):
            self._mute = True
            return None
        return self.outputs[client_index]

    def _notify(self) -> None:
        self._wake.set()
