"""Engines that can be broken: in processes of their own, which take real signals, or in here, which can talk nonsense.

Both are kept alive: an engine that has died starts again after a moment, as under a supervisor.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import trio

from smg_trio.testing.options import EngineOptions, HandshakeStage
from smg_trio.testing.zmq_engine import zmq_engine

if TYPE_CHECKING:
    import zmq

    from smg_trio.core.engines import EngineProtocol

ROOT = Path(__file__).resolve().parents[2]
STEP_S = 0.004
LONGEST_PAUSE_S = 1.5
"""Of anything that comes back by itself; longer than the silence limit that chaos sets."""

Fault = Callable[[], Awaitable[None]]


class ProcessEngines:
    """All ranks of one worker in one process."""

    def __init__(self, handshake: str, protocol: EngineProtocol, ranks: int, random: Random) -> None:
        self._random = random
        self._process: trio.Process | None = None
        self._command = [
            sys.executable, "-m", "smg_trio", "fake-engine", "--handshake", handshake, "--protocol", protocol.value,
            "--ranks", str(ranks), "--step-ms", str(STEP_S * 1000), "--max-num-seqs", "8",
        ]  # fmt: skip

    async def run(self) -> None:
        """Keep them alive, forever; cancelled, they are killed."""
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        run = partial(trio.run_process, self._command, stderr=subprocess.DEVNULL, check=False, env=environment)
        while True:
            async with trio.open_nursery() as nursery:
                self._process = await nursery.start(partial(run, deliver_cancel=_kill))
            self._process = None
            await trio.sleep(self._random.uniform(0.0, 0.5))

    def faults(self) -> dict[str, Fault]:
        """What can be done to them."""
        return {"SIGKILL": self._killed, "SIGTERM": self._terminated, "SIGSTOP": self._stopped}

    def leftovers(self) -> list[str]:
        """What of their requests is still there: nothing that can be seen from here."""
        return []

    async def _killed(self) -> None:
        self._signal(signal.SIGKILL)

    async def _terminated(self) -> None:
        self._signal(signal.SIGTERM)

    async def _stopped(self) -> None:
        process = self._process
        self._signal(signal.SIGSTOP)
        try:
            await trio.sleep(self._random.uniform(0.0, LONGEST_PAUSE_S))
        finally:
            if process is not None and process.returncode is None:
                process.send_signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)


async def _kill(process: trio.Process) -> None:
    process.kill()


class LocalEngines:
    """All ranks of one worker in this process, one task each."""

    def __init__(
        self,
        handshake: str,
        protocol: EngineProtocol,
        ranks: int,
        random: Random,
        context: zmq.Context[zmq.Socket[bytes]],
    ) -> None:
        self._random = random
        self._options = [
            EngineOptions(protocol=protocol, rank=rank, group_size=ranks, step_time_s=STEP_S, max_num_seqs=8)
            for rank in range(ranks)
        ]
        self.engines = [zmq_engine(options, handshake, context=context) for options in self._options]
        self._next: dict[int, EngineOptions] = {}
        self._scopes = [trio.CancelScope() for _ in self.engines]

    async def run(self) -> None:
        """Keep them alive, forever; cancelled, they are killed."""
        async with trio.open_nursery() as nursery:
            for rank in range(len(self.engines)):
                nursery.start_soon(self._keep, rank)

    async def _keep(self, rank: int) -> None:
        while True:
            self.engines[rank].options = self._next.pop(rank, self._options[rank])
            with trio.CancelScope() as self._scopes[rank]:
                await self.engines[rank].run()
            await trio.sleep(self._random.uniform(0.0, 0.5))

    def _any(self) -> int:
        return self._random.randrange(len(self.engines))

    def faults(self) -> dict[str, Fault]:
        """What can be done to them."""
        return {
            "killed": self._killed,
            "died with the sentinel": self._died,
            "restarted immediately": self._restarted,
            "vanished while starting": self._vanished,
            "garbage": self._garbage,
            "silence, then killed": self._silent,
            "input unread": self._unread,
            "input closed, then killed": self._half_open,
        }

    def leftovers(self) -> list[str]:
        """What of their requests is still there."""
        return [f"an engine still runs {engine.in_flight} requests" for engine in self.engines if engine.in_flight]

    def received(self) -> list[str]:
        """Ids of all requests that have come."""
        return [request.request_id for engine in self.engines for request in engine.received]

    async def _killed(self) -> None:
        self._scopes[self._any()].cancel()

    async def _died(self) -> None:
        self.engines[self._any()].die()

    async def _restarted(self) -> None:
        self.engines[self._any()].restart(sentinel=self._random.random() < 0.5)

    async def _vanished(self) -> None:
        rank = self._any()
        stage = self._random.choice(list(HandshakeStage))
        self._next[rank] = replace(self._options[rank], vanish_after=stage)
        self._scopes[rank].cancel()

    async def _garbage(self) -> None:
        engine = self.engines[self._any()]
        nonsense: list[list[bytes]] = [[b"\xc1\xff\x00"], [b""], [b"\x90"], [b"\x93\x00\x00\x00"], [b"\x80", b"x"]]
        for _ in range(self._random.randint(1, 4)):
            with contextlib.suppress(RuntimeError):  # it is not connected just now
                engine.send_raw(self._random.choice(nonsense))

    async def _silent(self) -> None:
        # What a silent fake would have said is lost, as it never is on a socket; so its life ends with the silence.
        rank = self._any()
        self.engines[rank].go_silent()
        await trio.sleep(self._random.uniform(0.0, LONGEST_PAUSE_S))
        self._scopes[rank].cancel()

    async def _unread(self) -> None:
        engine = self.engines[self._any()]
        engine.stop_reading()
        try:
            await trio.sleep(self._random.uniform(0.0, LONGEST_PAUSE_S))
        finally:
            engine.resume_reading()

    async def _half_open(self) -> None:
        rank = self._any()
        self.engines[rank].close_input()
        await trio.sleep(self._random.uniform(0.0, LONGEST_PAUSE_S))
        self._scopes[rank].cancel()


Engines = ProcessEngines | LocalEngines
