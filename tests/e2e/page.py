"""The reference gateway's page on ZMQ workers, its commands as written, and what is run in the place of its programs.

`smg` is `python -m smg_trio`. The model's repository is on a small hub under the name that the page gives it. Only
ports and the socket directory are others: those that are flags on the page are replaced, the rest stands in SMG_TRIO_*.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smg_trio.testing.demo import DEMO_MODEL
from tests.interop.processes import Process
from tests.ports import lasting_port

ROOT = Path(__file__).resolve().parents[2]
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
SOCKETS = "/tmp/smg-zmq"

SNIPPET = """
python3 - <<'EOF'
path = "/tmp/smg-zmq/engine-0"  # the worker URL without "ipc://"
h = 0xCBF29CE484222325
for b in path.encode():
    h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
print(20000 + h % 10000)
EOF
"""
SERVE = """
smg serve \\
  --backend BACKEND \\
  --connection-mode zmq \\
  --model meta-llama/Llama-3.1-8B-Instruct \\
  --router-model-path meta-llama/Llama-3.1-8B-Instruct \\
  --host 0.0.0.0 \\
  --port 30000
"""
LAUNCH = """
smg launch \\
  --worker-urls ipc:///tmp/smg-zmq/engine-0 \\
  --backend BACKEND \\
  --model-path meta-llama/Llama-3.1-8B-Instruct \\
  --host 0.0.0.0 \\
  --port 30000
"""
LAUNCH_GROUP = """
smg launch \\
  --worker-urls ipc:///tmp/smg-zmq/engine-0 \\
  --backend BACKEND \\
  --model-path meta-llama/Llama-3.1-8B-Instruct \\
  --zmq-engine-count 2
"""
ENGINE = {
    "vllm": """
vllm serve meta-llama/Llama-3.1-8B-Instruct \\
  --headless \\
  --data-parallel-size 1 \\
  --data-parallel-size-local 1 \\
  --data-parallel-address 127.0.0.1 \\
  --data-parallel-rpc-port 22670
""",
    "tokenspeed": """
python -m tokenspeed.cli serve \\
  --headless \\
  --model meta-llama/Llama-3.1-8B-Instruct \\
  --data-parallel-address 127.0.0.1 \\
  --data-parallel-rpc-port 22670 \\
  --zmq-engine-index 0 \\
  --grammar-backend xgrammar \\
  --enable-output-logprobs
""",
}
ENGINE_GROUP = {
    "vllm": """
vllm serve meta-llama/Llama-3.1-8B-Instruct \\
  --headless \\
  --data-parallel-size 2 \\
  --data-parallel-size-local 2 \\
  --data-parallel-address 127.0.0.1 \\
  --data-parallel-rpc-port 22670
""",
    "tokenspeed": """
python -m tokenspeed.cli serve \\
  --headless \\
  --model meta-llama/Llama-3.1-8B-Instruct \\
  --data-parallel-size 2 \\
  --dist-init-addr 127.0.0.1:31233 \\
  --data-parallel-address 127.0.0.1 \\
  --data-parallel-rpc-port 22670 \\
  --zmq-engine-index 0 \\
  --grammar-backend xgrammar \\
  --enable-output-logprobs
""",
}
ADD_WORKER = """
curl -X POST http://localhost:30000/workers \\
  -H "Content-Type: application/json" \\
  -d '{
    "url": "ipc:///tmp/smg-zmq/engine-1",
    "runtime_type": "tokenspeed"
  }'
"""
ADD_WORKER_AT_ADDRESS = """
curl -X POST http://localhost:30000/workers \\
  -H "Content-Type: application/json" \\
  -d '{
    "url": "ipc:///tmp/smg-zmq/tokenspeed-0",
    "runtime_type": "tokenspeed",
    "zmq_handshake_address": "tcp://127.0.0.1:30500"
  }'
"""
READINESS = "curl http://localhost:30000/readiness"
WORKERS = "curl -s http://localhost:30000/workers | jq '.workers[] | {url, connection_mode, runtime_type, status}'"
CHAT = """
curl http://localhost:30000/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "messages": [{"role": "user", "content": "Hello!"}]
  }'
"""
METRICS = """curl -s http://localhost:29000/metrics | grep 'connection_mode="zmq"'"""

# What `vllm` and `python -m tokenspeed.cli` are where no engine is installed. They take the flags of the page's and the
# launcher's commands only.
FAKE_VLLM = """
import argparse, os, sys
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("command", choices=["serve"])
parser.add_argument("model")
parser.add_argument("--headless", action="store_true", required=True)
for name in ("size", "size-local", "rpc-port"):
    parser.add_argument(f"--data-parallel-{name}", type=int, required=True)
parser.add_argument("--data-parallel-address", required=True)
parser.add_argument("--revision")
given = parser.parse_args()
assert given.data_parallel_size == given.data_parallel_size_local
model = f"{given.model}@{given.revision}" if given.revision else given.model
words = ["--handshake", f"tcp://{given.data_parallel_address}:{given.data_parallel_rpc_port}"]
words += ["--ranks", str(given.data_parallel_size), "--model-path", model, "--answer", "Hello yourself!"]
os.execv(sys.executable, [sys.executable, "-m", "smg_trio", "fake-engine", "--step-ms", "1", *words])
"""
FAKE_TOKENSPEED = """
import argparse, os, sys
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("command", choices=["serve"])
parser.add_argument("--headless", action="store_true", required=True)
parser.add_argument("--enable-output-logprobs", action="store_true", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--grammar-backend", choices=["xgrammar"], required=True)
parser.add_argument("--port", type=int)
parser.add_argument("--dist-init-addr")
parser.add_argument("--data-parallel-size", type=int, default=1)
parser.add_argument("--data-parallel-address", default="127.0.0.1")
parser.add_argument("--data-parallel-rpc-port", type=int, default=30500)
parser.add_argument("--zmq-engine-index", type=int, choices=[0], default=0)
given = parser.parse_args()
assert given.data_parallel_size == 1 or given.dist_init_addr
words = ["--handshake", f"tcp://{given.data_parallel_address}:{given.data_parallel_rpc_port}"]
words += ["--protocol", "tokenspeed", "--ranks", str(given.data_parallel_size)]
words += ["--model-path", given.model, "--eos-token-id", "EOS_ID", "--answer", "Hello yourself!"]
os.execv(sys.executable, [sys.executable, "-m", "smg_trio", "fake-engine", "--step-ms", "1", *words])
"""


def install_fake_engines(programs: Path) -> None:
    """Put them where `PATH` and `PYTHONPATH` of a `Page` find them."""
    eos_id = json.loads((DEMO_MODEL / "config.json").read_text())["eos_token_id"]
    tokenspeed = FAKE_TOKENSPEED.replace("EOS_ID", str(eos_id))
    for module, text in (("vllm/entrypoints/cli/main.py", FAKE_VLLM), ("tokenspeed/cli.py", tokenspeed)):
        file = programs / module
        file.parent.mkdir(parents=True)
        file.write_text(text)
    install(programs, "vllm", f"{sys.executable} -m vllm.entrypoints.cli.main")


def install(programs: Path, name: str, command: str) -> None:
    """Make a program of that name, which is a command with further words."""
    script = programs / "bin" / name
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o755)


@dataclass
class Page:
    """The page's commands on this machine: ports, directory and environment that are used in place of its own.

    Attributes:
        programs: a directory with what the commands name.
        sockets: in place of `/tmp/smg-zmq`.
        environment: variables of every process.
    """

    programs: Path
    sockets: Path
    environment: Mapping[str, str]
    port: int = field(default_factory=lasting_port)
    metrics_port: int = field(default_factory=lasting_port)
    fixed_port: int = field(default_factory=lasting_port)
    _stack: ExitStack = field(default_factory=ExitStack)
    _started: int = 0

    def __post_init__(self) -> None:
        for name, command in (("smg", f"{sys.executable} -m smg_trio"), ("python", sys.executable)):
            install(self.programs, name, command)
        install(self.programs, "python3", sys.executable)

    def written_for_here(self, command: str, **replaced: str) -> str:
        """A command of the page with our ports and directory; `replaced`: further words of it, `_22670` for 22670."""
        changes = {SOCKETS: str(self.sockets), "30500": str(self.fixed_port), "30000": str(self.port)}
        changes |= {"29000": str(self.metrics_port), "BACKEND": replaced.pop("backend", "vllm")}
        changes |= {old.removeprefix("_"): new for old, new in replaced.items()}
        for old, new in changes.items():
            command = command.replace(old, new)
        return command

    @property
    def variables(self) -> dict[str, str]:
        """The environment of every command."""
        kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        return kept | {
            "PATH": f"{self.programs / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join((str(self.programs), str(ROOT))),
            "SMG_TRIO_PORT": str(self.port),
            "SMG_TRIO_PROMETHEUS_PORT": str(self.metrics_port),
            "SMG_ZMQ_SOCKET_DIR": str(self.sockets),
            "CUDA_VISIBLE_DEVICES": "0,1",
            **self.environment,
        }

    def run(self, command: str, **replaced: str) -> str:
        """Run a command to its end; what it prints."""
        text = self.written_for_here(command, **replaced)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text], env=self.variables, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, command: str, *, environment: Mapping[str, str] | None = None, **replaced: str) -> Process:
        """Start a command that goes on; it is ended with the page."""
        self._started += 1
        text = self.written_for_here(command, **replaced).strip()
        log = self.programs / f"log-{self._started}"
        variables = self.variables | dict(environment or {})
        process = Process(" ".join(text.split()[:2]), ["bash", "-c", f"exec {text}"], log, variables)
        self._stack.callback(process.kill)
        return process

    def handshake_port(self, worker: str = "engine-0") -> str:
        """What the page's snippet prints."""
        return self.run(SNIPPET.replace("engine-0", worker)).strip()

    def wait_ready(self, process: Process, within_s: float = 30.0) -> None:
        """Wait until the gateway is ready, as the page's probe says."""
        process.until_answers(f"http://127.0.0.1:{self.port}/readiness", within_s=within_s)

    def workers(self) -> list[dict[str, Any]]:
        """What the page's look at the workers prints."""
        decoder, text, found = json.JSONDecoder(), self.run(WORKERS).strip(), []
        while text:
            value, end = decoder.raw_decode(text)
            found.append(value)
            text = text[end:].strip()
        return found

    def close(self) -> None:
        """Kill what was started."""
        self._stack.close()


@contextmanager
def opened_page(programs: Path, sockets: Path, environment: Mapping[str, str]) -> Iterator[Page]:
    """A page whose processes are killed at the end."""
    page = Page(programs, sockets, environment)
    try:
        yield page
    finally:
        page.close()
