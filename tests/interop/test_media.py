"""A real engine with a tiny Qwen2-VL: what it answers to media sent by our codec is what it answers to vLLM's own.

The pictures' tensors are those that vLLM's own front end sent (see tests/golden/captured_media.py), so this is about
the wire and the worker alone. Besides `SMG_TRIO_INTEROP_PYTHON` it needs `SMG_TRIO_INTEROP_VISION`, a directory with a
torchvision that loads (`scripts/interop_env.py --vision` makes one).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import trio

from smg_trio.core.errors import InvalidRequest, PixelFormMissing
from smg_trio.core.media import MediaFeature, PixelForm
from smg_trio.core.requests import GenerationRequest, SamplingParams
from smg_trio.core.workers import WorkerSpec, WorkerState
from smg_trio.testing.pictures import qwen_picture
from smg_trio.worker.nursery import Worker
from smg_trio.worker.zmq_links import open_zmq_transport
from tests.conftest import shared_path
from tests.golden.captured_media import Captured, read
from tests.interop.conftest import _handshake_port
from tests.interop.processes import START_WITHIN_S, Engine

END, PAD = 2, 0
ANSWER_WITHIN_S = 60.0
MAX_TOKENS = 4
CONTEXT = ("--max-model-len", "4096", "--max-num-batched-tokens", "2048")
"""More than one step takes, so that there are items that fit the context and no step."""
COPIES = 3

_ids = count()


@pytest.fixture(scope="module")
def url(vllm_python: str, vision_packages: Path, logs: Path) -> Iterator[str]:
    """The URL of a worker at which the engine dials in; it takes a gateway after another."""
    with tempfile.TemporaryDirectory(prefix="smg-") as sockets:
        url = f"ipc://{sockets}/engine-0"
        engine = Engine(
            vllm_python,
            shared_path("data", "tiny-vlm"),
            _handshake_port(url),
            logs / "vision-engine.log",
            packages=vision_packages,
            flags=(*CONTEXT, "--limit-mm-per-prompt", '{"image": 4, "video": 1}'),
        )
        yield url
        engine.process.stop()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Worker]:
    """A worker, when its engine serves: at the first time that takes as long as an engine's start."""
    spec = WorkerSpec(worker_id="w", url=url, model_id="m", vocab_size=1024)
    with open_zmq_transport() as transport:
        worker = Worker(spec, transport)
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            with trio.fail_after(START_WITHIN_S):
                await worker.wait_state(WorkerState.READY)
            yield worker
            nursery.cancel_scope.cancel()


def captured(name: str) -> tuple[Captured, list[int]]:
    """What vLLM's own front end sent, and what the engine answered."""
    path = shared_path("vectors", "multimodal", f"{name}.json")
    return read(path), json.loads(path.read_text())["greedy_tokens_seen"]


def asked(prompt: list[int], media: tuple[MediaFeature, ...]) -> GenerationRequest:
    sampling = SamplingParams(
        max_tokens=MAX_TOKENS,
        temperature=0.0,
        eos_token_id=END,
        stop_token_ids=(PAD,),
        all_stop_token_ids=frozenset({PAD, END}),
    )
    return GenerationRequest(request_id=f"r{next(_ids)}", prompt_token_ids=prompt, media=media, sampling=sampling)


async def answer(worker: Worker, request: GenerationRequest) -> list[int]:
    """The tokens of an answer."""
    tokens: list[int] = []
    with trio.fail_after(ANSWER_WITHIN_S):
        async with worker.generate(request) as outputs:
            while True:
                for _, output in await outputs.receive_batch():
                    assert output.error is None, output.error
                    tokens += output.token_ids
                    if output.finish_reason is not None:
                        return tokens


async def test_pictures_are_answered_as_those_of_vllms_own_front_end(url: str) -> None:
    async with opened(url) as worker:
        assert await worker.pixel_forms("qwen2_vl") == {PixelForm.UINT8}
        for name in ("v0320_one_image", "v0320_interleaved", "v0320_one_image"):
            sent, expected = captured(name)
            assert await answer(worker, asked(sent.prompt, sent.media)) == expected, name
        one, _ = captured("v0320_one_image")
        two, expected = captured("v0320_two_images")
        # Of the first picture vLLM sent the name alone, since the engine had it.
        assert await answer(worker, asked(two.prompt, (*one.media, *two.media))) == expected
        text = await answer(worker, asked(one.prompt, ()))
        assert text != captured("v0320_one_image")[1], "the picture has no part in the answer"


async def test_copies_of_a_request_are_answered_alike(url: str) -> None:
    sent, expected = captured("v0320_interleaved")
    answers: list[list[int]] = []
    async with opened(url) as worker:
        await worker.pixel_forms()

        async def one_copy() -> None:
            answers.append(await answer(worker, asked(sent.prompt, sent.media)))

        async with trio.open_nursery() as nursery:
            for _ in range(COPIES):
                nursery.start_soon(one_copy)
    assert answers == [expected] * COPIES


async def test_the_largest_pictures_are_answered_and_larger_ones_refused(url: str) -> None:
    largest = qwen_picture(7, 1, grid=(1, 32, 32), forms=(PixelForm.UINT8,))
    larger = qwen_picture(8, 1, grid=(1, 96, 96), forms=(PixelForm.UINT8,))
    async with opened(url) as worker:
        await worker.pixel_forms()
        media = tuple(replace(largest, offset=1 + number * 300) for number in range(4))
        assert len(await answer(worker, asked([6] * 1300, media))) > 0
        with pytest.raises(InvalidRequest, match="takes 2304 tokens, more than the 2048"):
            await answer(worker, asked([6] * 2400, (larger,)))
        with pytest.raises(PixelFormMissing):
            done = qwen_picture(7, 1, grid=(1, 4, 6), forms=(PixelForm.NORMALISED,))
            await answer(worker, asked([6] * 20, (done,)))
        sent, expected = captured("v0320_one_image")
        assert await answer(worker, asked(sent.prompt, sent.media)) == expected
