"""Two ranks of a real engine behind one worker: balance, the death of one, a gateway's restart, and lockstep.

Only one group runs at a time, for each of its ranks takes gigabytes; the tests of a group share it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.interop.cases import BRIEF, CHAT, MODEL, brief
from tests.interop.conftest import _handshake_port
from tests.interop.processes import Engine, Process, start_gateway, status_of
from tests.interop.recording import ask, events, fold
from tests.ports import lasting_port

RANKS = 2
STREAMS = 32
ADOPTED_WITHIN_S = 10.0
DEATH_SEEN_WITHIN_S = 5.0
ENDS_WITHIN_S = 60.0
"""Far more than any answer here takes on a busy machine: what is not over by then hangs."""
STEP = re.compile(r"\(EngineCore_DP(\d) pid=\d+\).*Running batch with")
"""What a rank logs for every step with a request."""
PAUSED = re.compile(r"\(EngineCore_DP(\d) pid=\d+\).*finished, pausing engine loop")
"""What a rank of a lockstep group logs at the end of a wave."""
PROBE = brief("a_short_answer", max_tokens=6)
LONE_ANSWERS = 200
STALLS_AFTER_S = 6.0
SHORT_STEPS = 128
BUSY_STEPS = 800
LONG_STEPS = 1900

LONG_ANSWER: dict[str, Any] = {
    "model": MODEL,
    "messages": BRIEF,
    "max_tokens": LONG_STEPS,
    "ignore_eos": True,
    "temperature": 1.0,
    "seed": 1,
    "logprobs": True,
    "top_logprobs": 20,
    "stream": True,
}
"""Keeps a rank at work for a minute and more when there are sixteen of it: candidates are costly."""
SHORT_ANSWER: dict[str, Any] = {
    "model": MODEL,
    "messages": BRIEF,
    "max_tokens": SHORT_STEPS,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}


class Group:
    """The gateway with one worker of two ranks, each side of which can be killed and started again."""

    def __init__(self, vllm_python: str, model: Path, logs: Path, sockets: Path, name: str) -> None:
        url = f"ipc://{sockets}/{name}"
        port = lasting_port()
        self.url = f"http://127.0.0.1:{port}"
        self._gateway_arguments = (model, url, port, lasting_port(), logs / f"{name}-gateway.log")
        self.process = self._start_gateway()
        self.engine = Engine(vllm_python, model, _handshake_port(url), logs / f"{name}-engine.log", RANKS)
        self.client = httpx.Client(base_url=self.url, timeout=ENDS_WITHIN_S)

    def _start_gateway(self) -> Process:
        return start_gateway(*self._gateway_arguments, engine_count=RANKS)

    def worker(self) -> dict[str, Any]:
        """What `GET /workers` says of the only worker."""
        [worker] = self.client.get("/workers").json()["workers"]
        assert isinstance(worker, dict)
        return worker

    def ranks(self, field: str) -> list[Any]:
        """One field of every rank."""
        return [rank[field] for rank in self.worker()["ranks"]]

    def until_ready(self) -> float:
        """Wait until it would serve; an engine that dies meanwhile is told."""
        return self.engine.process.until_answers(f"{self.url}/readiness")

    def core_pids(self) -> dict[str, int]:
        """Title of each rank's EngineCore -> its process id."""
        titles = self.engine.process.members().items()
        return {title: pid for pid, title in titles if title.startswith("VLLM::EngineCore")}

    def steps(self) -> Counter[str]:
        """Rank -> steps of its engine so far, by the engine's own word."""
        return Counter(STEP.findall(self.engine.process.logged()))

    def restart_gateway(self) -> None:
        """SIGKILL the gateway, start it anew on the same port and socket paths, and return once it answers."""
        self.process.kill()
        self.process = self._start_gateway()
        self.process.until(lambda: status_of(f"{self.url}/readiness") is not None, "an answer")

    def stop(self) -> int:
        """End both sides; the gateway's exit code."""
        self.client.close()
        code = self.process.stop()
        self.engine.process.stop()
        return code


@pytest.fixture(scope="module")
def group(
    request: pytest.FixtureRequest,
    vllm_python: str,
    model: Path,
    logs: Path,
    tmp_path_factory: pytest.TempPathFactory,
    record_testsuite_property: Callable[[str, object], None],
) -> Iterator[Group]:
    """A group of the kind that the parameter names, ready. The one of another kind has ended before."""
    kind: str = request.param
    if kind == "lockstep":
        model = _takes_itself_for_experts(model, tmp_path_factory.mktemp("lockstep") / model.name)
    began = time.monotonic()
    # Paths of ipc sockets are limited to some hundred bytes: pytest's own directories are too deep.
    with tempfile.TemporaryDirectory(prefix="smg-") as sockets:
        running = Group(vllm_python, model, logs, Path(sockets), kind)
        try:
            seconds = running.until_ready() - began
            record_testsuite_property(f"{kind}_ready_after_s", round(seconds, 3))
            print(f"{kind} group ready after {seconds:.1f} s")
            yield running
        finally:
            code = running.stop()
        assert code == 0, "the gateway did not end cleanly on SIGTERM"


dense = pytest.mark.parametrize("group", ["dense"], indirect=True)
lockstep = pytest.mark.parametrize("group", ["lockstep"], indirect=True)


def _takes_itself_for_experts(model: Path, copy: Path) -> Path:
    """A copy of a dense model that vLLM runs in lockstep: it takes the number of experts for a mixture's.

    vLLM cannot run a real mixture of experts on CPUs with more than one data-parallel rank.
    """
    copy.mkdir()
    for file in model.iterdir():
        shutil.copyfile(file, copy / file.name)
    config = copy / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_experts": 2, "num_local_experts": 2}))
    return copy


class Stream:
    """One streamed answer: what came of it so far, and how it ended."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.broken_off = False

    async def read(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        """Ask, and read until the other side ends it."""
        try:
            async with client.stream("POST", CHAT, json=body) as response:
                assert response.status_code == 200, await response.aread()
                async for piece in response.aiter_raw():
                    self.received += piece
        except httpx.TransportError:
            self.broken_off = True

    def events(self) -> list[Any]:
        """Its chunks. Raises BrokenStreamError if it has no end, or more than one."""
        return events(self.received.decode())

    def failed(self) -> bool:
        """Whether it ended with an error instead of a finish reason; it must have exactly one of both."""
        chunks = self.events()
        errors = [position for position, chunk in enumerate(chunks) if "error" in chunk]
        finishes = [choice for chunk in chunks for choice in chunk.get("choices", ()) if choice.get("finish_reason")]
        assert len(errors) + len(finishes) == 1, f"{len(errors)} errors and {len(finishes)} finish reasons"
        assert not errors or errors == [len(chunks) - 1], "the stream goes on after its error"
        return bool(errors)


@asynccontextmanager
async def _streaming(group: Group, body: dict[str, Any], count: int = STREAMS) -> AsyncIterator[list[Stream]]:
    """`count` streams at once; leaving the block waits for their ends, and no longer than `ENDS_WITHIN_S`."""
    streams = [Stream() for _ in range(count)]
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=group.url, timeout=ENDS_WITHIN_S, limits=limits) as client:
        with trio.fail_after(2 * ENDS_WITHIN_S):
            async with trio.open_nursery() as nursery:
                for stream in streams:
                    nursery.start_soon(stream.read, client, body)
                yield streams


async def _until(group: Group, seen: Callable[[], bool], what: str, within_s: float = ENDS_WITHIN_S) -> None:
    """Wait in a thread, while the streams are read in this one."""
    await trio.to_thread.run_sync(lambda: group.process.until(seen, what, within_s))


def _all_at_work(group: Group, streams: list[Stream]) -> bool:
    """Whether every stream has begun and both ranks say that they work for all of theirs."""
    running = group.ranks("num_running_reqs")
    return all(stream.received for stream in streams) and sum(running) == STREAMS and all(running)


def _idle(group: Group) -> bool:
    return not any(group.ranks("num_running_reqs") + group.ranks("in_flight"))


def _paused(group: Group) -> bool:
    """Whether both ranks of a lockstep group have paused since the last step of either."""
    log = group.engine.process.logged()
    stepped = max(match.start() for match in STEP.finditer(log))
    return len({match[1] for match in PAUSED.finditer(log, stepped)}) == RANKS


async def _complete_wave(group: Group, count: int) -> Counter[str]:
    """`count` complete answers at once; rank -> steps that its engine took for them."""
    before = group.steps()
    async with _streaming(group, SHORT_ANSWER, count) as streams:
        pass
    for stream in streams:
        assert not stream.failed()
        whole = fold(stream.events())
        assert whole["usage"]["completion_tokens"] == SHORT_STEPS
        assert whole["choices"][0]["finish_reason"] == "length"
    assert group.worker()["in_flight"] == 0
    return group.steps() - before


@dense
async def test_many_streams_are_answered_by_both_ranks(group: Group) -> None:
    worker = group.worker()
    assert worker["dp_size"] == RANKS
    assert [rank["status"] for rank in worker["ranks"]] == ["ready"] * RANKS
    assert "wave" not in worker, "dense ranks do not step together"
    steps = group.steps()
    async with _streaming(group, SHORT_ANSWER | {"max_tokens": BUSY_STEPS}) as streams:
        await _until(group, lambda: _all_at_work(group, streams), "both ranks at work")
        assert group.ranks("in_flight") == [STREAMS // RANKS] * RANKS
    for stream in streams:
        assert not stream.failed()
        assert fold(stream.events())["usage"]["completion_tokens"] == BUSY_STEPS
    taken = group.steps() - steps
    assert all(taken[rank] >= BUSY_STEPS for rank in ("0", "1")), f"a rank did not work: {taken}"
    await _until(group, lambda: _idle(group), "idle ranks", 10.0)


@dense
async def test_a_restarted_gateway_takes_the_living_ranks_over(
    group: Group, record_property: Callable[[str, object], None]
) -> None:
    usual = ask(group.client, PROBE).comparable()
    assert usual["status"] == 200
    cores = group.core_pids()
    assert len(cores) == RANKS
    async with _streaming(group, LONG_ANSWER) as streams:
        await _until(group, lambda: _all_at_work(group, streams), "both ranks at work")
        await trio.to_thread.run_sync(group.restart_gateway)
    assert all(stream.broken_off for stream in streams)
    _is_taken_over(group, cores, usual, record_property)
    # The dead gateway's requests are stopped when they first speak, not worked through to their ends.
    await _until(group, lambda: _idle(group), "ranks without orphans", 5.0)
    await _complete_wave(group, STREAMS)


@dense
async def test_every_stream_of_a_group_that_loses_a_rank_ends_once(
    group: Group, record_property: Callable[[str, object], None]
) -> None:
    usual = ask(group.client, PROBE).comparable()
    async with _streaming(group, LONG_ANSWER) as streams:
        await _until(group, lambda: _all_at_work(group, streams), "both ranks at work")
        of_rank = group.ranks("in_flight")[0]
        [victim] = [pid for title, pid in group.core_pids().items() if "DP0" in title]
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        await _until(group, lambda: group.ranks("status")[0] != "ready", "the loss of rank 0", DEATH_SEEN_WITHIN_S)
        record_property("loss_seen_after_s", round(time.monotonic() - killed, 3))
    record_property("last_stream_ended_after_s", round(time.monotonic() - killed, 3))
    assert not any(stream.broken_off for stream in streams)
    failed = sum(stream.failed() for stream in streams)
    record_property("failed_streams", failed)
    print(f"{failed} of {STREAMS} streams failed, {of_rank} of them the killed rank's")
    assert failed >= of_rank > 0

    # The launcher notices by itself and ends the other rank, too.
    await _until(group, lambda: status_of(f"{group.url}/readiness") == 503, "a group that is not ready")
    assert ask(group.client, PROBE).status == 503
    assert group.worker()["in_flight"] == 0
    began = time.monotonic()
    await trio.to_thread.run_sync(group.engine.restart)
    record_property("ready_again_after_s", round(await trio.to_thread.run_sync(group.until_ready) - began, 3))
    # One rank is enough to be ready again; the other follows.
    await _until(group, lambda: group.ranks("status") == ["ready"] * RANKS, "both ranks")
    assert ask(group.client, PROBE).comparable() == usual
    taken = await _complete_wave(group, STREAMS)
    assert all(taken[rank] for rank in ("0", "1")), f"a rank did not work: {taken}"


@lockstep
async def test_a_lockstep_group_answers_wave_after_wave(group: Group) -> None:
    first = group.worker()
    assert "wave" in first, "the ranks did not register as a lockstep group"
    usual = ask(group.client, PROBE).comparable()
    assert usual["status"] == 200
    # Fewer requests than ranks, as many, and many more: a rank that is not woken would block the other.
    for count in (1, RANKS, 3, STREAMS):
        await _complete_wave(group, count)
    assert group.worker()["wave"] > first["wave"]
    await _until(group, lambda: _paused(group), "paused ranks")
    paused_at = group.steps()
    assert ask(group.client, PROBE).comparable() == usual
    await _complete_wave(group, STREAMS)
    taken = group.steps() - paused_at
    assert all(taken[rank] for rank in ("0", "1")), f"a rank did not work: {taken}"


@lockstep
async def test_short_answers_one_after_the_other_never_wait_for_the_next(
    group: Group, record_property: Callable[[str, object], None]
) -> None:
    """A wake that reaches one rank before a pause and the other after it must not leave the request alone."""
    seconds: list[float] = []
    for number in range(LONE_ANSWERS):
        body = {"model": MODEL, "prompt": "A word", "max_tokens": 1 + number % 3, "ignore_eos": True}
        began = time.monotonic()
        answer = await trio.to_thread.run_sync(
            lambda body=body: group.client.post("/v1/completions", json=body, timeout=STALLS_AFTER_S)
        )
        seconds.append(time.monotonic() - began)
        assert answer.status_code == 200, answer.text
    slowest, median = max(seconds), sorted(seconds)[LONE_ANSWERS // 2]
    record_property("slowest_lone_answer_s", round(slowest, 3))
    record_property("median_lone_answer_s", round(median, 3))
    print(f"slowest of {LONE_ANSWERS} lone answers {slowest:.3f} s, median {median:.3f} s")


@lockstep
async def test_a_restarted_gateway_wakes_a_lockstep_group_that_it_took_over(
    group: Group, record_property: Callable[[str, object], None]
) -> None:
    usual = ask(group.client, PROBE).comparable()
    cores = group.core_pids()
    await trio.to_thread.run_sync(group.restart_gateway)
    _is_taken_over(group, cores, usual, record_property)
    await _complete_wave(group, STREAMS)


def _is_taken_over(
    group: Group, cores: dict[str, int], usual: Any, record_property: Callable[[str, object], None]
) -> None:
    """The gateway just restarted is soon ready with the same engine processes, and answers as the one before."""
    began = time.monotonic()
    seconds = group.process.until_answers(f"{group.url}/readiness", within_s=ADOPTED_WITHIN_S) - began
    record_property("adopted_after_s", round(seconds, 3))
    print(f"adopted {seconds:.3f} s after the first answer")
    assert group.core_pids() == cores
    assert group.ranks("status") == ["ready"] * RANKS
    assert ask(group.client, PROBE).comparable() == usual
