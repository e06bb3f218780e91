"""The gateways under test, each with a fake engine of its own: start, readiness, stop."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import processes
from smg_trio.wire.addresses import parse_worker_url

ROOT = Path(__file__).resolve().parents[2]
_OURS_ENV = {"PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
# What keeps vLLM offline and quiet; the cache is never used, the engine is elsewhere.
_VLLM_ENV = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}

_AWAITS_BY_TCP = ("vllm", "vllm-rs")


@dataclass(frozen=True, slots=True)
class Setting:
    """What all peers share: where the model lies, scratch space, and the cores of gateways, and of engines and client.

    `processes`: of this project's gateway.
    """

    model: Path
    scratch: Path
    gateway_cores: set[int]
    load_cores: set[int]
    processes: int = 1


@dataclass(slots=True)
class Peer:
    """A running gateway and its engine."""

    name: str
    port: int
    gateway: subprocess.Popen[bytes]
    engine: subprocess.Popen[bytes]
    log: Path
    model: str = ""

    def command_engine(self, **command: Any) -> dict[str, Any]:
        """Steer the engine; see `bench.engine`."""
        assert self.engine.stdin is not None
        assert self.engine.stdout is not None
        self.engine.stdin.write(json.dumps(command).encode() + b"\n")
        self.engine.stdin.flush()
        reply: dict[str, Any] = json.loads(self.engine.stdout.readline())
        return reply

    def wait_ready(self, timeout_s: float) -> None:
        """Until it answers a chat. Raises RuntimeError if it ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException, LookupError, ValueError):
                self.model = self.model or self._get_model()
                if self._answers():
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} is not ready after {timeout_s:g} s")
            for process in (self.gateway, self.engine):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(0.1)
                    raise RuntimeError(f"{self.name}: a process ended with {code}: {self.log.read_text()[-2000:]}")

    def _get_model(self) -> str:
        return str(self._ask("GET", "/v1/models")["data"][0]["id"])

    def _answers(self) -> bool:
        message = {"role": "user", "content": "hello"}
        body = {"model": self.model, "messages": [message], "max_tokens": 1, "seed": 0}
        return bool(self._ask("POST", "/v1/chat/completions", body)["choices"])

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with contextlib.closing(connection):
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer


Command = Callable[[Setting, int, int, str], list[str]]
"""(setting, HTTP port, metrics port, worker URL or handshake address) -> command line."""


def ours(setting: Setting, port: int, metrics: int, url: str) -> list[str]:
    """smg-trio's command line."""
    arguments = [*_gateway_arguments(setting, port, metrics, url), "--processes", str(setting.processes)]
    return [sys.executable, "-m", "smg_trio", *arguments]


def smg(executable: str) -> Command:
    """SMG's command line."""

    def command(setting: Setting, port: int, metrics: int, url: str) -> list[str]:
        return [executable, *_gateway_arguments(setting, port, metrics, url)]

    return command


def _gateway_arguments(setting: Setting, port: int, metrics: int, url: str) -> list[str]:
    arguments = ["launch", "--worker-urls", url, "--backend", "vllm", "--model-path", str(setting.model)]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warn", "--tool-call-parser", "qwen"]
    return [*arguments, "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]


def vllm(python: str) -> Command:
    """The command line of vLLM's API server with no engine of its own; `url` is where it awaits one."""

    def command(setting: Setting, port: int, metrics: int, url: str) -> list[str]:  # noqa: ARG001 - see `Command`
        arguments = [*_vllm_arguments(port, url), "--enable-auto-tool-choice"]
        arguments += ["--disable-uvicorn-access-log", "--uvicorn-log-level", "warning"]
        return [python, "-m", "vllm.entrypoints.cli.main", "serve", str(setting.model), *arguments]

    return command


def vllm_rs(executable: str) -> Command:
    """The command line of vLLM's Rust front end (the file ``vllm/vllm-rs`` of its wheel), as `vllm`."""

    def command(setting: Setting, port: int, metrics: int, url: str) -> list[str]:  # noqa: ARG001 - see `Command`
        return [executable, "serve", str(setting.model), *_vllm_arguments(port, url)]

    return command


def _vllm_arguments(port: int, url: str) -> list[str]:
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--data-parallel-size", "1"]
    arguments += ["--data-parallel-size-local", "0", "--data-parallel-address", "127.0.0.1"]
    return [*arguments, "--data-parallel-rpc-port", url.rpartition(":")[2], "--tool-call-parser", "hermes"]


@contextlib.contextmanager
def running(setting: Setting, commands: dict[str, Command]) -> Iterator[list[Peer]]:
    """All peers, started together, idle until loaded; their output is in the scratch directory."""
    peers: list[Peer] = []
    try:
        for name, command in commands.items():
            peers.append(_start(setting, name, command))
        for peer in peers:
            peer.wait_ready(240)
        yield peers
    finally:
        processes.stop([process for peer in peers for process in (peer.gateway, peer.engine)])


def _start(setting: Setting, name: str, command: Command) -> Peer:
    port, metrics, handshake_port = _free_ports(3)
    if name in _AWAITS_BY_TCP:
        url = handshake = f"tcp://127.0.0.1:{handshake_port}"
    else:
        url = f"ipc://{setting.scratch}/{name}"
        handshake = parse_worker_url(url).handshake
    env = _VLLM_ENV if name in _AWAITS_BY_TCP else _OURS_ENV if name == "smg-trio" else {}
    log_file = setting.scratch / f"{name}.log"
    with log_file.open("wb") as log:
        gateway = processes.start(command(setting, port, metrics, url), cores=setting.gateway_cores, env=env, log=log)
        engine_command = [sys.executable, "-m", "bench.engine", "--handshake", handshake]
        engine = processes.start(
            [*engine_command, "--model-path", str(setting.model)],
            cores=setting.load_cores,
            env=_OURS_ENV,
            log=log,
            pipes=True,
        )
    return Peer(name, port, gateway, engine, log_file)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in socks]
