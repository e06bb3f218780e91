"""Who used what, from outside: metrics by key holder, and the usage log, in which nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio_websocket

from .answers import ok
from .harness import ENDLESS, HI, MODEL, PATIENCE_S, error_of, launched_gateway, open_gateway


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_each_generation_is_noted_with_whose_it_is(tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    keys = ("acme:k1", "other:k2")
    async with open_gateway(tmp_path, tenant_api_key=keys, usage_log=str(file)) as bench:
        acme, other = {"authorization": "Bearer k1"}, {"authorization": "Bearer k2"}
        ok(await bench.http.post("/v1/chat/completions", json={"model": MODEL, "messages": HI}, headers=acme))
        body = {"model": MODEL, "prompt": ["a", "b"], "stream": True}
        ok(await bench.http.post("/v1/completions", json=body, headers=other))
        ok(await bench.http.post("/v1/responses", json={"input": "hi", "background": True}, headers=acme))
        await bench.wait_idle()
        url = bench.base_url.replace("http", "ws") + "/v1/responses"
        with trio.fail_after(PATIENCE_S):
            async with trio_websocket.open_websocket_url(url, extra_headers=[("authorization", "Bearer k2")]) as socket:
                await socket.send_message(json.dumps({"type": "response.create", "input": "hi"}))
                while json.loads(await socket.get_message())["type"] != "response.completed":
                    pass
        # What never became a generation is not noted.
        error_of(await bench.http.post("/v1/chat/completions", json={"model": "none"}, headers=acme), 400)
        ok(await bench.http.get("/v1/models", headers=acme))
        bench.say(ENDLESS)
        body = {"model": MODEL, "messages": HI, "stream": True}
        async with bench.http.stream("POST", "/v1/chat/completions", json=body, headers=acme):
            pass
        await bench.wait_idle()
        metrics = (await bench.http.get(bench.metrics_url)).text
        assert 'smg_identity_generations_total{identity="acme"} 3.0' in metrics
        assert 'smg_identity_tokens_total{identity="other",token_type="output"} 15.0' in metrics
        with trio.fail_after(PATIENCE_S):
            while not file.exists() or file.read_bytes().count(b"\n") < 5:
                await trio.lowlevel.checkpoint()
    chat, completion, background, turn, left = lines_of(file)
    assert (chat["identity"], chat["model"], chat["endpoint"], chat["status"]) == ("acme", MODEL, "chat", "ok")
    assert (chat["completion_tokens"], chat["workers"]) == (5, bench.urls)
    assert chat["request_id"].startswith("req-")
    assert 0 < chat["ttft_s"] <= chat["duration_s"]
    assert (completion["identity"], completion["completion_tokens"]) == ("other", 10)
    assert (background["identity"], background["endpoint"], background["status"]) == ("acme", "responses", "ok")
    assert (turn["identity"], turn["endpoint"]) == ("other", "responses")
    assert (left["status"], left["identity"]) == ("left", "acme")


async def test_without_keys_the_log_has_no_identities(tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    async with open_gateway(tmp_path, usage_log=str(file)) as bench:
        ok(await bench.chat())
        assert "smg_identity_generations_total{" not in (await bench.http.get(bench.metrics_url)).text
    [line] = lines_of(file)
    assert line["identity"] == ""


@pytest.mark.parametrize("signals", [1, 2])
async def test_what_a_generation_cost_is_in_the_log_when_the_process_has_ended(tmp_path: Path, signals: int) -> None:
    """Drained, or cut by a second signal in the middle of an answer."""
    file = tmp_path / "usage.jsonl"
    flags = ("--usage-log", str(file), "--shutdown-grace-period-secs", "0.2" if signals == 1 else "60")
    async with (
        launched_gateway(tmp_path, ENDLESS, flags=flags) as (process, _),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{process.port}", timeout=PATIENCE_S) as http,
        trio.open_nursery() as nursery,
    ):
        body = {"model": MODEL, "messages": HI, "stream": True}
        ok(await http.post("/v1/chat/completions", json=body | {"stream": False, "max_tokens": 3}))
        begun = trio.Event()

        async def watch() -> None:
            try:
                async with http.stream("POST", "/v1/chat/completions", json=body) as response:
                    async for _ in response.aiter_bytes():
                        begun.set()
            except httpx.HTTPError:
                assert signals == 2

        nursery.start_soon(watch)
        await begun.wait()
        process.signal()
        if signals == 2:
            await process.wait_log("shutting down")
            process.signal()
        assert await process.wait(PATIENCE_S) == signals - 1
    short, cut = lines_of(file)
    assert (short["completion_tokens"], short["status"]) == (3, "ok")
    assert cut["completion_tokens"] > 0
    assert cut["status"] in ("failed", "left")
