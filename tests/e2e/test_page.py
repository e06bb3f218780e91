"""Each command of the reference gateway's page on ZMQ workers works as written, with an empty and a full cache."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from smg_trio.testing.demo import DEMO_MODEL
from tests.interop.processes import Process
from tests.small_hub import SmallHub, model_files, small_hub

from . import page as commands
from .page import MODEL, Page, install_fake_engines, opened_page

BACKENDS = ("vllm", "tokenspeed")

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("curl", "jq", "bash"))), reason="the page's commands need bash, curl and jq"
)


@pytest.fixture(scope="module")
def server() -> Iterator[SmallHub]:
    with small_hub() as running:
        running.add(MODEL, model_files(DEMO_MODEL), large=frozenset({"tokenizer.json", "model.safetensors"}))
        yield running


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HF_HOME of most commands: filled by the first of them."""
    return tmp_path_factory.mktemp("hf-home")


@pytest.fixture
def page(server: SmallHub, cache: Path, tmp_path: Path) -> Iterator[Page]:
    install_fake_engines(tmp_path)
    # Paths of sockets are limited to some hundred bytes.
    with tempfile.TemporaryDirectory(prefix="smg-") as sockets:
        environment = {"HF_HOME": str(cache), "HF_ENDPOINT": server.url, "HF_TOKEN": ""}
        with opened_page(tmp_path, Path(sockets) / "s", environment) as opened:
            yield opened


def verify(page: Page, workers: dict[str, str]) -> None:
    """The page's section "Verify"; `workers`: the runtime of each by its URL."""
    assert json.loads(page.run(commands.READINESS))["status"] == "ready"
    assert page.workers() == [
        {"url": url, "connection_mode": "zmq", "runtime_type": runtime, "status": "ready"}
        for url, runtime in workers.items()
    ]
    answer = json.loads(page.run(commands.CHAT))
    assert answer["choices"][0]["message"]["content"] == "Hello yourself!"
    assert answer["model"] == MODEL
    lines = page.run(commands.METRICS).splitlines()
    assert {line.partition("{")[0] for line in lines} >= {"smg_worker_pool_size", "smg_worker_selection_total"}


def end(process: Process) -> None:
    """SIGTERM ends it well."""
    assert process.stop() in (0, 128 + signal.SIGTERM)


@pytest.mark.parametrize("backend", BACKENDS)
def test_serve(page: Page, backend: str) -> None:
    gateway = page.start(commands.SERVE, backend=backend)
    page.wait_ready(gateway)
    [worker] = page.workers()
    verify(page, {worker["url"]: backend})
    end(gateway)


@pytest.mark.parametrize("backend", BACKENDS)
def test_launch_with_an_empty_cache_and_then_offline(
    page: Page, server: SmallHub, backend: str, tmp_path: Path
) -> None:
    worker = {f"ipc://{page.sockets}/engine-0": backend}
    cold = {"HF_HOME": str(tmp_path / "cold")}
    server.requests.clear()
    server.bytes_sent = 0
    gateway = page.start(commands.LAUNCH, backend=backend, environment=cold)
    gateway.until_logged(f"model {MODEL}: download")
    assert server.bytes_sent < 50_000_000
    page.start(commands.ENGINE[backend], environment=cold, _22670=page.handshake_port())
    page.wait_ready(gateway)
    verify(page, worker)
    end(gateway)
    assert server.weights_asked == []

    asked = len(server.requests)
    offline = cold | {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    gateway = page.start(commands.LAUNCH, backend=backend, environment=offline)
    page.wait_ready(gateway)  # the engine of before is taken over
    verify(page, worker)
    assert f"model {MODEL}: cache " in gateway.logged()
    assert len(server.requests) == asked


def test_the_snippet_prints_the_port_that_the_gateway_binds(page: Page) -> None:
    port = page.handshake_port()
    gateway = page.start(commands.LAUNCH)
    gateway.until_logged(
        f"Binding ZMQ client for worker ipc://{page.sockets}/engine-0 (handshake=tcp://127.0.0.1:{port}, engines=1)"
    )


def test_launch_with_several_urls(page: Page) -> None:
    first = "ipc:///tmp/smg-zmq/engine-0"
    gateway = page.start(commands.LAUNCH.replace(first, f"{first} ipc:///tmp/smg-zmq/engine-1"))
    for number in range(2):
        page.start(commands.ENGINE["vllm"], _22670=page.handshake_port(f"engine-{number}"))
    gateway.until_logged("listening on")
    gateway.until(lambda: [one["status"] for one in page.workers()] == ["ready"] * 2, "both workers", 30.0)
    verify(page, {f"ipc://{page.sockets}/engine-{number}": "vllm" for number in range(2)})


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_group_behind_one_worker(page: Page, backend: str) -> None:
    gateway = page.start(commands.LAUNCH_GROUP, backend=backend)
    page.start(commands.ENGINE_GROUP[backend], _22670=page.handshake_port())
    page.wait_ready(gateway)
    gateway.until_logged("engine connected: rank 0", 10.0)
    gateway.until_logged("engine connected: rank 1", 10.0)
    verify(page, {f"ipc://{page.sockets}/engine-0": backend})


def test_workers_at_run_time(page: Page) -> None:
    gateway = page.start(commands.LAUNCH)
    gateway.until_logged("listening on")
    assert json.loads(page.run(commands.ADD_WORKER))["status"] == "accepted"
    page.run(commands.ADD_WORKER_AT_ADDRESS)
    add = commands.ADD_WORKER.partition("-d")[0]
    group = {"url": f"ipc://{page.sockets}/group-0", "runtime_type": "vllm", "dp_size": 2}
    page.run(f"{add}-d '{json.dumps(group)}'")
    page.start(commands.ENGINE["vllm"], _22670=page.handshake_port())
    page.start(commands.ENGINE["tokenspeed"], _22670=page.handshake_port("engine-1"))
    page.start(commands.ENGINE["tokenspeed"], _22670=str(page.fixed_port))
    page.start(commands.ENGINE_GROUP["vllm"], _22670=page.handshake_port("group-0"))
    gateway.until(lambda: [one["status"] for one in page.workers()] == ["ready"] * 4, "four workers", 30.0)
    runtimes = {"engine-0": "vllm", "engine-1": "tokenspeed", "tokenspeed-0": "tokenspeed", "group-0": "vllm"}
    verify(page, {f"ipc://{page.sockets}/{name}": runtime for name, runtime in runtimes.items()})


def test_a_label_names_the_model_of_a_gateway_without_one(page: Page) -> None:
    gateway = page.start("smg launch --host 0.0.0.0 --port 30000")
    gateway.until_logged("listening on")
    body = {"url": f"ipc://{page.sockets}/engine-0", "runtime_type": "vllm", "labels": {"model_path": MODEL}}
    page.run(commands.ADD_WORKER.partition("-d")[0] + f"-d '{json.dumps(body)}'")
    page.start(commands.ENGINE["vllm"], _22670=page.handshake_port())
    page.wait_ready(gateway)
    verify(page, {f"ipc://{page.sockets}/engine-0": "vllm"})
