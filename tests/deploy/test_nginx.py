"""The nginx configuration, in a real nginx in front of a real gateway: nothing is held back, nobody is forgotten."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import trio
from trio_websocket import open_websocket_url

from tests.e2e.harness import ENDLESS, HELLO, MODEL, PATIENCE_S, Bench, open_gateway
from tests.ports import lasting_port

from .conftest import program
from .reading import DEPLOY

CONFIGURATION = (DEPLOY / "nginx" / "smg-trio.conf").read_text()
_AROUND = """
{user}
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    {server}
}}
"""


@asynccontextmanager
async def nginx(bench: Bench, directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an nginx with the configuration as it is shipped, but for the two ports."""
    path, port = program("nginx"), lasting_port()
    server, changes = re.subn(r"server 127\.0\.0\.1:30000;", f"server 127.0.0.1:{bench.port};", CONFIGURATION)
    server, listens = re.subn(r"listen 80;", f"listen 127.0.0.1:{port};", server)
    assert (changes, listens) == (1, 1)
    await trio.Path(directory).mkdir()
    file = directory / "nginx.conf"
    # As root it would serve as a user who may not enter the directories of a test.
    user = "user root;" if os.geteuid() == 0 else ""
    await trio.Path(file).write_text(_AROUND.format(directory=directory, server=server, user=user))
    command = [path, "-p", str(directory), "-e", "stderr", "-c", str(file)]
    await trio.run_process([*command, "-t"], capture_stderr=True)
    process = await trio.lowlevel.open_process(command, stderr=subprocess.PIPE)
    try:
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await trio.lowlevel.checkpoint()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, verify=False) as client:
            yield client
    finally:
        process.terminate()
        with trio.move_on_after(5, shield=True):
            await process.wait()
        process.kill()


def chat(**fields: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]} | fields


async def test_tokens_come_through_while_the_answer_goes_on(tmp_path: Path) -> None:
    # An answer without an end: whoever waits for the whole of it, or for a buffer to fill, waits for ever.
    async with open_gateway(tmp_path, ENDLESS) as bench, nginx(bench, tmp_path / "nginx") as client:
        asking = client.stream("POST", "/v1/chat/completions", json=chat(stream=True))
        with trio.fail_after(PATIENCE_S):
            async with asking as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                lines = 0
                async for line in answer.aiter_lines():
                    lines += line.startswith("data: ")
                    if lines == 3:
                        break
        # The client has left; nginx passes that on, and the engine is told.
        await bench.wait_idle()


async def test_request_ids_go_through_and_are_made_where_there_is_none(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench, nginx(bench, tmp_path / "nginx") as client:
        answer = await client.post("/v1/chat/completions", json=chat(), headers={"x-request-id": "mine"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine")
        answer = await client.post("/v1/chat/completions", json=chat())
        assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["x-request-id"])
        for _ in range(20):
            assert (await client.get("/readiness")).status_code == 200


async def test_large_bodies_go_through(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench, nginx(bench, tmp_path / "nginx") as client:
        long = [{"role": "user", "content": "x" * 3_000_000}]
        answer = await client.post("/v1/chat/completions", json=chat(messages=long))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_the_websocket_mode_of_responses_goes_through(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench, nginx(bench, tmp_path / "nginx") as client:
        url = str(client.base_url).replace("http", "ws").rstrip("/") + "/v1/responses"
        with trio.fail_after(PATIENCE_S):
            async with open_websocket_url(url) as asked:
                await asked.send_message(f'{{"type": "response.create", "model": "{MODEL}", "input": "hi"}}')
                while '"response.completed"' not in await asked.get_message():
                    pass


def seconds(name: str) -> float:
    found = re.search(rf"\b{name} (\d+)s;", CONFIGURATION)
    assert found is not None, name
    return float(found[1])


def test_its_times_fit_the_gateway_s() -> None:
    from smg_trio.http.settings import ServerLimits
    from smg_trio.settings.settings import Settings

    settings = Settings()
    assert seconds("proxy_read_timeout") > settings.request_timeout_secs
    assert seconds("keepalive_timeout") < ServerLimits().keep_alive_timeout_s
    assert f"client_max_body_size {settings.max_payload_size // 2**20}m;" in CONFIGURATION
    assert "proxy_buffering off;" in CONFIGURATION
