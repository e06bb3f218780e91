"""The benchmark's engine process: smg-trio's fake engine, which also remembers when it sent each token.

It says what `words.Words` decides from each request's seed. Lines of JSON on stdin steer it, each answered by a
line on stdout: ``{"step_ms": 10}`` sets the pace, ``{"dump": "FILE"}`` writes the send times of all tokens since
the last dump as ``{seed: [CLOCK_MONOTONIC ns per token]}`` and forgets them.

    python -m bench.engine --handshake tcp://HOST:PORT --model-path DIR
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import msgpack
import trio

from bench.words import Words
from smg_trio.core.outputs import FinishReason
from smg_trio.testing.fake_engine import FakeEngine
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.script import Ending
from smg_trio.testing.zmq_engine import ZmqDialer

if TYPE_CHECKING:
    from smg_trio.testing.commands import EngineRequest
    from smg_trio.worker.links import Link

MAX_MODEL_LEN = 65536
_AT_MAX_TOKENS = Ending(FinishReason.LENGTH)


@dataclass(slots=True)
class Log:
    """What was sent since the last dump: (time, message) pairs, and the seed of each request id."""

    sent: list[tuple[int, bytes]]
    seeds: dict[str, int]

    def take(self) -> dict[int, list[int]]:
        """Send time of each token by seed; what was remembered is forgotten. Costs too much for a measured time."""
        times: dict[int, list[int]] = {seed: [] for seed in self.seeds.values()}
        for sent_at, message in self.sent:
            for output in msgpack.unpackb(message, strict_map_key=False)[1] or ():
                times[self.seeds[output[0]]] += [sent_at] * len(output[1])
        self.sent.clear()
        self.seeds.clear()
        gc.collect()
        return times


class RecordingLink:
    """A link whose messages are remembered with the time just before they were sent."""

    def __init__(self, link: Link, log: Log) -> None:
        self._link = link
        self._sent = log.sent
        self.receive_many = link.receive_many
        self.wait_peer_lost = link.wait_peer_lost
        self.close = link.close

    def send_nowait(self, frames: Sequence[bytes]) -> None:
        """See `Link.send_nowait`."""
        sent_at = monotonic_ns()
        self._link.send_nowait(frames)
        self._sent.append((sent_at, frames[0]))

    async def send(self, frames: Sequence[bytes]) -> None:
        """See `Link.send`."""
        sent_at = monotonic_ns()
        await self._link.send(frames)
        self._sent.append((sent_at, frames[0]))


class RecordingDialer(ZmqDialer):
    """Dials real sockets, the output one as a `RecordingLink`."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def dial_output(self, address: str) -> Link:  # type: ignore[override]
        """As `ZmqDialer.dial_output`."""
        return RecordingLink(super().dial_output(address), self._log)


@dataclass(frozen=True, slots=True)
class WordScript:
    """Says the words of the request's seed up to ``max_tokens``."""

    words: Words
    ending: Ending = _AT_MAX_TOKENS

    def ticks(self, request: EngineRequest) -> Iterator[Sequence[int]]:
        """Yield one id per step until cancelled."""
        return iter(self.words.ids(request.seed or 0))


class BenchEngine:
    """One engine and its control line."""

    def __init__(self, handshake: str, words: Words) -> None:
        self._log = Log([], {})
        self._script = WordScript(words)
        self._options = EngineOptions(
            max_model_len=MAX_MODEL_LEN, vocab_size=words.vocab_size, max_num_seqs=2048, step_time_s=0.001
        )
        dialer = RecordingDialer(self._log)
        self._engine = FakeEngine(self._options, dialer, handshake, choose_script=self._choose)

    def _choose(self, request: EngineRequest) -> WordScript:
        self._log.seeds[request.request_id] = request.seed or 0
        return self._script

    async def run(self) -> None:
        """Serve until stdin ends or the engine dies, which is said on stderr."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._obey, nursery.cancel_scope)
            print("fake engine died:", await self._engine.run(), flush=True)
            nursery.cancel_scope.cancel()

    async def _obey(self, scope: trio.CancelScope) -> None:
        async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
            async for line in stdin:  # one command at a time, so each read is a line
                os.write(1, json.dumps(self._command(json.loads(line))).encode() + b"\n")
        scope.cancel()

    def _command(self, command: dict[str, Any]) -> dict[str, Any]:
        if "step_ms" in command:
            # Frozen for its users; the pace is the one thing that may change under a life, and only a life that
            # goes on can serve front ends that do not take an engine back.
            object.__setattr__(self._options, "step_time_s", command["step_ms"] / 1000)
        if "dump" in command:
            Path(command["dump"]).write_text(json.dumps(self._log.take()))
        return {"steps": self._engine.record.steps, "warnings": self._engine.record.warnings}


def main() -> None:
    """Run until stdin ends."""
    parser = argparse.ArgumentParser(description="the benchmark's engine")
    parser.add_argument("--handshake", required=True)
    parser.add_argument("--model-path", type=Path, required=True)
    options = parser.parse_args()
    gc.disable()
    trio.run(partial(BenchEngine(options.handshake, Words(options.model_path)).run))


if __name__ == "__main__":
    main()
