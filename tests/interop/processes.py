"""Real processes under test: a headless vLLM engine, vLLM's own API server and the gateway.

Each runs in a process group of its own and writes to a log file, whose tail is shown when it dies too early.
Waiting for another process means looking again and again, but a look is woken by the process's death.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx

from tests.interop.cases import MODEL

LOOK_EVERY_S = 0.05
START_WITHIN_S = 240.0
STOP_WITHIN_S = 20.0

# Engines hold gigabytes: they must not outlive a test run that is killed.
ENDS_WITH_US = ("setpriv", "--pdeathsig", "TERM") if shutil.which("setpriv") else ()

QUIET_CPU = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TORCHDYNAMO_DISABLE": "1",
    # One thread, wherever there is room: two engines bound to the same core would wait for each other.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# A CPU engine starts a worker process after its HELLO, which imports torch anew: 6 s on an idle machine. These two
# keep the worker in the engine's own process.
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
ONE_PROCESS_FLAGS = ("--distributed-executor-backend", "uni")
MODEL_FLAGS = ("--served-model-name", MODEL, "--max-model-len", "2048", "--enforce-eager", "--seed", "0")
# The model's own template prints the content of system messages although it loops over that of others. vLLM then hands
# it a list and prints that in Python's notation, where the gateway prints the text.
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
SAYS_HELLO = "Waiting for init message from front-end."
GOT_INIT = "Received init message"
AT_WORK = "EngineCore waiting for work."


class Process:
    """A child process with a log.

    Args:
        name: for messages and the log's file name.
        command: what to run.
        log: file that takes its output; appended to.
        env: variables beside our own environment's.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._log = log
        self._begin = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                [*ENDS_WITH_US, *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id, and id of the group."""
        return self._child.pid

    def logged(self) -> str:
        """Everything this process and its children wrote so far."""
        with self._log.open("rb") as log:
            log.seek(self._begin)
            return log.read().decode("utf-8", errors="replace")

    def until(self, seen: Callable[[], bool], what: str, within_s: float = START_WITHIN_S) -> float:
        """Wait until `seen()`; returns the monotonic time of that.

        Raises:
            AssertionError: the process ended, or it took longer than `within_s`; with the tail of its log.
        """
        deadline = time.monotonic() + within_s
        while not seen():
            try:
                code = self._child.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                code = None
            late = time.monotonic() > deadline
            if code is not None or late:
                why = f"took longer than {within_s} s" if code is None else f"ended with {code}"
                raise AssertionError(f"{self.name} {why}, waiting for: {what}\n{self.logged()[-4000:]}")
        return time.monotonic()

    def until_logged(self, words: str, within_s: float = START_WITHIN_S) -> float:
        """Wait for words in the log; returns the monotonic time of seeing them."""
        return self.until(lambda: words in self.logged(), f"{words!r} in its log", within_s)

    def until_answers(self, url: str, status: int = 200, within_s: float = START_WITHIN_S) -> float:
        """Wait until a GET of `url` has this status; returns the monotonic time of that."""
        return self.until(lambda: status_of(url) == status, f"{status} from {url}", within_s)

    def ended(self, within_s: float) -> int:
        """Wait for its end; the exit code."""
        return self._child.wait(within_s)

    def stop(self) -> int:
        """Ask it to end (SIGTERM), kill what is left of its group after a while; the exit code."""
        self._child.terminate()
        try:
            return self._child.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.wait()

    def members(self) -> dict[int, str]:
        """Processes of its group: process id -> title."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _group_of(entry) == self.pid:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                found[int(entry.name)] = words[0].decode("utf-8", errors="replace")
        return found


def _group_of(entry: Path) -> int | None:
    try:
        # The command's name may hold blanks and brackets; the fields after it do not.
        return int((entry / "stat").read_text().rpartition(")")[2].split()[2])
    except (OSError, ValueError):
        return None


def status_of(url: str) -> int | None:
    """Status of a GET, None where nobody answers."""
    try:
        return _looker.get(url).status_code
    except httpx.TransportError:
        return None


# One client for all looks: making one costs more than a look.
_looker = httpx.Client(timeout=5.0, verify=False, trust_env=False)


class Engine:
    """A real headless vLLM engine that dials in at a handshake port; it can be killed and started again.

    Args:
        python: one in which vLLM runs.
        model: directory of the model.
        handshake_port: where it dials in.
        log: file that takes the output of all its processes.
        ranks: data-parallel ranks, each an EngineCore of its own below one launcher.
        packages: a directory of packages to find before its own.
        flags: more of its command line.
    """

    def __init__(
        self,
        python: str,
        model: Path,
        handshake_port: int,
        log: Path,
        ranks: int = 1,
        *,
        packages: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self._arguments = (python, model, handshake_port, log, ranks)
        self._packages = packages
        self._flags = flags
        self.process = self._start()

    def _start(self) -> Process:
        python, model, port, log, ranks = self._arguments
        command = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--headless", *MODEL_FLAGS]
        command += ["--data-parallel-size", str(ranks), "--data-parallel-size-local", str(ranks)]
        command += ["--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(port)]
        # The handshake is logged at this level only.
        env = QUIET_CPU | ONE_PROCESS | {"VLLM_LOGGING_LEVEL": "DEBUG"}
        if self._packages is not None:
            env["PYTHONPATH"] = str(self._packages)
        return Process("the headless engine", [*command, *ONE_PROCESS_FLAGS, *self._flags], log, env)

    def core_pid(self) -> int:
        """Process id of the EngineCore, the process that talks to the gateway."""
        [pid] = [pid for pid, title in self.process.members().items() if title.startswith("VLLM::EngineCore")]
        return pid

    def kill_core(self) -> None:
        """SIGKILL the EngineCore; its launcher notices by itself and ends."""
        os.kill(self.core_pid(), signal.SIGKILL)

    def restart(self) -> None:
        """Start it anew, after the rest of the old one is gone."""
        self.process.kill()
        self.process = self._start()


def start_api_server(
    python: str,
    model: Path,
    port: int,
    log: Path,
    *,
    chat_template: Path | None = CHAT_TEMPLATE,
    packages: Path | None = None,
    flags: Sequence[str] = (),
) -> Process:
    """Start vLLM's own API server with an engine of its own; see `Engine` for `packages` and `flags`."""
    command = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(model), *MODEL_FLAGS]
    command += ["--enable-prompt-tokens-details", "--host", "127.0.0.1", "--port", str(port), *flags]
    if chat_template is not None:
        command += ["--chat-template", str(chat_template)]
    env = QUIET_CPU if packages is None else QUIET_CPU | {"PYTHONPATH": str(packages)}
    return Process("vLLM's own API server", command, log, env)


def start_gateway(
    model: Path,
    url: str,
    port: int,
    metrics_port: int,
    log: Path,
    *,
    engine_count: int = 1,
    backend: str = "vllm",
    chat_template: Path | None = CHAT_TEMPLATE,
) -> Process:
    """Start the gateway with one worker of that many engines; `SMG_TRIO_INTEROP_PROCESSES` processes of it."""
    command = [sys.executable, "-m", "smg_trio", "launch", "--worker-urls", url, "--backend", backend]
    command += ["--model-path", str(model), "--served-model-name", MODEL]
    if chat_template is not None:
        command += ["--chat-template", str(chat_template)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    command += ["--zmq-engine-count", str(engine_count)]
    command += ["--processes", os.environ.get("SMG_TRIO_INTEROP_PROCESSES", "1")]
    return Process("the gateway", command, log)


def start_tokenspeed_peer(python: str, package: Path, script: Path, port: int, log: Path, *flags: str) -> Process:
    """Start TokenSpeed's own wire modules with toy tokens in the place of its scheduler, which needs a GPU.

    Args:
        python: one with torch and pyzmq.
        package: the directory that holds the package `tokenspeed`.
        script: what drives the modules; the stand-ins for GPU packages lie beside it.
        port: handshake port of the gateway.
        log: file that takes its output.
        flags: of the script.
    """
    paths = os.pathsep.join((str(package), str(script.parent)))
    command = [python, "-u", "-B", str(script), f"tcp://127.0.0.1:{port}", *flags]
    return Process("the TokenSpeed peer", command, log, {"PYTHONPATH": paths})
