"""``python -m smg_trio serve`` as a user runs it, with a package that poses as vLLM and runs the fake engine."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from smg_trio.testing.demo import DEMO_MODEL
from tests.stand_in_vllm import write_stand_in

ROOT = Path(__file__).parents[2]
WITHIN_S = 30.0


class Serve:
    """A running ``serve``: what it says is kept, and can be waited for."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.sockets = directory / "s"
        write_stand_in(directory)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)]),
            "SMG_ZMQ_SOCKET_DIR": str(self.sockets),
            "CUDA_VISIBLE_DEVICES": "4,5,6",
        }
        command = [sys.executable, "-m", "smg_trio", "serve", "--connection-mode", "zmq", "--backend", "vllm"]
        command += ["--model", str(DEMO_MODEL), "--port", "0", "--router-prometheus-port", "0", *words]
        self.process = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True, cwd=directory, start_new_session=True
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                with self._news:
                    self.lines.append(line.rstrip())
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    @property
    def log(self) -> str:
        """Everything said so far."""
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, times: int = 1) -> list[str]:
        """Wait until so many lines match; the first group of each."""

        def found() -> list[str]:
            return [match[1] for line in self.lines if (match := re.search(pattern, line))]

        with self._news:
            reached = self._news.wait_for(lambda: len(found()) >= times or self._ended, WITHIN_S)
        assert reached and len(found()) >= times, f"{pattern!r} not {times} times in:\n{self.log}"  # noqa: PT018
        return found()

    def url(self) -> str:
        """Where it listens."""
        [port] = self.wait_for(r"listening on 127.0.0.1:(\d+)")
        return f"http://127.0.0.1:{port}"

    def engine_pids(self) -> list[int]:
        """Process ids of all engines started so far, in that order."""
        return [int(pid) for pid in re.findall(r"as engine-\d+ \(pid (\d+)", self.log)]

    def wait_ready(self, times: int) -> None:
        """Wait until engines have become ready so many times."""
        self.wait_for(r"launcher: (engine-\d+): ready", times)

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Wait for its end; the exit code."""
        code = self.process.wait(WITHIN_S)
        self._reader.join(WITHIN_S)
        return code

    def close(self) -> None:
        """Kill whatever is left."""
        for pid in [self.process.pid, *self.engine_pids()]:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        self._reader.join(WITHIN_S)


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def started() -> Iterator[list[Serve]]:
    serves: list[Serve] = []
    yield serves
    for serve in serves:
        serve.close()


def ask(url: str) -> str:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Who?"}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=WITHIN_S, trust_env=False)
    assert answer.status_code == 200, answer.text
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_nothing_left(serve: Serve) -> None:
    assert [pid for pid in serve.engine_pids() if alive(pid)] == []
    assert list(serve.sockets.iterdir()) == []


def test_two_engines_serve_and_one_that_dies_is_started_again(directory: Path, started: list[Serve]) -> None:
    serve = Serve(
        directory, "--data-parallel-size", "2", "--served-model-name", "demo", "--router-policy", "round_robin"
    )
    started.append(serve)
    serve.wait_ready(2)
    url = serve.url()
    assert {ask(url) for _ in range(4)} == {"I am on 4.", "I am on 5."}
    first, second = serve.engine_pids()

    os.kill(first, signal.SIGKILL)
    [told] = serve.wait_for(r"(engine-\d) was killed by SIGKILL; starting it again in 1 s")
    serve.wait_ready(3)
    assert {ask(url) for _ in range(4)} == {"I am on 4.", "I am on 5."}
    assert len(serve.engine_pids()) == 3
    assert f"{told}: ready" in serve.lines[-1] or alive(second)

    assert serve.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert "gateway ended" in serve.log.partition("ending 2 engine(s)")[0]
    assert_nothing_left(serve)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_ends_a_group_behind_one_worker(processes: str, directory: Path, started: list[Serve]) -> None:
    words = ["--zmq-engine-count", "2", "--served-model-name", "demo", "--processes", processes]
    serve = Serve(directory, *words)
    started.append(serve)
    serve.wait_ready(1)
    assert ask(serve.url()) == "I am on 4,5."
    os.killpg(serve.process.pid, signal.SIGINT)  # as a terminal does: every process of the gateway gets it
    assert serve.ended() == 128 + signal.SIGINT
    assert_nothing_left(serve)


def test_a_second_signal_does_not_wait_for_an_engine_that_will_not_go(directory: Path, started: list[Serve]) -> None:
    serve = Serve(directory, "--stubborn")
    started.append(serve)
    serve.wait_ready(1)
    serve.process.send_signal(signal.SIGTERM)
    serve.wait_for(r"(ending) 1 engine")
    assert serve.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert_nothing_left(serve)


def test_an_engine_that_cannot_start_ends_serve_with_its_words(directory: Path, started: list[Serve]) -> None:
    serve = Serve(directory, "--data-parallel-size", "2", "--fail", "the weights are missing")
    started.append(serve)
    assert serve.ended() == 1
    assert "exited with code 1 before it was ready" in serve.log
    assert "    RuntimeError: the weights are missing" in serve.log.rpartition("smg-trio: error: ")[2]
    assert_nothing_left(serve)


def test_options_the_engine_does_not_know_end_serve_at_once(directory: Path, started: list[Serve]) -> None:
    serve = Serve(directory, "--no-such-engine-option")
    started.append(serve)
    assert serve.ended() == 1
    assert len(serve.engine_pids()) == 1
    assert "unrecognized arguments: --no-such-engine-option" in serve.log.rpartition("smg-trio: error: ")[2]
    assert_nothing_left(serve)


def test_a_gateway_that_cannot_start_starts_no_engine(directory: Path, started: list[Serve]) -> None:
    serve = Serve(directory, "--router-model-path", str(directory / "absent"))
    started.append(serve)
    assert serve.ended() == 2
    assert "is neither a directory nor a model's name" in serve.lines[-1]
    assert serve.engine_pids() == []


def test_engines_do_not_outlive_a_serve_that_was_killed(directory: Path, started: list[Serve]) -> None:
    serve = Serve(directory)
    started.append(serve)
    serve.wait_ready(1)
    [pid] = serve.engine_pids()
    descriptor = os.pidfd_open(pid)
    try:
        serve.process.kill()
        serve.process.wait()
        # A pidfd becomes readable when its process ends.

        assert select.select([descriptor], [], [], WITHIN_S)[0] == [descriptor]
    finally:
        os.close(descriptor)

    again = Serve(directory)
    started.append(again)
    again.wait_ready(1)
    assert "may still be alive" in again.log
    assert again.end(signal.SIGTERM) == 128 + signal.SIGTERM
