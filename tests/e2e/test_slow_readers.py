"""Streams whose client reads in fits and starts: every byte comes, in order, whichever task writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from smg_trio.api.openai.chat.stream import ChatChunkWriter
from tests.certificates import Authority
from tests.waiting import read_to_end

from .harness import (
    COUNTING,
    ENDLESS,
    PATIENCE_S,
    Bench,
    chat_body,
    connect,
    connect_over,
    join_chat,
    open_gateway,
    post,
    read_until,
)

TOKENS = 3000
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stop strings": {"stop": ["never said"]},
    "log probabilities": {"logprobs": True, "top_logprobs": 2},
    "two choices": {"n": 2},
}


async def read_in_fits(stream: trio.SocketStream, bench: Bench) -> bytes:
    """Read a little, then nothing until the engine has made its tokens or cannot go on, then the rest."""
    got = await stream.receive_some(2000)
    await bench.engine.wait_until(lambda: bench.engine.in_flight == 0)
    return got + await read_to_end(stream)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_reads_late_gets_everything(tmp_path: Path, kind: str) -> None:
    async with open_gateway(tmp_path, COUNTING) as bench:
        expected = await bench.chat_text(max_tokens=TOKENS)
        body = chat_body(stream=True, max_tokens=TOKENS, **KINDS[kind])
        stream = await connect(bench.port, receive_buffer=4096)
        with trio.fail_after(PATIENCE_S):
            await stream.send_all(post("/v1/chat/completions", body, "Connection: close"))
            response = await read_in_fits(stream, bench)
        for choice in range(body.get("n", 1)):
            said = join_chat(_payload(response), choice)
            assert said["content"] == expected[0]
            assert said["finish_reason"] == "length"
        await stream.aclose()
        await bench.wait_idle()


def _payload(response: bytes) -> str:
    """The body of a chunked response."""
    head, _, rest = response.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            return body.decode()
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]


@pytest.mark.parametrize("lane", ["plain", "tls"])
async def test_what_one_stream_s_writer_raises_ends_that_stream_alone(
    tmp_path: Path, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dispatcher calls the writers of all streams of a step: none of them may end it, or each other."""
    armed: list[Exception] = []

    def breaking(write: Callable[..., bytes]) -> Callable[..., bytes]:
        def write_or_raise(*arguments: Any) -> bytes:
            if armed:
                raise armed.pop()
            return write(*arguments)

        return write_or_raise

    for name in ("text", "update"):
        monkeypatch.setattr(ChatChunkWriter, name, breaking(getattr(ChatChunkWriter, name)))
    authority = Authority(tmp_path / "tls") if lane == "tls" else None
    settings = authority.settings if authority else {}
    async with open_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.002}, **settings) as bench:
        body = post("/v1/chat/completions", chat_body(stream=True))
        streams = [await connect_over(bench.port, authority) for _ in range(3)]
        with trio.fail_after(PATIENCE_S):
            for stream in streams:
                await stream.send_all(body)
                await read_until(stream, b'"b"')
            armed.append(ZeroDivisionError())
            await bench.engine.wait_until(lambda: len(bench.engine.aborts) == 1)
            ended = bench.engine.aborts[0]
            order = [request.request_id for request in bench.engine.received]
            for index, stream in enumerate(streams):
                if order[index] == ended:
                    await read_to_end(stream)
                else:
                    await read_until(stream, b'"b"')
            assert bench.engine.in_flight == 2
        for stream in streams:
            await trio.aclose_forcefully(stream)
        await bench.wait_idle()
