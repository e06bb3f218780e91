"""The systemd units: systemd understands them, and their settings, paths and times fit each other and this version."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from smg_trio.settings.help_text import EXIT_CODES
from smg_trio.settings.settings import Settings

from .conftest import program
from .reading import CUTTING_S, DEPLOY, flags_of_vllm, gateway_settings

UNITS = DEPLOY / "systemd"


def read(name: str) -> configparser.SectionProxy:
    """The service section of a unit, of repeated keys the last."""
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((UNITS / name).read_text().replace("\\\n", " "))
    return parser["Service"]


@pytest.fixture
def service() -> configparser.SectionProxy:
    return read("smg-trio.service")


@pytest.fixture
def settings(service: configparser.SectionProxy) -> Settings:
    _, *words = shlex.split(service["ExecStart"])
    return gateway_settings(words, files={"/etc/smg-trio/smg-trio.toml": (UNITS / "smg-trio.toml").read_text()})


def test_sockets_lie_in_the_directory_that_systemd_makes_and_keeps(
    service: configparser.SectionProxy, settings: Settings
) -> None:
    for url in settings.worker_urls:
        assert url.startswith(f"ipc:///run/{service['RuntimeDirectory']}/")
    # What is kept there is how a new gateway takes living engines over.
    assert service["RuntimeDirectoryPreserve"] == "yes"
    assert service["RuntimeDirectoryMode"] == "0700"


def test_the_gateway_has_time_to_drain(service: configparser.SectionProxy, settings: Settings) -> None:
    assert int(service["TimeoutStopSec"]) >= settings.shutdown_grace_period_secs + CUTTING_S
    assert service["KillSignal"] == "SIGTERM"


def test_wrong_settings_are_not_tried_again(service: configparser.SectionProxy) -> None:
    assert "wrong" in EXIT_CODES[int(service["RestartPreventExitStatus"])]


def test_the_engine_is_the_same_user_s_and_dials_the_gateway_s_sockets(
    service: configparser.SectionProxy, settings: Settings
) -> None:
    engine = read("smg-trio-engine@.service")
    assert engine["User"] == service["User"]
    command = engine["ExecStart"]
    assert f"handshake-port ipc:///run/{service['RuntimeDirectory']}/%i" in command
    assert settings.worker_urls[0] == f"ipc:///run/{service['RuntimeDirectory']}/w0"
    assert set(re.findall(r"(?<= )--[a-z-]+", command)) <= flags_of_vllm()
    assert engine["Restart"] == "always"


def test_systemd_understands_the_units(tmp_path: Path) -> None:
    systemd = program("systemd-analyze")
    units = []
    for name in ("smg-trio.service", "smg-trio-engine@w0.service"):
        source = UNITS / name.replace("@w0", "@")
        # The programs are not installed where the tests run.
        text = re.sub(r"^ExecStart=/opt\S+", "ExecStart=/bin/true", source.read_text(), flags=re.MULTILINE)
        units.append(tmp_path / name)
        units[-1].write_text(text)
    command = [systemd, "verify", "--man=no", *units]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    ours = [line for line in done.stderr.splitlines() if "smg-trio" in line]
    assert ours == []
    assert done.returncode == 0, done.stderr


def test_the_sandbox_is_tight(tmp_path: Path) -> None:
    systemd = program("systemd-analyze")
    # Of 10; what is left is the network and the sockets, which a gateway is for.
    command = [systemd, "security", "--offline=yes", "--threshold=25", "--no-pager", UNITS / "smg-trio.service"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def allowed_calls(systemd: str, group: str) -> set[str]:
    """The system calls of a group of systemd's, with those of the groups in it."""
    command = [systemd, "syscall-filter", group, "--no-pager"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    calls: set[str] = set()
    for line in map(str.strip, listed[1:]):
        if line.startswith("@"):
            calls |= allowed_calls(systemd, line)
        elif line and not line.startswith("#"):
            calls.add(line)
    return calls


def test_the_sandbox_allows_every_call_that_a_gateway_makes(service: configparser.SectionProxy, tmp_path: Path) -> None:
    strace, systemd = program("strace", slow=True), program("systemd-analyze", slow=True)
    trace = tmp_path / "trace"
    command = [strace, "-f", "-qq", "-o", str(trace), sys.executable, "-m", "smg_trio", "demo", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = next(line for line in process.stdout if line.startswith("Ready on ")).split()[2]
        with httpx.Client(timeout=60, verify=False) as client:
            body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
            assert client.post(f"{url}/v1/chat/completions", json=body).status_code == 200
        (gateway,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(gateway), signal.SIGTERM)
        process.wait(timeout=60)
    finally:
        process.kill()
    used = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(), flags=re.MULTILINE))
    assert "epoll_wait" in used or "epoll_pwait" in used
    assert service["SystemCallFilter"] == "~@privileged"
    assert used - (allowed_calls(systemd, "@system-service") - allowed_calls(systemd, "@privileged")) == set()
