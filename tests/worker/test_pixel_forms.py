"""In which form each engine takes media, and that it is never sent another one."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.errors import MediaMismatch, NoReadyWorker, PixelFormMissing, UnsupportedFeature
from smg_trio.core.media import PixelForm
from smg_trio.core.requests import GenerationRequest
from smg_trio.core.workers import WorkerState
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.pictures import BOTH_FORMS, qwen_picture
from smg_trio.testing.vision import VisionModel
from smg_trio.worker.pixel_forms import form_of_inspection, form_of_version

from .harness import Bench, collect, memory_bench, request, socket_bench, tokens

RAW, DONE = PixelForm.UINT8, PixelForm.NORMALISED
QWEN = VisionModel()


def pictured(*seeds: int, forms: tuple[PixelForm, ...] = BOTH_FORMS, rank: int | None = None) -> GenerationRequest:
    media = tuple(qwen_picture(seed, 1 + 10 * number, forms=forms) for number, seed in enumerate(seeds))
    return request(prompt_token_ids=[6] * 40, media=media, rank=rank)


def questions(bench: Bench, index: int = 0) -> int:
    """How often an engine was asked for its module tree."""
    return sum(call.method == "collective_rpc" for call in bench.engines[index].utilities)


@pytest.mark.parametrize(
    ("said", "form"),
    [
        (["Qwen2VL(\n  (input_norm): FusedMMInputNorm()\n)"], RAW),
        (["Qwen2VL(\n  (input_norm): IdentityInputNorm()\n)"], DONE),
        (["Llava(\n)"], DONE),
        (["(layers)", "(input_norm): FusedMMInputNorm()"], RAW),
        ([], None),
        ([5], None),
        ("FusedMMInputNorm", None),
        (None, None),
    ],
)
def test_the_module_tree_says_it(said: object, form: PixelForm | None) -> None:
    assert form_of_inspection(said) is form


@pytest.mark.parametrize(
    ("version", "model_type", "form"),
    [
        ("0.32.0", "qwen2_vl", RAW),
        ("0.33.1", "qwen3_vl_moe", RAW),
        ("1.0.0", "mistral3", RAW),
        ("0.32.0", "gemma3", DONE),
        ("0.32.0", "", DONE),
        ("0.27.1", "qwen2_vl", DONE),
        ("nightly", "qwen2_vl", DONE),
    ],
)
def test_else_the_version_does(version: str, model_type: str, form: PixelForm) -> None:
    assert form_of_version(EngineInfo(max_model_len=1, engine_version=version), model_type) is form


async def test_each_engine_is_asked_once_and_only_where_there_are_media(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, engine_count=2) as bench:
        bench.start_engine(0, group_size=2, vision=QWEN)
        bench.start_engine(1, group_size=2, vision=QWEN)
        await bench.worker.wait_state(WorkerState.READY)
        await collect(bench.worker, request())
        assert questions(bench, 0) == questions(bench, 1) == 0
        with pytest.raises(NoReadyWorker, match="has said yet in which form"):
            await collect(bench.worker, pictured(0))
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(bench.worker.pixel_forms)
        assert await bench.worker.pixel_forms() == {RAW}
        assert questions(bench, 0) == questions(bench, 1) == 1
        answers = [tokens(await collect(bench.worker, pictured(seed))) for seed in (0, 0, 1, 1)]
        assert answers[0] == answers[1] != answers[2] == answers[3]


async def test_media_go_to_the_ranks_that_take_them_as_they_were_prepared(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, engine_count=2) as bench:
        old = bench.start_engine(0, group_size=2, vision=QWEN, version="0.27.1")
        new = bench.start_engine(1, group_size=2, vision=QWEN, version="0.32.0")
        await bench.worker.wait_state(WorkerState.READY)
        assert await bench.worker.pixel_forms() == {RAW, DONE}
        for forms, engine in (((RAW,), new), ((DONE,), old)):
            before = len(engine.received)
            for _ in range(4):
                await collect(bench.worker, pictured(0, forms=forms))
            assert len(engine.received) == before + 4
        for _ in range(4):
            await collect(bench.worker, pictured(0))
        assert {item.data["pixel_values"].array.dtype for one in old.received for item in one.media} == {"bfloat16"}
        assert {item.data["pixel_values"].array.dtype for one in new.received for item in one.media} == {"uint8"}
        with pytest.raises(PixelFormMissing) as caught:
            await collect(bench.worker, pictured(0, forms=(RAW,), rank=0))
        assert caught.value.forms == {DONE}
        assert caught.value.retryable


async def test_a_new_engine_is_asked_anew(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = bench.start_engine(vision=QWEN, version="0.27.1")
        await bench.worker.wait_state(WorkerState.READY)
        assert await bench.worker.pixel_forms() == {DONE}
        engine.options = EngineOptions(vision=QWEN, version="0.32.0")
        engine.restart()
        await bench.worker.wait_state(WorkerState.NOT_READY)
        with pytest.raises(NoReadyWorker):
            await bench.worker.pixel_forms()
        await bench.worker.wait_state(WorkerState.READY)
        with pytest.raises(NoReadyWorker, match="has said yet"):
            await collect(bench.worker, pictured(0))
        assert await bench.worker.pixel_forms() == {RAW}
        with pytest.raises(PixelFormMissing):
            await collect(bench.worker, pictured(0, forms=(DONE,)))


async def test_an_engine_that_cannot_say_is_judged_by_its_version(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_bench(tmp_path) as bench:
        bench.start_engine(vision=QWEN, inspectable=False)
        await bench.worker.wait_state(WorkerState.READY)
        assert await bench.worker.pixel_forms("qwen2_vl") == {RAW}
        assert await bench.worker.pixel_forms("gemma3") == {RAW}
        assert questions(bench) == 1
        assert "Set --mm-pixels" in caplog.text


async def test_so_is_one_that_does_not_answer(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = bench.start_engine(vision=QWEN)
        await bench.worker.wait_state(WorkerState.READY)
        engine.go_silent()
        before = trio.current_time()
        assert await bench.worker.pixel_forms("gemma3") == {DONE}
        assert trio.current_time() - before < 11
        assert await bench.worker.pixel_forms() == {DONE}


async def test_an_engine_that_dies_meanwhile_has_said_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = bench.start_engine(vision=QWEN)
        await bench.worker.wait_state(WorkerState.READY)
        engine.go_silent()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_dies_when_asked, bench)
            with pytest.raises(NoReadyWorker):
                await bench.worker.pixel_forms()


async def _dies_when_asked(bench: Bench) -> None:
    await bench.engines[0].wait_until(lambda: questions(bench) == 1)
    bench.engines[0].die()


async def test_the_operator_may_say_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path, pixel_form=DONE) as bench:
        bench.start_engine(vision=QWEN, normalises=False)
        await bench.worker.wait_state(WorkerState.READY)
        assert await bench.worker.pixel_forms("qwen2_vl") == {DONE}
        assert len(tokens(await collect(bench.worker, pictured(0)))) == 4
        assert questions(bench) == 0


async def test_tokenspeed_takes_no_media(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path, protocol=EngineProtocol.TOKENSPEED) as bench:
        bench.start_engine()
        await bench.worker.wait_state(WorkerState.READY)
        with pytest.raises(UnsupportedFeature, match="TokenSpeed engines take no images") as caught:
            await bench.worker.pixel_forms()
        assert caught.value.status == 400
        with pytest.raises(UnsupportedFeature, match="TokenSpeed engines take no images"):
            await collect(bench.worker, pictured(0))
        assert not bench.engines[0].received


async def test_media_that_do_not_fit_are_never_sent_and_logged_by_the_requests_id(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_bench(tmp_path) as bench:
        bench.start_engine(vision=QWEN)
        await bench.worker.wait_state(WorkerState.READY)
        await bench.worker.pixel_forms()
        asked = pictured(0)
        asked = replace(asked, media=(replace(asked.media[0], length=9),))
        with pytest.raises(MediaMismatch, match=asked.request_id):
            await collect(bench.worker, asked)
        assert not bench.engines[0].received
        assert bench.worker.in_flight == 0
        assert f"request {asked.request_id} is not sent: item 1 (image): 9 places for 6 vectors" in caplog.text
        assert all(record.levelno >= logging.ERROR for record in caplog.records if "is not sent" in record.message)


async def test_large_pictures_reach_an_engine_over_sockets_as_they_are(tmp_path: Path) -> None:
    """24 MB, which leave uncopied, in the library's thread, while the answers of others go on."""
    grid = (1, 84, 84)
    async with socket_bench(tmp_path) as bench:
        bench.start_engine(vision=replace(QWEN, largest_item=2000), max_model_len=16384, step_time_s=0.0)
        await bench.worker.wait_state(WorkerState.READY)
        await bench.worker.pixel_forms()
        picture = qwen_picture(0, 1, grid=grid, forms=(RAW,))
        media = tuple(replace(picture, offset=1 + 2000 * number) for number in range(3))
        alone = request(prompt_token_ids=[6] * 8000, media=media[:1])
        answers: list[list[int]] = []

        async def ask(asked: GenerationRequest) -> None:
            answers.append(tokens(await collect(bench.worker, asked)))

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(ask, request(prompt_token_ids=[6] * 8000, media=media))
                nursery.start_soon(ask, alone)
                nursery.start_soon(ask, request())
        assert len({tuple(answer) for answer in answers}) == 3
        sent = bytes(picture.tensors[RAW][0].value.data)
        for item in (item for one in bench.engines[0].received for item in one.media):
            assert item.data is not None
            assert item.data["pixel_values"].array.data == sent
