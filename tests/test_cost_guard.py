"""What a token and a request cost in CPU time, held against a loop of plain Python timed in the same breath.

The limits are ratios, not times, so a slow or busy machine moves both sides. They are about twice what was measured
when they were written: they catch an algorithm that has become another one, not a microsecond.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgpack
import pytest
import trio
import trio.testing

from smg_trio.api.chat_answer import ChatAnswer
from smg_trio.api.openai.chat.request import parse_chat_request
from smg_trio.api.openai.chat.stream import ChatChunkWriter
from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.outputs import GenerationOutput
from smg_trio.core.requests import GenerationRequest
from smg_trio.pipeline.decode import ChoiceDecoder, DecodeOptions
from smg_trio.pipeline.models import ServedModel
from smg_trio.pipeline.prepare import Preparer
from smg_trio.text.model_files import ModelText, load_model_text
from smg_trio.wire.codec import codec_for
from smg_trio.worker.output_stream import OutputStream

ROUNDS = 15
STREAMS = 128
TOKEN_LIMIT = 48.0
"""Steps of the calibration loop that a token may cost: decode, detokenize, SSE bytes. 23 when written."""
WAKE_LIMIT = 80.0
"""The same for handing an output to a stream's task and waking it. 47 when written, twice that with trio's channel."""
REQUEST_LIMIT = 4_000.0
"""The same for a short chat request: parse, render, tokenize, check, encode. 2,000 when written."""

CODEC = codec_for(EngineProtocol.VLLM)
BODY = json.dumps(
    {
        "model": "demo",
        "messages": [{"role": "user", "content": "Tell me about the sea and the wind, in a few words."}],
        "max_tokens": 16,
        "temperature": 0.5,
    }
).encode()


def calibration() -> None:
    """A thousand steps of what interpreters do: arithmetic, a method call, a list, a dict."""
    seen: dict[int, list[int]] = {}
    for number in range(1_000):
        seen.setdefault(number & 63, []).append(number ^ 21)


def steps(work: Callable[[], object]) -> float:
    """CPU time of `work` in steps of the calibration loop: the least of several rounds, both timed in turn."""
    best_work = best_loop = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        calibration()
        middle = time.process_time()
        work()
        best_loop = min(best_loop, middle - began)
        best_work = min(best_work, time.process_time() - middle)
    return best_work / best_loop * 1_000


def ended_at_once(work: Coroutine[object, object, object]) -> None:
    """Run a coroutine that meets no checkpoint: short prompts are prepared without one."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


@pytest.fixture(scope="module")
def text() -> ModelText:
    """The demo model's text files."""
    return load_model_text(Path(__file__).parents[1] / "smg_trio" / "testing" / "demo_model")


def test_a_streamed_token_costs_no_more_than_a_few_dozen_loop_steps_between_the_engines_message_and_its_bytes(
    text: ModelText,
) -> None:
    ids = text.tokenizer.encode("the wind and the sea")
    names = [f"chatcmpl-{number:032x}" for number in range(STREAMS)]
    outputs = [[name, [ids[0]], *[None] * 11, 0, None] for name in names]
    frames = [msgpack.packb([0, outputs, None, 1.0])]
    decoders = {name: ChoiceDecoder(0, text.tokenizer, (), DecodeOptions()) for name in names}
    writer = ChatChunkWriter(ChatAnswer(response_id="chatcmpl-1", model="demo", created=1))

    def step() -> None:
        for name, output in CODEC.decode_outputs(frames).outputs:
            piece = decoders[name].push_plain([(0, output)])
            assert piece
            assert writer.text(*piece).endswith(b"}\n\n")

    assert steps(step) / STREAMS < TOKEN_LIMIT


async def test_waking_a_stream_costs_no_more_than_a_few_dozen_loop_steps() -> None:
    streams = [OutputStream[int]() for _ in range(STREAMS)]
    deliveries = [stream.delivery(0) for stream in streams]
    output, read = GenerationOutput([1]), [0]

    async def consume(stream: OutputStream[int]) -> None:
        while True:
            batch = await stream.receive_batch()
            read[0] += len(batch)

    best_wake = best_loop = float("inf")
    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(consume, stream)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2 * ROUNDS):
            began = time.process_time()
            calibration()
            middle = time.process_time()
            for delivery in deliveries:
                delivery.put(output)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            best_loop = min(best_loop, middle - began)
            best_wake = min(best_wake, time.process_time() - middle)
        nursery.cancel_scope.cancel()
    assert read[0] == 2 * ROUNDS * STREAMS
    assert best_wake / best_loop * 1_000 / STREAMS < WAKE_LIMIT


def test_a_short_chat_request_costs_no_more_than_a_few_thousand_loop_steps_up_to_the_engines_frames(
    text: ModelText,
) -> None:
    model = ServedModel(model_id="demo", text=text, root="demo", created=1)
    info = EngineInfo(max_model_len=4_096, engine_version="0.32.0")
    preparer, count = Preparer(), 20

    async def once() -> list[bytes]:
        chat = parse_chat_request(BODY)
        prepared = await preparer.chat(chat, model, request_id="chatcmpl-1", max_model_len=4_096)
        request = GenerationRequest(
            request_id="chatcmpl-1", prompt_token_ids=prepared.prompt.token_ids, sampling=prepared.sampling
        )
        CODEC.check(request, info, text.tokenizer.vocab_size)
        return CODEC.encode_add(request)

    def run() -> None:
        for _ in range(count):
            ended_at_once(once())

    assert steps(run) / count < REQUEST_LIMIT
