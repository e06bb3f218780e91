"""Bodies that clients compress, on every lane and route; what they become is bounded like any other body."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.certificates import Authority

from .harness import HELLO, MODEL, PATIENCE_S, Bench, chat_body, error_of, open_gateway
from .test_upload_attacks import gateway_on, lanes

MIB = 1 << 20
POSTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", chat_body()),
    ("/v1/completions", {"model": MODEL, "prompt": "hi"}),
    ("/v1/messages", chat_body(max_tokens=9)),
    ("/v1/messages/count_tokens", chat_body()),
    ("/v1/responses", {"model": MODEL, "input": "hi"}),
    ("/v1/conversations", {"metadata": {"a": "b"}}),
    ("/generate", {"text": "hi"}),
    ("/tokenize", {"prompt": "hi"}),
    ("/v1/detokenize", {"model": MODEL, "tokens": [1]}),
    ("/parse/reasoning", {"text": "x", "reasoning_parser": "qwen3"}),
]


def codings() -> dict[str, Any]:
    found: dict[str, Any] = {"gzip": gzip.compress, "deflate": zlib.compress}
    zstandard = pytest.importorskip("zstandard", reason="needs the extra zstd")
    return found | {"zstd": zstandard.ZstdCompressor().compress}


def client_of(bench: Bench, authority: Authority | None, *, http2: bool = False) -> httpx.AsyncClient:
    verify: Any = True if authority is None else authority.trusting()
    return httpx.AsyncClient(base_url=bench.base_url, verify=verify, http2=http2, timeout=PATIENCE_S)


async def send(client: httpx.AsyncClient, path: str, body: bytes, coding: str) -> httpx.Response:
    headers = {"content-type": "application/json", "content-encoding": coding}
    return await client.post(path, content=body, headers=headers)


@lanes
async def test_every_route_takes_them(tmp_path: Path, lane: str) -> None:
    async with gateway_on(lane, tmp_path) as (bench, authority):
        for http2 in (False, True) if authority else (False,):
            async with client_of(bench, authority, http2=http2) as client:
                for path, fields in POSTS:
                    for coding, pack in codings().items():
                        answer = await send(client, path, pack(json.dumps(fields).encode()), coding)
                        assert answer.status_code == 200, (path, coding, answer.text)
        assert bench.gateway.bodies.held == 0


@lanes
async def test_broken_ones_and_other_codings_are_refused(tmp_path: Path, lane: str) -> None:
    async with (
        gateway_on(lane, tmp_path) as (bench, authority),
        client_of(bench, authority) as client,
    ):
        for path, fields in POSTS:
            body = json.dumps(fields).encode()
            for coding, pack in codings().items():
                packed = pack(body)
                for broken in (body, packed[:-3], packed + b"x", b"\xff\xff" + packed[2:]):
                    answer = await send(client, path, broken, coding)
                    assert answer.status_code == 400, (path, coding, broken)
                    assert answer.headers["x-smg-error-code"] == "decompression_failed"
            for coding in ("br", "gzip, gzip", "compress"):
                answer = await send(client, path, body, coding)
                assert answer.status_code == 415
                assert answer.headers["x-smg-error-code"] == "unsupported_content_encoding"
                assert answer.headers["accept-encoding"] == "gzip, deflate, zstd"
            assert (await send(client, path, body, "identity")).status_code == 200
        assert bench.gateway.bodies.held == 0


async def test_the_limit_is_that_of_what_they_become(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, max_payload_size=MIB) as bench:
        for coding, pack in codings().items():
            for path, fields in (("/v1/chat/completions", chat_body()), ("/tokenize", {"prompt": "hi"})):
                exactly = json.dumps(fields).encode()
                exactly += b" " * (MIB - len(exactly))
                answer = await send(bench.http, path, pack(exactly), coding)
                assert answer.status_code == 200, answer.text
                error = error_of(await send(bench.http, path, pack(exactly + b" "), coding), 413)
                assert error["code"] == "request_too_large"
        assert bench.gateway.bodies.held == 0


async def test_a_bomb_is_noticed_on_the_way_while_others_are_served(tmp_path: Path) -> None:
    spaces = b" " * (400 * MIB)
    bombs = {coding: pack(spaces) for coding, pack in codings().items()}
    del spaces
    async with open_gateway(tmp_path, HELLO, max_payload_size=8 * MIB) as bench:
        tracemalloc.start()
        try:
            for coding, bomb in bombs.items():
                assert len(bomb) < MIB
                async with trio.open_nursery() as nursery:

                    async def attack(coding: str = coding, bomb: bytes = bomb) -> None:
                        error_of(await send(bench.http, "/v1/completions", bomb, coding), 413)

                    nursery.start_soon(attack)
                    assert (await bench.http.get("/health")).status_code == 200
            assert tracemalloc.get_traced_memory()[1] < 40 * MIB
        finally:
            tracemalloc.stop()
        assert bench.gateway.bodies.held == 0


async def test_what_they_become_counts_to_all_bodies_together(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, max_payload_size=8 * MIB, max_payload_memory=8 * MIB) as bench:
        bench.gateway.bodies.take(2 * MIB)
        body = json.dumps(chat_body()).encode() + b" " * (7 * MIB)
        error = error_of(await send(bench.http, "/v1/chat/completions", gzip.compress(body), "gzip"), 503)
        assert error["code"] == "payload_memory_full"
        assert bench.gateway.bodies.held == 2 * MIB
        bench.gateway.bodies.give_back(2 * MIB)
        assert (await send(bench.http, "/v1/chat/completions", gzip.compress(body), "gzip")).status_code == 200
