"""Processes that decode images: started when needed, killed and replaced, and never in the gateway's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from smg_trio.core.errors import GatewayFault, UnsupportedFeature
from smg_trio.core.tensors import TensorValue
from smg_trio.media import helper_process
from smg_trio.media.families import Recipe
from smg_trio.media.families.plans import SmartResize, Stretch
from smg_trio.media.helper_process import HelperPool, ItemRefused
from tests.media.captures import IMAGES, digest, pixels_of

RECIPE = Recipe(
    rule=SmartResize(28, 3136, 200704),
    filter="bicubic",
    mean=(0.5,) * 3,
    std=(0.5,) * 3,
    arrangement="patches",
    patch=14,
    merge=2,
    temporal=2,
)
PLAIN = RECIPE.to_plain()
PNG = (IMAGES / "plain_rgb.png").read_bytes()
BOTH = ("uint8", "bfloat16")


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[HelperPool]:
    pool = HelperPool(**{"max_pixels": 1_000_000, **options})
    async with trio.open_nursery() as nursery:
        await nursery.start(pool.run)
        yield pool
        nursery.cancel_scope.cancel()
    assert not pool.pids


async def digests(pool: HelperPool, file: bytes = PNG) -> dict[str, str]:
    async with pool.ask(file, recipe=PLAIN, dtypes=BOTH) as answer:
        return {dtype: digest(value) for dtype, value in answer.tensors.items()}


async def test_all_forms_come_in_memory_that_nobody_can_change() -> None:
    async with running() as pool:
        assert not pool.pids
        async with pool.ask(PNG, recipe=PLAIN, dtypes=BOTH) as answer:
            assert (answer.width, answer.height) == (96, 64)
            for dtype in BOTH:
                expected = pixels_of(PNG, RECIPE, dtype)
                value: TensorValue = answer.tensors[dtype]
                assert (value.dtype, value.shape) == (dtype, expected.shape)
                assert isinstance(value.data, memoryview)
                assert value.data.readonly
                assert bytes(value.data) == expected.data
        async with pool.ask(PNG) as answer:
            assert (answer.width, answer.height, answer.tensors) == (96, 64, {})
        assert len(pool.pids) == 1
        assert pool.replaced == 0
    # What was answered outlives the process.
    assert digest(value) == digest(pixels_of(PNG, RECIPE, "bfloat16"))


async def test_a_refused_item_leaves_the_process_as_it_was() -> None:
    async with running() as pool:
        for file, problem in ((b"nothing", "not an image"), (PNG[:100], "truncated|broken"), (b"", "not an image")):
            with pytest.raises(ItemRefused, match=problem):
                await digests(pool, file)
        [pid] = pool.pids
        await digests(pool)
        assert pool.pids == {pid}


async def test_what_needs_too_much_memory_is_refused() -> None:
    enormous = Recipe(rule=Stretch(200_000, 200_000), filter="bicubic", mean=(0.5,) * 3, std=(0.5,) * 3)
    async with running() as pool:
        with pytest.raises(ItemRefused, match="too much memory"):
            async with pool.ask(PNG, recipe=enormous.to_plain(), dtypes=["uint8"]):
                pass
        await digests(pool)


async def test_an_item_that_ends_the_process_is_tried_twice_and_others_go_on() -> None:
    async def kill_all(pool: HelperPool) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            for pid in pool.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async with running() as pool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_all, pool)
            with pytest.raises(ItemRefused, match="ended the decoding process"):
                await digests(pool)
            nursery.cancel_scope.cancel()
        assert pool.replaced == 2
        await digests(pool)
        assert pool.replaced == 2


async def test_a_fault_of_the_program_is_logged_by_its_place(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as pool:
        with pytest.raises(ItemRefused, match="cannot be decoded"):
            async with pool.ask(PNG, recipe={}, dtypes=["uint8"]):
                pass
        assert "KeyError in base.py:" in caplog.text
        assert pool.replaced == 0


async def test_a_process_that_was_killed_meanwhile_is_replaced() -> None:
    async with running() as pool:
        before = await digests(pool)
        [pid] = pool.pids
        os.kill(pid, signal.SIGKILL)
        assert await digests(pool) == before
        assert pool.replaced == 1
        assert pid not in pool.pids


async def test_an_item_that_takes_too_long_is_refused_and_the_process_replaced() -> None:
    async with running(deadline_s=2) as pool:
        await digests(pool)
        [pid] = pool.pids
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ItemRefused, match="takes more than 2 s"):
            await digests(pool)
        await digests(pool)
        assert pid not in pool.pids


async def test_a_client_that_leaves_leaves_the_process_to_the_others() -> None:
    async with running() as pool:
        await digests(pool)
        [pid] = pool.pids
        os.kill(pid, signal.SIGSTOP)
        with trio.move_on_after(0.05):
            await digests(pool)
        os.kill(pid, signal.SIGCONT)
        await digests(pool)
        assert pool.pids == {pid}


async def test_no_item_is_taken_before_the_last_one_is_accounted_for() -> None:
    async with running() as pool, trio.open_nursery() as nursery:
        order: list[str] = []

        async def second() -> None:
            async with pool.ask(PNG):
                order.append("second")

        async with pool.ask(PNG):
            nursery.start_soon(second)
            await wait_all_tasks_blocked()
            assert pool.waiting == 1
            order.append("first")
    assert order == ["first", "second"]


async def test_two_processes_work_side_by_side() -> None:
    async with running(processes=2) as pool, pool.ask(PNG), pool.ask(PNG):
        assert len(pool.pids) == 2


async def test_without_numpy_or_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_process, "find_spec", lambda name: None if name == "PIL" else find_spec(name))
    async with running() as pool:
        with pytest.raises(UnsupportedFeature, match=r"smg-trio\[images\]"):
            await digests(pool)
        assert not pool.pids


async def test_a_process_that_does_not_start_is_the_gateways_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as pool:
        monkeypatch.setattr(sys, "executable", "/nonexistent")
        with pytest.raises(GatewayFault, match="no process for it"):
            await digests(pool)
        monkeypatch.setattr(sys, "executable", "/bin/true")
        with pytest.raises(GatewayFault, match="no process for it"):
            await digests(pool)
        monkeypatch.undo()
        await digests(pool)


async def test_the_process_knows_no_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMG_TRIO_API_KEY", "secret")
    async with running() as pool:
        await digests(pool)
        [pid] = pool.pids
        environment = await trio.Path(f"/proc/{pid}/environ").read_bytes()
    assert b"secret" not in environment
    assert b"PATH=" in environment


def test_the_gateway_loads_neither_numpy_nor_pillow() -> None:
    program = (
        "import sys, smg_trio.gateway.run, smg_trio.cli.main, smg_trio.media.processor, smg_trio.media.expansion\n"
        "print([name for name in ('numpy', 'PIL') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
