"""HTTPS as real clients speak it: HTTP/1.1 and HTTP/2, certificates that change, client certificates."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import httpx
import openai
import pytest
import trio
from trio_websocket import open_websocket_url

from tests.certificates import Authority
from tests.waiting import read_to_end

from .harness import (
    ENDLESS,
    HELLO,
    PATIENCE_S,
    SLOW,
    Bench,
    chat_body,
    connect,
    error_of,
    join_chat,
    launched_gateway,
    open_gateway,
    post,
)

H2_HEADERS = [(":scheme", "https"), (":authority", "localhost"), ("content-type", "application/json")]
versions = pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls")


@asynccontextmanager
async def client_of(
    bench: Bench, authority: Authority, *, http2: bool = False, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    verify = authority.trusting(**options)
    async with httpx.AsyncClient(
        base_url=bench.base_url, verify=verify, http1=not http2, http2=http2, timeout=PATIENCE_S
    ) as client:
        yield client


def the_version(answer: httpx.Response, http2: bool) -> bool:
    return answer.http_version == ("HTTP/2" if http2 else "HTTP/1.1")


@versions
async def test_answers_come_whole_and_streamed(tmp_path: Path, authority: Authority, http2: bool) -> None:
    async with (
        open_gateway(tmp_path, HELLO, **authority.settings) as bench,
        client_of(bench, authority, http2=http2) as client,
    ):
        whole = await client.post("/v1/chat/completions", json=chat_body())
        assert whole.json()["choices"][0]["message"]["content"] == "Hello world"
        streamed = await client.post("/v1/chat/completions", json=chat_body(stream=True))
        assert join_chat(streamed.text)["content"] == "Hello world"
        assert the_version(whole, http2)
        assert the_version(streamed, http2)
        error_of(await client.get("/nowhere"), 404)
        error_of(await client.post("/v1/chat/completions", content=b"{"), 400)
        await bench.wait_idle()


@versions
async def test_a_stream_comes_event_by_event(tmp_path: Path, authority: Authority, http2: bool) -> None:
    async with (
        open_gateway(tmp_path, ENDLESS, engine=SLOW, **authority.settings) as bench,
        client_of(bench, authority, http2=http2) as client,
        client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as answer,
    ):
        lines = answer.aiter_lines()
        with trio.fail_after(PATIENCE_S):
            seen = [await anext(lines) for _ in range(20)]
        # The answer never ends, so these lines cannot have waited for its end.
        assert sum('"content":"b"' in line for line in seen) > 2


async def has_begun(bench: Bench, count: int = 1) -> None:
    with trio.fail_after(PATIENCE_S):
        await bench.engine.wait_received(count)
        await bench.engine.wait_until(lambda: bench.engine.in_flight == count)


async def is_aborted(bench: Bench, count: int = 1) -> None:
    with trio.fail_after(PATIENCE_S):
        await bench.engine.wait_until(lambda: len(bench.engine.aborts) == count)


@versions
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_closes_its_connection_aborts_its_requests(
    tmp_path: Path, authority: Authority, http2: bool, stream: bool
) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        with suppress(httpx.TransportError):  # that of whose connection the other one has closed
            await client.post("/v1/chat/completions", json=chat_body(stream=stream))

    async with open_gateway(tmp_path, ENDLESS, engine=SLOW, **authority.settings) as bench:
        async with trio.open_nursery() as nursery, client_of(bench, authority, http2=http2) as client:
            for _ in range(2):
                nursery.start_soon(ask, client)
            await has_begun(bench, 2)
            nursery.cancel_scope.cancel()
        await is_aborted(bench, 2)
        await bench.wait_idle()
        assert bench.engine.in_flight == 0


async def test_a_stream_that_is_reset_over_http2_is_aborted_and_the_others_go_on(
    tmp_path: Path, authority: Authority
) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW, **authority.settings) as bench:
        context = authority.trusting()
        context.set_alpn_protocols(["h2"])
        stream = trio.SSLStream(await connect(bench.port), context, server_hostname="127.0.0.1")
        client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        client.initiate_connection()
        body = json.dumps(chat_body(stream=True)).encode()
        for number in (1, 3):
            client.send_headers(number, [(":method", "POST"), (":path", "/v1/chat/completions"), *H2_HEADERS])
            client.send_data(number, body, end_stream=True)
        await stream.send_all(client.data_to_send())
        await has_begun(bench, 2)
        client.reset_stream(1, error_code=h2.errors.ErrorCodes.CANCEL)
        await stream.send_all(client.data_to_send())
        await is_aborted(bench)
        seen: set[int] = set()
        with trio.fail_after(PATIENCE_S):
            for _ in range(20):
                received = client.receive_data(bytes(await stream.receive_some()))
                seen |= {event.stream_id for event in received if isinstance(event, h2.events.DataReceived)}
        assert 3 in seen
        assert (len(bench.engine.aborts), bench.engine.in_flight) == (1, 1)
        await stream.transport_stream.aclose()
        await is_aborted(bench, 2)
        await bench.wait_idle()


async def test_many_streams_share_one_http2_connection(tmp_path: Path, authority: Authority) -> None:
    async with (
        open_gateway(tmp_path, HELLO, engine=SLOW, **authority.settings) as bench,
        client_of(bench, authority, http2=True) as client,
    ):
        texts: list[str] = []

        async def ask() -> None:
            answer = await client.post("/v1/chat/completions", json=chat_body(stream=True))
            texts.append(join_chat(answer.text)["content"])

        assert (await client.get("/v1/models")).status_code == 200
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        assert texts == ["Hello world"] * 20


@versions
async def test_streams_in_flight_are_finished_at_shutdown(tmp_path: Path, authority: Authority, http2: bool) -> None:
    async with (
        open_gateway(tmp_path, HELLO, engine={"step_time_s": 0.05}, **authority.settings) as bench,
        client_of(bench, authority, http2=http2) as client,
        client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as answer,
    ):
        bench.shutdown.ask()
        assert join_chat((await answer.aread()).decode())["content"] == "Hello world"
        with trio.fail_after(PATIENCE_S):
            await bench.gateway.wait_no_answers()


async def test_the_official_client_works(tmp_path: Path, authority: Authority) -> None:
    async with (
        open_gateway(tmp_path, HELLO, api_key=("k",), **authority.settings) as bench,
        httpx.AsyncClient(verify=authority.trusting(), http2=True) as http,
    ):
        client = openai.AsyncOpenAI(base_url=f"{bench.base_url}/v1", api_key="k", http_client=http, max_retries=0)
        stream = await client.chat.completions.create(**chat_body(stream=True))
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Hello world"


async def test_a_websocket_works(tmp_path: Path, authority: Authority) -> None:
    async with (
        open_gateway(tmp_path, HELLO, **authority.settings) as bench,
        open_websocket_url(
            bench.base_url.replace("https", "wss") + "/v1/responses", ssl_context=authority.trusting()
        ) as client,
    ):
        await client.send_message('{"type": "response.create", "model": "m", "input": "hi", "store": false}')
        with trio.fail_after(PATIENCE_S):
            while "response.completed" not in (message := await client.get_message()):
                pass
        assert "Hello world" in message


async def test_plain_http_is_told_to_use_tls(tmp_path: Path, authority: Authority) -> None:
    async with open_gateway(tmp_path, HELLO, **authority.settings) as bench:
        for start in (post("/v1/chat/completions", chat_body()), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            async with await connect(bench.port) as stream:
                await stream.send_all(start)
                answer = await read_to_end(stream)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"use https://" in answer
        for start in (b"\x16\x03\x01\x00\x05hello", b"SSH-2.0-x\r\n\r\n", b"\x00" * 100):
            async with await connect(bench.port) as stream:
                await stream.send_all(start)
                assert b"HTTP" not in await read_to_end(stream)
        assert bench.engine.received == []
        async with client_of(bench, authority) as client:
            assert (await client.get("/v1/models")).status_code == 200


async def test_a_client_that_does_not_trust_the_certificate_gets_nothing(tmp_path: Path, authority: Authority) -> None:
    stranger = Authority(tmp_path / "other")
    async with open_gateway(tmp_path, HELLO, **authority.settings) as bench, client_of(bench, stranger) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("/v1/models")


# ---- certificates that change --------------------------------------------------------------------------------


async def shown_certificate(bench: Bench, authority: Authority) -> dict[str, Any]:
    """What a new connection is greeted with."""
    stream = trio.SSLStream(await connect(bench.port), authority.trusting(), server_hostname="127.0.0.1")
    async with stream:
        await stream.do_handshake()
        found: dict[str, Any] = stream.getpeercert()
    return found


def names_of(certificate: dict[str, Any]) -> set[str]:
    return {name for _, name in certificate["subjectAltName"]}


async def test_the_next_connection_sees_a_new_certificate_and_open_ones_go_on(
    tmp_path: Path, authority: Authority
) -> None:
    async with (
        open_gateway(tmp_path, ENDLESS, engine=SLOW, **authority.settings) as bench,
        client_of(bench, authority, http2=True) as client,
        client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        authority.issue("renewed.test")
        assert "renewed.test" not in names_of(await shown_certificate(bench, authority))
        with trio.fail_after(PATIENCE_S):
            while "renewed.test" not in names_of(await shown_certificate(bench, authority)):
                await anext(lines)
            for _ in range(20):
                await anext(lines)


async def test_a_broken_certificate_keeps_the_old_one_and_is_warned_of(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_gateway(tmp_path, HELLO, **authority.settings) as bench:
        before = await shown_certificate(bench, authority)
        with caplog.at_level(logging.WARNING, "smg_trio"):
            authority.cert.write_text("broken")
            await bench.files.read_all()
        assert "TLS certificate not reloaded, the previous contents stay in force: --tls-cert-path" in caplog.text
        assert (await shown_certificate(bench, authority)) == before
        authority.issue("mended.test")
        await bench.files.read_all()
        assert "mended.test" in names_of(await shown_certificate(bench, authority))


async def test_metrics_come_over_tls_to_known_scrapers_and_say_when_certificates_expire(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Authority(tmp_path / "metrics")
    metrics.issue(days=(80, 10))
    clients = Authority(tmp_path / "clients")
    settings = metrics.metrics_settings | {"prometheus_tls_client_ca_path": str(clients.ca)}
    async with open_gateway(tmp_path, HELLO, **authority.settings, **settings) as bench:
        assert f"TLS certificate {metrics.cert} expires in 10 days (" in caplog.text
        assert f"TLS certificate {authority.cert} expires" not in caplog.text
        url = bench.metrics_url.replace("http://", "https://")
        async with httpx.AsyncClient(verify=metrics.trusting()) as client:
            with pytest.raises(httpx.TransportError):
                await client.get(url)
        context = clients.trusting(client="prometheus")
        context.load_verify_locations(metrics.ca)
        async with httpx.AsyncClient(verify=context) as client:
            assert (await client.get(bench.metrics_url)).status_code == 400  # plain HTTP
            left = [days_left(await client.get(url), listener) for listener in ("http", "metrics")]
            assert left[0] > 365
            assert 9.9 < left[1] < 10
            metrics.issue(days=(0, 90))
            await bench.files.read_all()
            assert 89 < days_left(await client.get(url), "metrics") < 90


def days_left(answer: httpx.Response, listener: str) -> float:
    name = f'smg_tls_certificate_expiry_timestamp_seconds{{listener="{listener}"}} '
    (line,) = (line for line in answer.text.splitlines() if line.startswith(name))
    return (float(line.removeprefix(name)) - time.time()) / 86400


async def test_sighup_reads_the_certificate_again(tmp_path: Path, authority: Authority) -> None:
    settings = authority.settings
    flags = ("--tls-cert-path", settings["tls_cert_path"], "--tls-key-path", settings["tls_key_path"])
    async with launched_gateway(tmp_path, HELLO, flags=flags, verify=authority.trusting()) as (process, _):
        authority.cert.write_text("broken")
        process.signal(signal.SIGHUP)
        await process.wait_log("TLS certificate not reloaded")
        authority.issue()
        process.signal(signal.SIGHUP)
        await process.wait_log("TLS certificate reloaded")
        async with httpx.AsyncClient(verify=authority.trusting()) as client:
            answer = await client.post(f"https://127.0.0.1:{process.port}/v1/chat/completions", json=chat_body())
            assert answer.status_code == 200
        process.signal(signal.SIGTERM)
        assert await process.wait(PATIENCE_S) == 0


# ---- client certificates --------------------------------------------------------------------------------------


@versions
async def test_with_a_client_authority_only_its_clients_are_let_in(
    tmp_path: Path, authority: Authority, http2: bool
) -> None:
    clients = Authority(tmp_path / "clients")
    settings = authority.settings | {"tls_client_ca_path": str(clients.ca)}
    async with open_gateway(tmp_path, HELLO, **settings) as bench:
        for wrong in ({}, {"client": "me"}):
            async with client_of(bench, authority, http2=http2, **wrong) as client:
                with pytest.raises(httpx.TransportError):
                    await client.get("/v1/models")
        context = clients.trusting(client="me")
        context.load_verify_locations(authority.ca)
        async with httpx.AsyncClient(base_url=bench.base_url, verify=context, http2=http2) as client:
            assert (await client.get("/v1/models")).status_code == 200
        assert bench.engine.received == []
