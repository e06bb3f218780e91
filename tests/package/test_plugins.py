"""The example package of plug-ins, from its wheel beside ours: named by flags, and used."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT
from .test_installed import PATIENCE_S, clean

EXAMPLE = ROOT / "examples" / "smg-trio-shouting"
ANSWER = '((Rome it is.))Let me look.\nGET_WEATHER! {"city": "Rome"}\n'
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def programs(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with both wheels."""
    directory = tmp_path_factory.mktemp("example")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", directory, EXAMPLE]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = directory.glob("smg_trio_shouting-*.whl")
    pip = [installed / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", wheel], check=True, cwd=directory)
    subprocess.run([*pip, "check"], check=True, cwd=directory)
    return installed


@contextmanager
def running(programs: Path, directory: Path, *flags: str) -> Iterator[str]:
    """A gateway with these flags and an engine that always says `ANSWER`; the gateway's address."""
    environment = clean(directory)
    find = [programs / "python", "-c", "from smg_trio.testing.demo import DEMO_MODEL; print(DEMO_MODEL)"]
    model = subprocess.run(find, cwd=directory, env=environment, capture_output=True, text=True, check=True).stdout
    # A path of nox's own directory may be too long for a socket.
    sockets = tempfile.mkdtemp(prefix="smg-", dir="/tmp")
    url = f"ipc://{sockets}/engine"
    port = [programs / "smg-trio", "handshake-port", url]
    found = subprocess.run(port, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    gateway = subprocess.Popen(
        [programs / "smg-trio", "launch", "--worker-urls", url, "--backend", "vllm", "--model-path", model.strip(),
         "--served-model-name", "demo", "--host", "127.0.0.1", "--port", "0", "--prometheus-host", "127.0.0.1",
         "--prometheus-port", "0", *flags],
        cwd=directory, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    engine = subprocess.Popen(
        [programs / "smg-trio", "fake-engine", "--handshake", f"tcp://127.0.0.1:{found}", "--model-path", model.strip(),
         "--answer", ANSWER, "--step-ms", "1"],
        cwd=directory, env=environment,
    )  # fmt: skip
    try:
        assert gateway.stderr is not None
        address = ""
        for line in gateway.stderr:
            if at := re.search(r"listening on (127\.0\.0\.1:\d+)", line):
                address = f"http://{at[1]}"
            if address and "-> ready" in line:
                break
        assert address, "the gateway has not started"
        yield address
        gateway.send_signal(signal.SIGTERM)
        gateway.stderr.read()
        assert gateway.wait(timeout=PATIENCE_S) == 0
    finally:
        for process in (gateway, engine):
            process.kill()
            process.wait()
        shutil.rmtree(sockets)


def ask(url: str, token: str, **fields: Any) -> tuple[int, Any]:
    """Status and body of a chat request."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi!"}], "tools": [TOOL]} | fields
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_five_plug_ins_are_used_by_their_flags(programs: Path, tmp_path: Path) -> None:
    users, counts = tmp_path / "users", tmp_path / "counts"
    users.write_text("t-alice alice\n")
    flags = (
        "--tool-call-parser", "shout", "--reasoning-parser", "aside", "--policy", "first", "--auth", "users", "--hook",
        "sessions", "--plugin-option", f"users.file={users}", f"sessions.file={counts}",
    )  # fmt: skip
    with running(programs, tmp_path, *flags) as url:
        assert ask(url, "t-mallory")[0] == 401
        status, body = ask(url, "t-alice")
        assert status == 200, body
        message = body["choices"][0]["message"]
        assert message["reasoning_content"] == "Rome it is."
        assert message["content"].strip() == "Let me look."
        [call] = message["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
            "get_weather",
            {"city": "Rome"},
        )
        assert ask(url, "t-alice", user="mallory") == (403, ask(url, "t-alice", user="mallory")[1])
    assert counts.read_text().startswith("alice ")


def test_each_keeps_its_contract_there_too(programs: Path, tmp_path: Path) -> None:
    kinds = {
        "tool_parser": "shout",
        "reasoning_parser": "aside",
        "policy": "first",
        "auth": "users",
        "hook": "sessions",
    }
    for kind, name in kinds.items():
        command = [programs / "smg-trio", "plugins", "check", kind, name]
        done = subprocess.run(command, cwd=tmp_path, env=clean(tmp_path), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_fifty_installed_plug_ins_hardly_delay_the_start(programs: Path, tmp_path: Path) -> None:
    """What a start looks for, with and without them: the metadata of one group."""
    for number in range(50):
        info = tmp_path / f"plug_{number}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plug-{number}\nVersion: 1.0\n" + "Text\n" * 200)
        (info / "entry_points.txt").write_text(
            "".join(f"[smg_trio.{kind}]\nplug{number} = nothing_{number}:x\n" for kind in ("tool_parsers", "policies"))
        )
    program = (
        "import time\n"
        "from smg_trio.plugins.loading import PluginLoader\n"
        "from smg_trio.plugins.kinds import POLICY, TOOL_PARSER\n"
        "loader, least = PluginLoader(), 1.0\n"
        "for _ in range(20):\n"
        "    began = time.process_time()\n"
        "    loader.load(TOOL_PARSER, 'hermes'), loader.load(POLICY, 'cache_aware')\n"
        "    least = min(least, time.process_time() - began)\n"
        "print(least)\n"
    )

    def took(path: str) -> float:
        environment = clean(tmp_path) | {"PYTHONPATH": path}
        done = subprocess.run(
            [programs / "python", "-c", program],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout)

    more = took(str(tmp_path)) - took(os.devnull)
    assert more < 0.010, f"two look-ups take {more * 1e3:.1f} ms more"
