"""A real Prometheus reads the material, scrapes a running demo gateway, and answers every panel's query.

Run by ``nox -s ops``; the variable SMG_TRIO_PROMETHEUS names the directory of `prometheus` and `promtool`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.wire.addresses import parse_worker_url
from tests.ports import lasting_port

from .material import ALERTS, OPS, panel_queries

DIRECTORY = os.environ.get("SMG_TRIO_PROMETHEUS", "")
pytestmark = pytest.mark.skipif(not DIRECTORY, reason="SMG_TRIO_PROMETHEUS does not name Prometheus (nox -s ops)")
PATIENCE_S = 60.0
VARIABLES = {"$__rate_interval": "10s", "$job": "smg-trio", "$instance": ".*", "$model": ".*"}
QUIET = {
    "Failed answers A", "Refused at the door A", "Refused at the door B", "Further attempts A", "Further attempts B",
    "Requests that engines failed A", "Items read A", "Items refused A", "Time to decode and resize A",
    "Time to decode and resize B", "Time to decode and resize C",
}  # fmt: skip
"""Queries that may show nothing where nothing has gone wrong, and no image has come."""
OF_SEVERAL_PROCESSES = {"Connections by process A", "Answers by process A", "Processes started again A"}
NOT_SHOWN = {"vllm:iteration_tokens_total", "vllm:kv_block_lifetime_seconds"}
DRAFTS = re.compile("vllm:spec_decode_.*")
"""The fake engine does not guess tokens."""
Panels = dict[str, list[str]]


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(DIRECTORY) / "promtool"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_promtool_finds_no_fault_with_rules_and_configuration() -> None:
    for words in (("check", "config", OPS / "prometheus.yml"), ("check", "rules", OPS / "alerts.yml")):
        done = promtool(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout


def test_alerts_come_when_they_must_and_not_when_they_must_not() -> None:
    done = promtool("test", "rules", Path(__file__).parent / "alerts_test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@asynccontextmanager
async def running(*command: str) -> AsyncIterator[trio.Process]:
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        with trio.move_on_after(10):
            await process.wait()
        process.kill()
        await process.wait()


async def wait_for(process: trio.Process, mark: bytes) -> bytes:
    assert process.stdout is not None
    seen = b""
    while mark not in seen:
        piece = await process.stdout.receive_some()
        assert piece, seen
        seen += piece
    return seen


async def read_away(process: trio.Process) -> None:
    assert process.stdout is not None
    async for _ in process.stdout:
        pass


async def ask(http: httpx.AsyncClient, path: str, **parameters: str) -> Any:
    answer = (await http.get(f"/api/v1/{path}", params=parameters)).json()
    assert answer["status"] == "success", (parameters, answer)
    return answer["data"]


def configuration(directory: Path, metrics_port: str) -> Path:
    """The shipped configuration, of this gateway and in a hurry."""
    text = (OPS / "prometheus.yml").read_text()
    text = text.replace("127.0.0.1:29000", f"127.0.0.1:{metrics_port}").replace("15s", "1s")
    path = directory / "prometheus.yml"
    path.write_text(text)
    (directory / "alerts.yml").write_text((OPS / "alerts.yml").read_text())
    return path


@asynccontextmanager
async def scraping(config: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a Prometheus that has begun."""
    port = lasting_port()
    command = (
        str(Path(DIRECTORY) / "prometheus"), f"--config.file={config}",
        f"--storage.tsdb.path={config.parent}/data", f"--web.listen-address=127.0.0.1:{port}",
    )  # fmt: skip
    async with running(*command) as prometheus, trio.open_nursery() as nursery:
        with trio.fail_after(PATIENCE_S):
            await wait_for(prometheus, b"ready to receive web requests")
        nursery.start_soon(read_away, prometheus)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20, verify=False) as http:
            yield http
        nursery.cancel_scope.cancel()


async def test_a_running_gateway_is_scraped_and_every_panel_has_an_answer(tmp_path: Path) -> None:
    demo = (sys.executable, "-m", "smg_trio", "demo", "--port", "0", "--step-ms", "5")
    async with running(*demo) as gateway, trio.open_nursery() as nursery:
        with trio.fail_after(PATIENCE_S):
            printed = (await wait_for(gateway, b"Stop with Ctrl-C")).decode()
        nursery.start_soon(read_away, gateway)
        found = re.search(r"Ready on (\S+) .*metrics: port (\d+)", printed)
        assert found is not None
        async with scraping(configuration(tmp_path, found[2])) as http:
            await use(http, found[1])
            assert await empty_panels(http) <= QUIET | OF_SEVERAL_PROCESSES
            await look_at_alerts(http)
        nursery.cancel_scope.cancel()


async def test_two_processes_with_vllm_s_names_fill_vllm_s_dashboards(tmp_path: Path) -> None:
    url, port, metrics = f"ipc://{tmp_path}/workers/e0", lasting_port(), lasting_port()
    (tmp_path / "workers").mkdir(mode=0o700)
    launch = (
        "launch", "--worker-urls", url, "--backend", "vllm", "--model-path", str(DEMO_MODEL), "--port", str(port),
        "--prometheus-port", str(metrics), "--metrics-compat", "vllm", "--processes", "2",
    )  # fmt: skip
    engine = ("fake-engine", "--handshake", parse_worker_url(url).handshake, "--model-path", str(DEMO_MODEL))
    smg_trio = (sys.executable, "-m", "smg_trio")
    async with running(*smg_trio, *launch) as gateway, trio.open_nursery() as nursery:
        nursery.start_soon(read_away, gateway)
        async with running(*smg_trio, *engine, "--prefix-caching") as fake:
            nursery.start_soon(read_away, fake)
            async with scraping(configuration(tmp_path, str(metrics))) as http:
                await use(http, f"http://127.0.0.1:{port}")
                assert not await empty_panels(http) & OF_SEVERAL_PROCESSES
                assert await missing_of_vllm(http) == NOT_SHOWN
        nursery.cancel_scope.cancel()


async def use(http: httpx.AsyncClient, gateway: str) -> None:
    """Use the gateway until Prometheus has seen it."""
    body = {"messages": [{"role": "user", "content": "Hi!"}], "stream": True, "max_tokens": 8}
    seen_enough = 'count_over_time(smg_router_tokens_total{token_type="output"}[10s]) > 4'
    async with httpx.AsyncClient(base_url=gateway, timeout=20, verify=False) as client:
        with trio.fail_after(PATIENCE_S):
            while not await _is_ready(client):  # noqa: ASYNC110 - a process of its own
                await trio.sleep(0.1)
            while not (await ask(http, "query", query=seen_enough))["result"]:
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    (target,) = (await ask(http, "targets"))["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")


async def _is_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/readiness")).status_code == 200
    except httpx.TransportError:
        return False


async def empty_panels(http: httpx.AsyncClient) -> set[str]:
    """Queries of our dashboard without an answer."""
    empty = set()
    for where, query in panel_queries():
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        if not (await ask(http, "query", query=query))["result"]:
            empty.add(where)
    return empty


async def missing_of_vllm(http: httpx.AsyncClient) -> set[str]:
    """Metrics of vLLM's dashboards that Prometheus has no series of, by the labels that panels select or group by."""
    recorded = json.loads((Path(__file__).parent / "vllm_dashboards.json").read_text())
    dashboards: list[Panels] = [shown for name, shown in recorded.items() if name != "source"]
    missing = set()
    for selector in {one for shown in dashboards for selectors in shown.values() for one in selectors}:
        metric, _, labels = selector.rstrip("}").partition("{")
        present = ",".join(f'{label}!=""' for label in labels.split(",") if label)
        for name in (metric, f"{metric}_bucket"):
            if (await ask(http, "query", query=f"{name}{{{present}}}"))["result"]:
                break
        else:
            missing.add(metric)
    return {metric for metric in missing if not DRAFTS.match(metric)}


async def look_at_alerts(http: httpx.AsyncClient) -> None:
    """All rules are evaluated, and none fires."""
    rules = (await ask(http, "rules"))["groups"][0]["rules"]
    assert [rule["name"] for rule in rules] == [rule["alert"] for rule in ALERTS]
    assert {rule["health"] for rule in rules} == {"ok"}, rules
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
