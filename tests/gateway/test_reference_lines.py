"""Log lines that operators of the reference look for, word for word, where the same thing happens here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio

from tests.e2e.harness import HELLO, MODEL, open_gateway
from tests.waiting import until

from .conftest import SetUp


def messages(text: str) -> list[tuple[str, str]]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    return [(line["level"], line["message"]) for line in lines]


async def test_binding_and_connecting_are_said_in_the_reference_s_words(tmp_path: Path, set_up: SetUp) -> None:
    out = set_up(as_json=True)
    async with open_gateway(tmp_path, HELLO, backend=None, disable_health_check=True, policy="cache_aware") as bench:
        url, handshake = bench.urls[0], bench.worker.addresses.handshake
    said = messages(out.getvalue())
    for level, words in (
        ("INFO", f"Binding ZMQ client for worker {url} (handshake={handshake}, engines=1)"),
        ("INFO", "bound local transport sockets"),
        ("INFO", "waiting for engines to connect"),
        ("INFO", "engines connected"),
        ("INFO", "the ZMQ transport has no KV-event stream"),
        (
            "WARN",
            "runtime_type unspecified for ZMQ worker; defaulting to vLLM EngineCore. A TokenSpeed engine must declare "
            "its runtime to speak the correct wire protocol: ",
        ),
        (
            "WARN",
            f"Ignoring disabled health checks for ZMQ worker {url}: the ZMQ probe is a local liveness check and the "
            "only path that reconnects a restarted engine, so it stays enabled",
        ),
    ):
        assert any(line_level == level and words in line for line_level, line in said), words


async def test_stale_sockets_are_said_to_be_removed(tmp_path: Path, set_up: SetUp) -> None:
    import socket

    out = set_up(as_json=True)
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        stale = f"{tmp_path}/s/stale-in.sock"
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(stale)
        body = {"url": f"ipc://{tmp_path}/s/stale", "runtime_type": "vllm", "model_id": MODEL}
        assert (await bench.http.post("/workers", json=body)).status_code == 202
        await until(lambda: f"Removing stale ipc socket {stale} from a previous gateway run" in out.getvalue())


async def test_what_keeps_engines_from_being_let_in_is_said_as_a_failed_handshake(
    tmp_path: Path, set_up: SetUp
) -> None:
    out = set_up(as_json=True)
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        in_the_way = trio.Path(f"{tmp_path}/s/blocked-in.sock")
        await in_the_way.write_text("no socket")
        url = f"ipc://{tmp_path}/s/blocked"
        body = {"url": url, "runtime_type": "vllm", "model_id": MODEL}
        assert (await bench.http.post("/workers", json=body)).status_code == 202
        words = (
            f"ZMQ backend handshake failed for {url}: ipc socket path {in_the_way} exists but is not a socket; "
            "refusing to unlink"
        )
        await until(lambda: words in out.getvalue())
        assert await in_the_way.read_text() == "no socket"
