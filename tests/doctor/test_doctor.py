"""The doctor beside real processes, sockets and files."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from smg_trio.cli.main import main
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.wire.addresses import parse_worker_url
from tests.ports import lasting_port

pytestmark = pytest.mark.e2e
PATIENCE_S = 30
Told = dict[str, Any]
Doctor = Callable[..., tuple[int, list[Told]]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Run it: exit code and findings."""

    def run(*words: str) -> tuple[int, list[Told]]:
        code = main(["doctor", *words, "--json"])
        report = json.loads(capsys.readouterr().out)
        assert report["ok"] is (code == 0)
        return code, report["findings"]

    return run


def launch_words(directory: Path, *more: str, model: Path = DEMO_MODEL) -> tuple[str, ...]:
    return (
        "--worker-urls", f"ipc://{directory}/w0", "--backend", "vllm", "--model-path", str(model), "--host",
        "127.0.0.1", "--port", "0", "--prometheus-host", "127.0.0.1", "--prometheus-port", "0", *more,
    )  # fmt: skip


def of(findings: list[Told], check: str, status: str = "problem") -> list[Told]:
    return [one for one in findings if one["check"] == check and one["status"] == status]


@contextmanager
def running(*words: str, until: bytes = b"") -> Iterator[subprocess.Popen[bytes]]:
    """A command of ours that has said `until` in its log, or is just there."""
    command = [sys.executable, "-m", "smg_trio", *words]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)
    try:
        assert process.stderr is not None
        assert not until or any(until in line for line in process.stderr), until
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stderr is not None
        process.stderr.close()


def test_a_launch_before_it_while_it_runs_and_with_its_engine(doctor: Doctor, tmp_path: Path) -> None:
    directory = tmp_path / "s"
    dial = parse_worker_url(f"ipc://{directory}/w0").handshake
    words = launch_words(directory, "--port", str(lasting_port()))
    code, findings = doctor(*words)
    assert code == 0, findings
    assert not directory.exists(), "nothing is made"
    (note,) = of(findings, "engines", "note")
    assert f"--data-parallel-rpc-port {dial.rpartition(':')[2]}" in note["remedy"]

    with running("launch", *words, until=b"metrics on") as gateway:
        code, findings = doctor(*words)
        assert code == 1
        assert [one["check"] for one in findings if one["status"] == "problem"] == ["engines", "gateway"]
        assert f"process {gateway.pid} " in of(findings, "sockets", "note")[0]["text"]
        assert {one["status"] for one in findings if one["check"] == "ports"} == {"ok"}, findings

        with running("fake-engine", "--handshake", dial, until=b"connected"):
            code, findings = doctor(*words)
            assert code == 0, findings
            assert of(findings, "engines", "ok")[0]["text"] == "1 connected"
            assert of(findings, "gateway", "ok")[0]["text"] == "ready, 1 of 1 workers"

        # Another launch on the same port is another matter.
        port = words[words.index("--port", words.index("--port") + 1) + 1]
        code, findings = doctor(*launch_words(tmp_path / "other", "--port", port))
        assert code == 1
        assert f"process {gateway.pid} (" in of(findings, "ports")[0]["text"]


def test_an_engine_that_dials_a_wrong_port_is_found(doctor: Doctor, tmp_path: Path) -> None:
    dial = f"tcp://127.0.0.1:{lasting_port()}"
    with running("fake-engine", "--handshake", dial) as engine:
        code, findings = doctor(*launch_words(tmp_path))
        assert code == 0, "it may be of another gateway"
        assert any(str(engine.pid) in one["subject"] for one in of(findings, "engines", "warning"))


def test_a_port_in_use_is_named_with_its_owner(doctor: Doctor, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = launch_words(tmp_path, "--prometheus-port", str(taken.getsockname()[1]))
        code, findings = doctor(*words)
    assert code == 1
    assert f"process {os.getpid()} " in of(findings, "ports")[0]["text"]


Spoil = Callable[[Path], tuple[str, ...]]


def shared_directory(at: Path) -> tuple[str, ...]:
    at.chmod(0o1777)
    return launch_words(at)


def file_instead_of_socket(at: Path) -> tuple[str, ...]:
    (at / "w0-out.sock").write_text("")
    return launch_words(at)


def no_tokenizer(at: Path) -> tuple[str, ...]:
    model = shutil.copytree(DEMO_MODEL, at / "m")
    (model / "tokenizer.json").unlink()
    return launch_words(at, model=model)


def broken_template(at: Path) -> tuple[str, ...]:
    (at / "t.jinja").write_text("{% if %}")
    return launch_words(at, "--chat-template", str(at / "t.jinja"))


def log_below_a_file(at: Path) -> tuple[str, ...]:
    (at / "file").write_text("")
    return launch_words(at, "--log-dir", str(at / "file" / "logs"))


def python_without_engine(at: Path) -> tuple[str, ...]:
    return launch_words(at, "--engine-python", sys.executable, "--backend", "tokenspeed")


@pytest.mark.parametrize(
    ("spoil", "check", "named"),
    [
        (shared_directory, "sockets", "shared with other users"),
        (file_instead_of_socket, "sockets", "is not a socket"),
        (no_tokenizer, "model", "tokenizer"),
        (broken_template, "model", "template"),
        (log_below_a_file, "files", "may not write"),
        (python_without_engine, "versions", "tokenspeed is not installed"),
        (lambda at: launch_words(at, model=at / "none"), "model", "neither a directory nor"),
        (lambda at: launch_words(at, "--api-key-file", "/none"), "security", "/none"),
        (lambda at: launch_words(at, "--host", "203.0.113.7"), "ports", "cannot be listened on"),
        (lambda at: launch_words(at, "--engine-python", "/none"), "versions", "cannot be run"),
        (lambda at: launch_words(at, "--engine-python", "/bin/true"), "versions", "not a Python"),
        (lambda at: launch_words(at, "--history-backend", f"sqlite:{at}/no/h.db"), "files", "may not write"),
        (lambda at: launch_words(at, "--config", "/none.toml"), "settings", "/none.toml"),
        (lambda at: launch_words(at, "--queue-size", "-1"), "settings", "-1"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value if isinstance(value, str) else "",
)
def test_what_would_keep_a_launch_from_starting(
    doctor: Doctor, spoil: Spoil, check: str, named: str, tmp_path: Path
) -> None:
    code, findings = doctor(*spoil(tmp_path))
    assert code == 1
    (problem,) = [one for one in findings if one["status"] == "problem"]
    assert (problem["check"], named in problem["subject"] + problem["text"]) == (check, True), problem
    assert problem["remedy"], problem


def test_all_problems_of_a_settings_file_are_named(doctor: Doctor, tmp_path: Path) -> None:
    file = tmp_path / "smg.toml"
    file.write_text('port = "x"\nquue_size = 1\n')
    code, findings = doctor("--config", str(file))
    assert (code, len(of(findings, "settings"))) == (1, 2)


def test_models_on_the_hub_are_looked_for_on_this_disk_only(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    words = launch_words(tmp_path, model=Path("org/name"))
    code, findings = doctor(*words)
    assert (code, of(findings, "model", "note")[0]["remedy"]) == (0, "To have them before: hf download org/name")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    code, findings = doctor(*words)
    assert (code, "HF_HUB_OFFLINE" in of(findings, "model")[0]["text"]) == (1, True)


def test_the_report_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", *launch_words(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("smg-trio doctor ")
    assert "\nmodel\n  ok       " in said.out
    assert said.err == ""
