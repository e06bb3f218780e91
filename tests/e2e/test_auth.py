"""A key guards every route that can generate, tell or administer; probes are open."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from smg_trio.gateway.routes import ROUTES, Route
from tests.waiting import read_to_end

from .harness import (
    HELLO,
    HI,
    MODEL,
    chat_body,
    connect,
    error_of,
    open_gateway,
    post,
)

KEY = "s3cret-key"
OPEN = {"/health", "/liveness", "/readiness", "/ping", "/dashboard"}


def path_of(route: Route) -> str:
    return re.sub(r"<[^>]*>", "x", route.path)


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
async def test_every_route_but_the_probes_needs_the_key(tmp_path: Path, http2: bool) -> None:
    options = {"api_key": (KEY,), "http2": http2, "metrics_on_port": True}
    async with open_gateway(tmp_path, HELLO, connect=False, **options) as bench:
        for route in ROUTES:
            answer = await bench.http.request(
                route.method, path_of(route), content=b"{}" if route.method == "POST" else None
            )
            if route.path in OPEN:
                assert answer.status_code in (200, 503), route
                continue
            assert answer.status_code == 401, route
            error = answer.json()["error"]
            if "/parse/" in route.path:
                assert error == "An API key is required.", route
            else:
                assert error["type"] == "authentication_error", route
            assert answer.headers["x-smg-error-code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["x-request-id"]
            with_key = await bench.http.request(
                route.method,
                path_of(route),
                content=b"{}" if route.method == "POST" else None,
                headers={"authorization": f"Bearer {KEY}"},
            )
            assert with_key.status_code != 401, route
            if route.method == "GET":
                assert (await bench.http.head(path_of(route))).status_code == 401


HEADERS: list[tuple[dict[str, str], bool]] = [
    ({}, False),
    ({"authorization": f"Bearer {KEY}"}, True),
    ({"authorization": f"bearer {KEY}"}, True),
    ({"authorization": f"BEARER {KEY}"}, True),
    ({"authorization": f"Bearer   {KEY}  "}, True),
    ({"authorization": "Bearer "}, False),
    ({"authorization": "Bearer"}, False),
    ({"authorization": KEY}, False),
    ({"authorization": f"Basic {KEY}"}, False),
    ({"authorization": f"Bearer {KEY}x"}, False),
    ({"authorization": f"Bearer {KEY[:-1]}"}, False),
    ({"authorization": f"Bearer {KEY.upper()}"}, False),
    ({"authorization": "Bearer é"}, False),
    ({"x-api-key": KEY}, True),
    ({"x-api-key": "wrong"}, False),
    ({"x-api-key": ""}, False),
    ({"authorization": "Bearer wrong", "x-api-key": KEY}, False),
]


async def test_the_key_is_read_as_clients_send_it(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, api_key=(KEY,)) as bench:
        for headers, accepted in HEADERS:
            lines = [f"{name}: {value}" for name, value in headers.items()]
            before = len(bench.engine.received)
            async with await connect(bench.port) as stream:
                await stream.send_all(post("/v1/chat/completions", chat_body(), "Connection: close", *lines))
                status = (await read_to_end(stream)).split(b" ")[1]
            assert status == (b"200" if accepted else b"401"), headers
            assert len(bench.engine.received) == before + accepted


TARGETS = [
    "//v1/chat/completions",
    "/v1/../v1/chat/completions",
    "/v1/chat/completions/",
    "/%761/chat/completions",
    "/v1%2Fchat/completions",
    "/v1/./chat/completions",
    "/v1/chat/completions?x=1",
    "/v1/chat/completions;x",
    "/health/../v1/chat/completions",
    "/health/%2e%2e/v1/chat/completions",
    "http://test/v1/chat/completions",
]


async def test_no_other_spelling_of_a_path_gets_around_the_key(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, api_key=(KEY,)) as bench:
        body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
        for target in TARGETS:
            head = (
                f"POST {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            async with await connect(bench.port) as stream:
                await stream.send_all(head.encode() + body)
                answer = await read_to_end(stream)
            assert answer.split(b" ")[1] in (b"400", b"401", b"404"), (target, answer)
            assert b"Hello" not in answer
        assert bench.engine.received == []


async def test_a_key_of_any_characters_works(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, api_key=("schlüssel",)) as bench:
        raw: Any = [("authorization", "Bearer schlüssel".encode())]
        assert (await bench.http.get("/v1/models", headers=raw)).status_code == 200


async def test_the_key_is_looked_at_before_the_body(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, api_key=(KEY,)) as bench:
        error_of(await bench.http.post("/v1/chat/completions", content=b"{"), 401)
        error_of(await bench.http.post("/tokenize", content=b"{", headers={"content-type": "text/plain"}), 401)


async def test_metrics_and_models_do_not_show_the_key(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, api_key=(KEY,)) as bench:
        headers = {"authorization": f"Bearer {KEY}"}
        await bench.http.post("/v1/chat/completions", json={"model": MODEL, "messages": HI}, headers=headers)
        shown = (await bench.http.get(bench.metrics_url)).text
        for path in ("/v1/models", "/workers"):
            shown += (await bench.http.get(path, headers=headers)).text
        assert KEY not in shown
