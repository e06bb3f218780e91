"""Usage per identity: a bounded number of series, and a file in which no line is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry, generate_latest

from smg_trio.core.errors import ConfigError
from smg_trio.gateway.observability import usage_log
from smg_trio.gateway.observability.usage import OTHER, UsageMetrics
from smg_trio.gateway.observability.usage_log import UsageLog


def values(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_the_first_identities_have_series_of_their_own() -> None:
    registry = CollectorRegistry()
    metrics = UsageMetrics(registry, 2)
    for identity in ("alice", "bob", "carol", "alice", "dave"):
        metrics.note(identity, 10, 3)
    seen = values(registry)
    assert seen['smg_identity_generations_total{identity="alice"}'] == 2
    assert seen['smg_identity_generations_total{identity="bob"}'] == 1
    assert seen[f'smg_identity_generations_total{{identity="{OTHER}"}}'] == 2
    assert seen[f'smg_identity_tokens_total{{identity="{OTHER}",token_type="input"}}'] == 20
    assert seen['smg_identity_tokens_total{identity="alice",token_type="output"}'] == 6
    assert not any("carol" in name for name in seen)


def test_there_are_none_if_none_are_wanted() -> None:
    registry = CollectorRegistry()
    UsageMetrics(registry, 0).note("alice", 1, 1)
    assert values(registry) == {}


async def test_lines_are_in_the_file_in_their_order(tmp_path: Path) -> None:
    log = UsageLog(tmp_path / "usage.jsonl")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        for number in range(100):
            log.write(b"%d\n" % number)
            if number % 30 == 0:
                await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    log.write(b"last\n")
    await log.finish()
    assert log.path.read_text().split() == [*map(str, range(100)), "last"]
    assert log.lost == 0


async def test_a_file_that_is_moved_away_is_begun_anew(tmp_path: Path) -> None:
    log = UsageLog(tmp_path / "usage.jsonl")
    log.write(b"one\n")
    await log.finish()
    log.path.rename(tmp_path / "usage.1")
    log.write(b"two\n")
    await log.finish()
    assert log.path.read_text() == "two\n"


async def test_a_full_disk_loses_no_line_and_doubles_none(
    tmp_path: Path, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    log, write, full = UsageLog(tmp_path / "usage.jsonl"), os.write, [True]

    def half(file: int, data: bytes) -> int:
        if not full[0]:
            return write(file, data)
        if len(data) < 8:
            raise OSError(28, "No space left on device")
        return write(file, data[: len(data) // 2])

    monkeypatch.setattr(usage_log.os, "write", half)
    for number in range(10):
        log.write(b"%d\n" % number)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        while not log.path.exists():
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        while log.path.read_bytes():
            await trio.lowlevel.checkpoint()
        full[0] = False
        while not log.path.read_bytes().endswith(b"9\n"):
            mock_clock.jump(10)  # again and again: the next attempt may not be waiting for its time yet
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert log.path.read_text().split() == [*map(str, range(10))]


async def test_beyond_a_bound_the_oldest_are_counted_as_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "_MOST_LINES", 3)
    log = UsageLog(tmp_path / "none" / "usage.jsonl")
    for number in range(5):
        log.write(b"%d\n" % number)
    assert log.lost == 2
    await log.finish()
    assert log.lost == 5
    with pytest.raises(ConfigError, match="--usage-log: cannot write"):
        log.check()
