"""Web pages attack: what a browser lets any page send to a gateway, and what it sends of the gateway's own page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import ConnectionRejected, open_websocket_url

from tests.certificates import Authority

from .harness import HELLO, HI, MODEL, PATIENCE_S, Bench, chat_body, error_of, open_gateway
from .scrape import scrape

EVIL = "http://evil.example"
CHAT = "/v1/chat/completions"
CHANGES = [
    ("POST", CHAT),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/generate"),
    ("POST", "/pause"),
    ("POST", "/sleep"),
    ("POST", "/workers"),
    ("PUT", "/workers/w"),
    ("PATCH", "/workers/w"),
    ("DELETE", "/workers/w"),
    ("POST", "/v1/conversations"),
    ("DELETE", "/v1/responses/r"),
    ("POST", "/tokenize"),
    ("POST", "/nowhere"),
]


@asynccontextmanager
async def plain_gateway(tmp_path: Path, **settings: Any) -> AsyncIterator[Bench]:
    await trio.Path(tmp_path).mkdir(exist_ok=True)
    async with open_gateway(tmp_path, HELLO, connect=False, **settings) as bench:
        yield bench


async def refused_handshake(url: str, *headers: tuple[str, str], **options: Any) -> tuple[int, bytes]:
    raw = [(name.encode(), value.encode()) for name, value in headers]
    with trio.fail_after(PATIENCE_S), pytest.raises(ConnectionRejected) as refused:
        async with open_websocket_url(url, extra_headers=raw, **options):
            pass
    return refused.value.status_code, refused.value.body or b""


async def test_pages_of_other_origins_change_nothing(tmp_path: Path) -> None:
    async with plain_gateway(tmp_path) as bench:
        origins = (EVIL, "null", "file://", f"http://127.0.0.1:{bench.port + 1}", f"http://localhost:{bench.port}")
        for origin in origins:
            # A page can send texts without asking first; it does not name a content type then that we know.
            told = {"origin": origin, "content-type": "text/plain", "x-request-id": "page"}
            for method, path in CHANGES:
                answer = await bench.http.request(method, path, content=b'{"url":"ipc:///x"}', headers=told)
                assert answer.status_code == 403, (method, path, answer.text)
                assert answer.headers["x-smg-error-code"] == "origin_not_allowed"
                assert answer.headers["x-request-id"] == "page"
                assert "--cors-allowed-origins" in answer.text
            body = await bench.http.post(CHAT, json=chat_body(), headers={"origin": origin})
            assert error_of(body, 403)["type"] == "permission_error"
        assert len((await bench.http.get("/workers")).json()["workers"]) == 1
        assert (await bench.http.get("/is_paused")).status_code != 403
        found = await scrape(bench)
        labels = {"status_code": "403", "error_code": "origin_not_allowed"}
        assert found.value("smg_http_responses_total", path=CHAT, **labels) == 2 * len(origins)
        assert found.value("smg_http_responses_total", path="/workers/{worker_id}", **labels) == 3 * len(origins)
        assert found.value("smg_http_responses_total", path="unmatched", **labels) == len(origins)


async def test_a_refusal_has_the_shape_of_its_api(tmp_path: Path) -> None:
    async with plain_gateway(tmp_path) as bench:
        told = {"origin": EVIL}
        messages = (await bench.http.post("/v1/messages", json={}, headers=told)).json()
        assert (messages["type"], messages["error"]["type"]) == ("error", "permission_error")
        error_of(await bench.http.post("/workers", json={}, headers=told), 403)


async def test_pages_of_other_origins_may_look_but_not_read(tmp_path: Path) -> None:
    async with plain_gateway(tmp_path) as bench:
        answer = await bench.http.get("/v1/models", headers={"origin": EVIL})
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers, "so the browser keeps it from the page"


@pytest.mark.parametrize("path", ["/v1/responses", "/dashboard/feed", "/nowhere"])
async def test_pages_of_other_origins_open_no_websocket(tmp_path: Path, path: str) -> None:
    async with plain_gateway(tmp_path) as bench:
        url = f"ws://127.0.0.1:{bench.port}{path}"
        for origin in (EVIL, "null", f"https://127.0.0.1:{bench.port + 1}"):
            status, body = await refused_handshake(url, ("origin", origin))
            assert (status, b"origin_not_allowed" in body) == (403, True)


async def test_the_gateways_own_page_works(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        page = await bench.http.get("/dashboard")
        assert "connect-src 'self'" in page.headers["content-security-policy"]
        for name in ("127.0.0.1", "localhost"):
            own, host = f"http://{name}:{bench.port}", f"{name}:{bench.port}"
            answer = await bench.http.post(CHAT, json=chat_body(), headers={"origin": own, "host": host})
            assert answer.status_code == 200
            added = await bench.http.post("/workers", json={}, headers={"origin": own, "host": host})
            assert added.status_code == 400
            for path in ("/dashboard/feed", "/v1/responses"):
                raw = [(b"origin", own.encode())]
                async with open_websocket_url(f"ws://{host}{path}", extra_headers=raw):
                    pass


async def test_a_page_whose_name_was_bound_to_the_loopback_gets_nothing(tmp_path: Path) -> None:
    async with plain_gateway(tmp_path, allowed_hosts=("friend.example",)) as bench:
        rebound = {"host": f"evil.example:{bench.port}", "origin": f"http://evil.example:{bench.port}"}
        for method, path in (*CHANGES, ("GET", "/workers"), ("GET", "/health"), ("GET", "/nowhere"), ("OPTIONS", CHAT)):
            answer = await bench.http.request(method, path, headers=rebound)
            assert answer.status_code == 403, (method, path)
            assert answer.headers["x-smg-error-code"] == "host_not_allowed"
            assert "--allowed-hosts" in answer.text
        async with httpx.AsyncClient() as http:
            metrics = await http.get(bench.metrics_url, headers={"host": "evil.example:29000"})
            assert error_of(metrics, 403)["code"] == "host_not_allowed"
        for path in ("/v1/responses", "/dashboard/feed"):
            url = f"ws://evil.example:{bench.port}{path}"
            async with await trio.open_tcp_stream("127.0.0.1", bench.port) as stream:
                await stream.send_all(
                    f"GET {path} HTTP/1.1\r\nHost: evil.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
                )
                with trio.fail_after(PATIENCE_S):
                    answer_bytes = await stream.receive_some()
                assert answer_bytes.startswith(b"HTTP/1.1 403 "), url
        friend = {"host": f"friend.example:{bench.port}", "origin": f"http://friend.example:{bench.port}"}
        assert (await bench.http.get("/v1/models", headers=friend)).status_code == 200
        assert (await bench.http.post("/tokenize", json={"prompt": "hi"}, headers=friend)).status_code != 403


async def test_where_keys_are_needed_or_others_may_connect_any_host_will_do(tmp_path: Path) -> None:
    rebound = {"host": "gw.example", "origin": "https://gw.example", "authorization": "Bearer k"}
    async with plain_gateway(tmp_path, api_key=("k",)) as bench:
        # As behind a proxy that does TLS and passes the Host header on.
        assert (await bench.http.get("/v1/models", headers=rebound)).status_code == 200
        assert (await bench.http.post("/tokenize", json={"prompt": "hi"}, headers=rebound)).status_code != 403
        # As behind one that does not: the origin has to be named.
        rewritten = rebound | {"host": "smg_trio"}
        assert error_of(await bench.http.post("/tokenize", json={}, headers=rewritten), 403)["code"] == (
            "origin_not_allowed"
        )
    async with plain_gateway(tmp_path / "open", host="0.0.0.0") as bench:
        assert (await bench.http.get("/v1/models", headers=rebound)).status_code == 200
    named = {"api_key": ("k",), "cors_allowed_origins": ("https://GW.example/",)}
    async with plain_gateway(tmp_path / "named", **named) as bench:
        answer = await bench.http.post("/tokenize", json={"prompt": "hi"}, headers=rebound | {"host": "smg_trio"})
        assert answer.status_code != 403
        assert answer.headers["access-control-allow-origin"] == "https://gw.example"


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
async def test_under_tls_the_same_holds(tmp_path: Path, http2: bool) -> None:
    authority = Authority(tmp_path / "tls")
    async with plain_gateway(tmp_path, **authority.settings) as bench:
        verify = authority.trusting()
        own = f"https://127.0.0.1:{bench.port}"
        async with httpx.AsyncClient(base_url=own, verify=verify, http1=not http2, http2=http2) as http:
            for origin, path in ((EVIL, CHAT), (EVIL, "/pause"), (own.replace("https", "http"), CHAT), ("null", CHAT)):
                answer = await http.post(path, json=chat_body(), headers={"origin": origin})
                assert error_of(answer, 403)["code"] == "origin_not_allowed"
            assert (await http.post("/tokenize", json={"prompt": "hi"}, headers={"origin": own})).status_code != 403
            rebound = {"host": f"evil.example:{bench.port}"}
            assert error_of(await http.get("/workers", headers=rebound), 403)["code"] == "host_not_allowed"
        if not http2:
            url = own.replace("https", "wss") + "/v1/responses"
            status, body = await refused_handshake(url, ("origin", EVIL), ssl_context=verify)
            assert (status, b"origin_not_allowed" in body) == (403, True)


async def test_programs_notice_nothing(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        client = bench.openai()
        answer = await client.chat.completions.create(model=MODEL, messages=HI)  # type: ignore[arg-type]
        assert answer.choices[0].message.content == "Hello world"
        async with open_websocket_url(f"ws://127.0.0.1:{bench.port}/v1/responses"):
            pass
