"""Streams without pause through a whole gateway and checks every token, every abort and the gateway's memory.

    python scripts/soak.py [--seconds 60] [--streams 20] [--step-ms 10] [--protocol vllm] [--hang-up-every 10]

The gateway runs in a process of its own (``launch``); the fake engine and the clients run in this one. What the
engine says follows from a request's seed by a formula, so that a lost, doubled or swapped token is seen at once; every
so many streams are left by their client in the middle. Exit code 0: every token came once and in order, no
stream but those that were left has been aborted, nothing is in flight at the end, and memory has not grown by more than
``--max-growth-mb``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.outputs import FinishReason
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.script import Ending
from smg_trio.testing.zmq_engine import zmq_engine
from smg_trio.text.model_files import load_model_text
from smg_trio.wire.addresses import parse_worker_url

if TYPE_CHECKING:
    from smg_trio.testing.commands import EngineRequest
    from smg_trio.testing.fake_engine import FakeEngine
    from smg_trio.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
LENGTH = Ending(FinishReason.LENGTH)
START_LIMIT_S = 30.0
END_LIMIT_S = 10.0
WORDS = 1400
"""Ids below are ordinary tokens of the demo model, bytes that are no whole characters among them."""


def token_of(seed: int, position: int) -> int:
    """The token at a position of the stream with that seed."""
    return (seed * 389 + position * 7 + position * position % 11) % WORDS


@dataclass(frozen=True, slots=True)
class FormulaScript:
    """Says `token_of` its request's seed, for ever."""

    ending: Ending = LENGTH

    def ticks(self, request: EngineRequest) -> Iterator[Sequence[int]]:
        """One token per tick."""
        seed, position = request.seed or 0, 0
        while True:
            yield (token_of(seed, position),)
            position += 1


@dataclass(slots=True)
class Tally:
    """What has come of the streams so far."""

    streams: int = 0
    left: int = 0
    tokens: int = 0
    next_seed: int = 0
    faults: list[str] = field(default_factory=list)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="soak test of the gateway")
    add = parser.add_argument
    add("--seconds", type=float, default=60.0)
    add("--streams", type=int, default=20, help="at the same time")
    add("--step-ms", type=float, default=10.0, help="time per token of each stream")
    add("--protocol", choices=[protocol.value for protocol in EngineProtocol], default="vllm")
    add("--hang-up-every", type=int, default=10, metavar="N", help="every N-th stream is left in the middle; 0: none")
    add("--max-growth-mb", type=float, default=8.0, help="memory the gateway may gain after warming up")
    return parser.parse_args()


async def main(options: argparse.Namespace) -> int:
    """Run the soak; its exit code."""
    tokenizer = load_model_text(DEMO_MODEL).tokenizer
    with tempfile.TemporaryDirectory(prefix="smg-trio-soak-") as directory:
        url = f"ipc://{directory}/e"
        async with trio.open_nursery() as nursery:
            ports: dict[str, int] = {}
            gateway: trio.Process = await nursery.start(partial(_run_gateway, url, options.protocol))
            with trio.fail_after(START_LIMIT_S):
                await _read_port(gateway, ports)
            nursery.start_soon(_drain, gateway)
            engine_options = EngineOptions(
                protocol=EngineProtocol(options.protocol),
                step_time_s=options.step_ms / 1000,
                vocab_size=tokenizer.vocab_size,
            )
            engine = zmq_engine(
                engine_options, parse_worker_url(url).handshake, choose_script=lambda request: FormulaScript()
            )
            nursery.start_soon(engine.run)
            code = await _soak(options, gateway.pid, f"http://127.0.0.1:{ports['http']}", engine, tokenizer)
            gateway.terminate()
            with trio.fail_after(END_LIMIT_S):
                if await gateway.wait() != 0:
                    print(f"the gateway ended with {gateway.returncode}")
                    code = 1
            nursery.cancel_scope.cancel()
    return code


async def _run_gateway(url: str, backend: str, *, task_status: trio.TaskStatus[trio.Process]) -> None:
    command = [
        sys.executable, "-m", "smg_trio", "launch", "--worker-urls", url, "--backend", backend, "--model-path",
        str(DEMO_MODEL), "--host", "127.0.0.1", "--port", "0", "--prometheus-host", "127.0.0.1",
        "--prometheus-port", "0",
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    await trio.run_process(command, stderr=subprocess.PIPE, check=False, env=environment, task_status=task_status)


async def _read_port(gateway: trio.Process, ports: dict[str, int]) -> None:
    assert gateway.stderr is not None
    text = ""
    while "listening on " not in text or "\n" not in text.partition("listening on ")[2]:
        piece = await gateway.stderr.receive_some()
        if not piece:
            raise SystemExit(f"the gateway did not start:\n{text}")
        text += piece.decode()
    ports["http"] = int(text.partition("listening on ")[2].split("\n")[0].rpartition(":")[2])


async def _drain(gateway: trio.Process) -> None:
    assert gateway.stderr is not None
    async for _ in gateway.stderr:
        pass


async def _soak(options: argparse.Namespace, pid: int, base_url: str, engine: FakeEngine, tokenizer: Tokenizer) -> int:
    tally = Tally()
    limits = httpx.Limits(max_connections=options.streams + 4, max_keepalive_connections=options.streams + 4)
    async with httpx.AsyncClient(base_url=base_url, timeout=30, limits=limits, verify=False) as http:
        with trio.fail_after(START_LIMIT_S):
            await engine.wait_connected()
            while (await http.get("/readiness")).status_code != 200:
                await trio.lowlevel.checkpoint()
        began = trio.current_time()
        ends = began + options.seconds
        rss: list[float] = []
        async with trio.open_nursery() as nursery:
            for _ in range(options.streams):
                nursery.start_soon(_stream_until, ends, options.hang_up_every, http, tokenizer, tally)
            await trio.sleep_until(began + options.seconds * 0.2)  # caches and pools are warm by then
            while trio.current_time() < ends:
                rss.append(_rss_mb(pid))
                await trio.sleep(options.seconds * 0.8 / 40)
        return await _judge(options, http, engine, tally, rss, trio.current_time() - began)


async def _stream_until(
    ends: float, hang_up_every: int, http: httpx.AsyncClient, tokenizer: Tokenizer, tally: Tally
) -> None:
    while trio.current_time() < ends:
        seed = tally.next_seed
        tally.next_seed += 1
        length = 20 + seed * 37 % 180
        leave = bool(hang_up_every) and seed % hang_up_every == hang_up_every - 1
        try:
            fault = await _one_stream(http, tokenizer, tally, seed, length, leave_after=length // 2 if leave else None)
        except httpx.HTTPError as error:
            fault = f"{type(error).__name__}: {error}"
        tally.streams += 1
        tally.left += leave
        if fault:
            tally.faults.append(f"stream {seed}: {fault}")


async def _one_stream(
    http: httpx.AsyncClient, tokenizer: Tokenizer, tally: Tally, seed: int, length: int, *, leave_after: int | None
) -> str:
    """Read one stream; says what was wrong with it, or nothing."""
    body = {
        "messages": [{"role": "user", "content": f"number {seed}"}],
        "seed": seed, "max_tokens": length, "ignore_eos": True, "stream": True, "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    expected = [token_of(seed, position) for position in range(length)]
    found: list[int] = []
    text, finish, usage, done = "", None, None, False
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            return f"status {answer.status_code}: {(await answer.aread())[:200]!r}"
        async for line in answer.aiter_lines():
            if not line:
                continue
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                done = True
                continue
            chunk: dict[str, Any] = json.loads(data)
            if "error" in chunk:
                return f"error {chunk['error']}"
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                found += choice.get("token_ids") or ()
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
            if leave_after is not None and len(found) >= leave_after:
                tally.tokens += len(found)
                return "" if found == expected[: len(found)] else "tokens differ before leaving"
    tally.tokens += len(found)
    return _compare(expected, found, text, tokenizer, finish, usage, done)


def _compare(
    expected: list[int], found: list[int], text: str, tokenizer: Tokenizer, finish: Any, usage: Any, done: bool
) -> str:
    if found != expected:
        place = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), -1)
        return f"{len(found)} tokens of {len(expected)}, first difference at {place}"
    if text != tokenizer.decode(expected):
        return "the text is not the tokens' text"
    if finish != "length" or not done:
        return f"ended with {finish}, done {done}"
    if usage is None or usage["completion_tokens"] != len(expected):
        return f"usage {usage}"
    return ""


async def _judge(
    options: argparse.Namespace,
    http: httpx.AsyncClient,
    engine: FakeEngine,
    tally: Tally,
    rss: list[float],
    took: float,
) -> int:
    faults = list(tally.faults)
    try:
        with trio.fail_after(END_LIMIT_S):
            await engine.wait_until(lambda: not engine.in_flight)
    except trio.TooSlowError:
        faults.append(f"{engine.in_flight} requests still run at the engine")
    # One that ended while its client was leaving needs no abort.
    aborted, finished = set(engine.aborts), set(engine.record.finished)
    if len(engine.aborts) != len(aborted) or len(aborted) > tally.left:
        faults.append(f"{tally.left} streams were left, {len(engine.aborts)} aborts came for {len(aborted)} requests")
    lost = {request.request_id for request in engine.received} - aborted - finished
    if lost:
        faults.append(f"{len(lost)} requests neither ended nor were aborted")
    worker = (await http.get("/workers")).json()["workers"][0]
    if worker["load"] or worker["in_flight"]:
        faults.append(f"left in the ledger: {worker['in_flight']}, leases: {worker['load']}")
    if len(engine.received) != tally.streams:
        faults.append(f"{tally.streams} streams, {len(engine.received)} requests")
    growth = (max(rss[-5:]) - min(rss[:5])) if rss else 0.0
    if growth > options.max_growth_mb:
        faults.append(f"memory grew by {growth:.1f} MB")
    print(
        f"{tally.streams} streams ({tally.left} left by their client), {tally.tokens} tokens in {took:.1f} s "
        f"({tally.tokens / took:.0f}/s); memory {rss[0] if rss else 0:.1f} -> {rss[-1] if rss else 0:.1f} MB, "
        f"most {max(rss, default=0):.1f} MB; {len(faults)} faults"
    )
    for fault in faults[:20]:
        print(f"  {fault}")
    return 1 if faults else 0


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    sys.exit(trio.run(main, arguments()))
