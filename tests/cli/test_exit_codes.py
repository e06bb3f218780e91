"""Exit codes: what scripts, systemd and Kubernetes decide by. Each documented code is seen to come from a process
(`serve`'s in `launcher/test_serve.py`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from smg_trio.cli.main import main
from smg_trio.core.errors import ConfigError, EngineDead
from smg_trio.settings.help_text import EXIT_CODES
from smg_trio.testing.demo import DEMO_MODEL

PATIENCE_S = 30
LAUNCH = ("launch", "--host", "127.0.0.1", "--port", "0", "--prometheus-host", "127.0.0.1", "--prometheus-port", "0")


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command to its end: exit code and stderr."""

    def run_one(*words: str) -> tuple[int, str]:
        try:
            code: Any = main(words)
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr().err

    return run_one


def test_a_process_ends_with_what_main_returns() -> None:
    command = [sys.executable, "-m", "smg_trio", *LAUNCH, "--queue-size", "-1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def workers(*urls: str) -> tuple[str, ...]:
    return (*LAUNCH, "--backend", "vllm", "--model-path", str(DEMO_MODEL), "--worker-urls", *urls)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("bogus",), "bogus"),
        (("launch", "--bogus"), "--bogus"),
        ((*LAUNCH, "--queue-size", "-1"), "--queue-size"),
        ((*LAUNCH, "--config", "/nowhere.toml"), "/nowhere.toml"),
        (workers("grpc://there"), "--worker-urls"),
        (workers("ipc://" + "x" * 120), "over the system's limit of 107"),
        (workers("ipc:///tmp/smg-a", "ipc:///tmp/smg-a"), "named twice"),
        ((*workers("ipc:///tmp/smg-a"), "--zmq-handshake-address", "ipc://x"), "--zmq-handshake-address"),
        ((*LAUNCH, "--model-path", "/nowhere"), "--model-path"),
        ((*LAUNCH, "--api-key-file", "/nowhere"), "--api-key-file"),
        (("handshake-port", "/tmp/x"), "must be ipc://<path>"),
        (("serve",), "--model"),
        (("fake-engine", "--handshake", "tcp://127.0.0.1:1", "--answer", "x"), "--model-path"),
        (("fake-engine", "--handshake", "tcp://127.0.0.1:1", "--model-path", "/nowhere"), "/nowhere"),
        (("completion", "csh"), "csh"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_wrong_usage_and_settings_end_with_2_and_one_line(run: Run, words: tuple[str, ...], named: str) -> None:
    code, error = run(*words)
    assert code == 2
    assert named in error
    assert "Traceback" not in error


def test_the_page_of_exit_codes_is_true() -> None:
    page = (Path(__file__).parents[2] / "docs" / "exit-codes.md").read_text()
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in page


def test_workers_of_one_handshake_port_are_refused_before_anything_is_bound(run: Run) -> None:
    # Two paths whose hashes meet, found by trying; the derivation has 10,000 ports.
    from smg_trio.wire.addresses import handshake_port

    first = handshake_port("/tmp/smg-0")
    other = next(f"/tmp/smg-{n}" for n in range(1, 200_000) if handshake_port(f"/tmp/smg-{n}") == first)
    code, error = run(*workers("ipc:///tmp/smg-0", f"ipc://{other}"))
    assert code == 2
    assert "already claimed by worker ipc:///tmp/smg-0" in error
    assert "Binding" not in error


def test_the_file_of_a_wrong_worker_is_named(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "smg.toml"
    file.write_text(f'worker_urls = ["ipc://{"x" * 120}"]\nmodel_path = "m"\n')
    code, error = run("config", "check", str(file))
    assert code == 2
    assert f"--worker-urls (from {file}: worker_urls)" in error


def test_a_fake_engine_that_dies_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(parsed: Any) -> int:
        return 1

    monkeypatch.setattr("smg_trio.testing.fake_engine_cli.main", die)
    assert main(["fake-engine", "--handshake", "tcp://127.0.0.1:1"]) == 1


def test_what_cannot_be_done_ends_with_1(run: Run) -> None:
    code, error = run("chat", "--url", "http://127.0.0.1:1")
    assert (code, "cannot talk to http://127.0.0.1:1" in error) == (1, True)


async def ended(words: tuple[str, ...], *signals: int, ready: bytes = b"listening on") -> tuple[int, bytes]:
    """Start a command, wait until it is ready, send signals: exit code and stderr."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "smg_trio", *words]
    process = await trio.lowlevel.open_process(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    said = b""
    assert process.stderr is not None
    try:
        with trio.fail_after(PATIENCE_S):
            while ready not in said:
                said += await process.stderr.receive_some()
            for number in signals:
                process.send_signal(number)
            while chunk := await process.stderr.receive_some():
                said += chunk
            return await process.wait(), said
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_gateway_that_drained_ends_with_0(number: int) -> None:
    code, said = await ended(LAUNCH, number, ready=b"metrics on")
    assert code == 0, said.decode()


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ConfigError("--x", "is wrong."), 2),
        (EngineDead("it died"), 1),
        (KeyboardInterrupt(), 130),
        (ExceptionGroup("nursery", [ExceptionGroup("inner", [ConfigError("--x", "is wrong.")])]), 2),
        (BaseExceptionGroup("nursery", [KeyboardInterrupt(), EngineDead("it died")]), 130),
    ],
    ids=lambda value: type(value).__name__,
)
def test_faults_have_their_code_also_within_groups(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(parsed: Any) -> int:
        raise raised

    monkeypatch.setattr("smg_trio.cli.main._handshake_port", fail)
    assert main(["handshake-port", "x"]) == code
    assert code in EXIT_CODES
    assert ("smg-trio: error: " in capsys.readouterr().err) is (code != 130)


def test_what_nobody_raised_on_purpose_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(parsed: Any) -> int:
        raise ExceptionGroup("nursery", [ConfigError("--x", "is wrong."), ValueError("a fault in the code")])

    monkeypatch.setattr("smg_trio.cli.main._handshake_port", fail)
    with pytest.raises(ExceptionGroup):
        main(["handshake-port", "x"])
