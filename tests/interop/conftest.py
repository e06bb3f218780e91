"""The three servers of the interop tests, started once: gateway with a real engine, and vLLM's own API server.

Set `SMG_TRIO_INTEROP_PYTHON` to a python in which vLLM runs on the CPU (`scripts/interop_env.py` makes one);
without it everything here is skipped. Together they take some 5 GB of memory and half a minute to start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.conftest import shared_path
from tests.directories import mark_directory
from tests.interop.processes import Engine, Process, start_api_server, start_gateway, status_of
from tests.ports import lasting_port

PYTHON = "SMG_TRIO_INTEROP_PYTHON"
VISION = "SMG_TRIO_INTEROP_VISION"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this directory needs real engines, and time."""
    mark_directory(items, __file__, "interop", timeout_s=400)


@dataclass(frozen=True, slots=True)
class Gateway:
    """Our side: the gateway, the engine behind it, and where they are reached."""

    process: Process
    engine: Engine
    url: str
    metrics_url: str
    client: httpx.Client

    def ready(self) -> bool:
        """Whether it would serve."""
        return self.client.get("/readiness").status_code == 200

    def metric(self, name: str) -> float:
        """Sum of a metric over its label sets."""
        lines = self.client.get(self.metrics_url).text.splitlines()
        values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " "))]
        assert values, f"no metric {name}"
        return sum(values)


@pytest.fixture(scope="session")
def vllm_python() -> str:
    python = os.environ.get(PYTHON)
    if not python:
        pytest.skip(f"{PYTHON} names no python with vLLM (scripts/interop_env.py makes one)")
    return python


@pytest.fixture(scope="session")
def vision_packages() -> Path:
    """What an engine with pictures needs besides its environment."""
    packages = os.environ.get(VISION)
    if not packages:
        pytest.skip(f"{VISION} names no directory with torchvision (scripts/interop_env.py --vision makes one)")
    return Path(packages)


@pytest.fixture(scope="session")
def model() -> Path:
    return shared_path("data", "tiny-llama")


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interop-logs")


@pytest.fixture(scope="session")
def started_reference(vllm_python: str, model: Path, logs: Path) -> Iterator[tuple[Process, str]]:
    """vLLM's own API server, perhaps still starting, so that it starts beside the engine."""
    port = lasting_port()
    process = start_api_server(vllm_python, model, port, logs / "api_server.log")
    yield process, f"http://127.0.0.1:{port}"
    process.stop()


@pytest.fixture(scope="session")
def started_gateway(vllm_python: str, model: Path, logs: Path) -> Iterator[Gateway]:
    """The gateway and its engine, perhaps still starting."""
    # Paths of ipc sockets are limited to some hundred bytes: pytest's own directories are too deep.
    with tempfile.TemporaryDirectory(prefix="smg-") as sockets:
        url = f"ipc://{sockets}/engine-0"
        handshake_port = _handshake_port(url)
        port, metrics_port = lasting_port(), lasting_port()
        process = start_gateway(model, url, port, metrics_port, logs / "gateway.log")
        engine = Engine(vllm_python, model, handshake_port, logs / "engine.log")
        base = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=base, timeout=60.0) as client:
            yield Gateway(process, engine, base, f"http://127.0.0.1:{metrics_port}/metrics", client)
        code = process.stop()
        engine.process.stop()
        assert code == 0, "the gateway did not end cleanly on SIGTERM"


@pytest.fixture(scope="session")
def gateway(started_gateway: Gateway, started_reference: object) -> Gateway:
    """The gateway, ready."""
    probe = started_gateway.url + "/readiness"
    started_gateway.process.until(lambda: status_of(probe) is not None, "an answer")
    started_gateway.engine.process.until_answers(probe)
    return started_gateway


@pytest.fixture(scope="session")
def reference(started_reference: tuple[Process, str], started_gateway: Gateway) -> Iterator[httpx.Client]:
    """A client of vLLM's own API server, ready."""
    process, url = started_reference
    process.until_answers(url + "/health")
    with httpx.Client(base_url=url, timeout=60.0) as client:
        yield client


def _handshake_port(url: str) -> int:
    """The port that engines of this worker dial, by the word of the product's own command."""
    command = [sys.executable, "-m", "smg_trio", "handshake-port", url]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
