"""A client that offers compression for its WebSocket gets none, on any lane, and cannot send a bomb all the same."""

from __future__ import annotations

import base64
import os
import ssl
import struct
import tracemalloc
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
import trio

from tests.certificates import Authority

from .harness import HELLO, PATIENCE_S, connect_over, open_gateway

OFFER = "permessage-deflate; client_max_window_bits"
PATHS = ("/v1/responses", "/dashboard/feed")
MIB = 1 << 20
MOST_MEMORY = 40 * MIB

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


def bomb() -> bytes:
    """A masked text frame, marked as compressed, of 200 KB that are 200 MiB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = b"".join(packer.compress(b" " * MIB) for _ in range(200)) + packer.flush(zlib.Z_SYNC_FLUSH)
    packed = packed.removesuffix(b"\x00\x00\xff\xff")
    return b"\xc1\xff" + struct.pack("!Q", len(packed)) + b"\x00\x00\x00\x00" + packed


def upgrade(path: str) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Extensions: {OFFER}\r\n\r\n"
    ).encode()


async def close_code(stream: Stream, data: bytes) -> int:
    """The code of the close frame before the connection ends; 0 if a reset was faster."""
    with suppress(trio.BrokenResourceError, ssl.SSLError):
        while piece := await stream.receive_some(65536):
            data += piece
    while len(data) >= 4:
        kind, length = data[0] & 15, data[1] & 127
        head = 2
        if length == 126:
            head, length = 4, struct.unpack("!H", data[2:4])[0]
        if kind == 8:
            return int(struct.unpack("!H", data[head : head + 2])[0])
        data = data[head + length :]
    return 0


@pytest.mark.parametrize("lane", ["plain", "tls"])
async def test_no_compression_is_negotiated_and_a_bomb_ends_its_connection_uninflated(
    tmp_path: Path, lane: str
) -> None:
    authority = Authority(tmp_path / "tls") if lane == "tls" else None
    settings: dict[str, Any] = authority.settings if authority else {}
    frame = bomb()
    async with open_gateway(tmp_path, HELLO, **settings) as bench:
        for path in PATHS:
            stream = await connect_over(bench.port, authority)
            with trio.fail_after(PATIENCE_S):
                await stream.send_all(upgrade(path))
                answer = b""
                while b"\r\n\r\n" not in answer:
                    answer += await stream.receive_some(65536)
                head, _, rest = answer.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 101 ")
                assert b"sec-websocket-extensions" not in head.lower()
                tracemalloc.start()
                try:
                    with suppress(trio.BrokenResourceError):
                        await stream.send_all(frame)
                    assert await close_code(stream, rest) in (0, 1002)
                    assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
                finally:
                    tracemalloc.stop()
            assert (await bench.http.get("/health")).status_code == 200
            await trio.aclose_forcefully(stream)


async def test_no_compression_is_negotiated_over_http2(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    async with open_gateway(tmp_path, HELLO, **authority.settings) as bench:
        stream = await connect_over(bench.port, authority, "h2")
        client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        client.initiate_connection()
        headers = [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":path", "/v1/responses"),
            (":authority", "127.0.0.1"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-extensions", OFFER),
        ]
        client.send_headers(1, headers)
        client.increment_flow_control_window(MIB)
        answer: dict[str, str] = {}
        ended = False
        sent = False
        frame = bomb()
        tracemalloc.start()
        try:
            with trio.fail_after(PATIENCE_S):
                await stream.send_all(client.data_to_send())
                while not ended:
                    for event in client.receive_data(await stream.receive_some(65536)):
                        if isinstance(event, h2.events.ResponseReceived):
                            answer = dict(event.headers)
                        elif isinstance(event, (h2.events.StreamReset, h2.events.StreamEnded)):
                            ended = True
                    if answer and not sent:
                        client.send_data(1, frame[:16_000])
                        sent = True
                    await stream.send_all(client.data_to_send())
            assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
        finally:
            tracemalloc.stop()
        assert answer[":status"] == "200"
        assert "sec-websocket-extensions" not in answer
        await trio.aclose_forcefully(stream)
