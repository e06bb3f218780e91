"""The image, run as the compose file and the Kubernetes manifest say, with a fake engine from the same image.

`SMG_TRIO_IMAGE` names it (`nox -s image`). Buildah runs it rootless and without a daemon, by chroot: user, files and
processes are the container's, the network is this host's, and capabilities and limits are not tried.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.wire.addresses import handshake_port
from tests.ports import lasting_port

from .conftest import program
from .reading import DEPLOY, documents

IMAGE = os.environ.get("SMG_TRIO_IMAGE", "")
USER = 10001
KEY = "k-1234567890"
PATIENCE_S = 30.0
SOCKET = "/run/smg/sockets/w0"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not IMAGE, reason="SMG_TRIO_IMAGE names no image (nox -s image)"),
]


class Run:
    """One process of a container, and what it writes."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text()

    def stop(self) -> int:
        """What `docker stop` does: SIGTERM to the program itself; its exit code."""
        os.kill(_youngest(self._process.pid), signal.SIGTERM)
        return self._process.wait(PATIENCE_S)


def _youngest(pid: int) -> int:
    """The process that has no child, below `pid`: the program, under what runs the container."""
    while children := [child for task in Path(f"/proc/{pid}/task").iterdir() for child in _children(task)]:
        pid = children[-1]
    return pid


def _children(task: Path) -> list[int]:
    try:
        return [int(child) for child in (task / "children").read_text().split()]
    except FileNotFoundError:  # a thread that has ended
        return []


def buildah(*words: str) -> str:
    done = subprocess.run([program("buildah"), *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def container(
    tmp_path: Path, words: Sequence[str], mounts: Mapping[Path, str], environment: Mapping[str, str] | None = None
) -> Iterator[Run]:
    """Run the image with these words behind its entrypoint."""
    name = buildah("from", IMAGE)
    # Buildah would mount a volume of its own there too, over the one that is given or under it.
    buildah("config", "--volume", "/run/smg-", name)
    command = [program("buildah"), "run", "--isolation", "chroot"]
    for source, target in mounts.items():
        command += ["--volume", f"{source}:{target}"]
    for variable, value in (environment or {}).items():
        command += ["--env", f"{variable}={value}"]
    log = tmp_path / f"{name}.log"
    with log.open("w") as file:
        process = subprocess.Popen([*command, name, "--", "smg-trio", *words], stdout=file, stderr=file, text=True)
    try:
        yield Run(process, log)
    finally:
        if process.poll() is None:
            os.kill(_youngest(process.pid), signal.SIGKILL)
            process.wait(PATIENCE_S)
        buildah("rm", name)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A volume for sockets, the model, the keys, settings: as the image's user may use them."""
    found = {name: tmp_path / name for name in ("sockets", "models", "keys", "config")}
    for directory in found.values():
        directory.mkdir()
    shutil.copytree(DEMO_MODEL, found["models"] / "m")
    (found["keys"] / "api-keys").write_text(f"{KEY}\n")
    os.chown(found["sockets"], USER, USER)
    os.chown(found["keys"] / "api-keys", USER, USER)
    (found["keys"] / "api-keys").chmod(0o400)
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    return found


def as_composed(files: dict[str, Path]) -> tuple[list[str], dict[Path, str], dict[str, str]]:
    """Words, mounts and variables of the compose file's gateway."""
    (document,) = documents(DEPLOY / "compose.yaml")
    gateway = document["services"]["gateway"]
    (secret,) = gateway["secrets"]
    mounts = {files["sockets"]: "/run/smg", files["models"] / "m": "/models/m"}
    assert set(mounts.values()) == {text.removesuffix(":ro").rsplit(":", 1)[1] for text in gateway["volumes"]}
    return gateway["command"], mounts | {files["keys"] / "api-keys": f"/run/secrets/{secret}"}, gateway["environment"]


def as_deployed(files: dict[str, Path]) -> tuple[list[str], dict[Path, str], dict[str, str]]:
    """Words, mounts and variables of the manifest's gateway."""
    by_kind: dict[str, Any] = {one["kind"]: one for one in documents(DEPLOY / "kubernetes" / "smg-trio.yaml")}
    (gateway,) = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"]
    for name, text in by_kind["ConfigMap"]["data"].items():
        (files["config"] / name).write_text(text)
    mounts = {files[mount["name"]]: mount["mountPath"] for mount in gateway["volumeMounts"]}
    return gateway["args"], mounts, {}


@pytest.mark.parametrize("described", [as_composed, as_deployed], ids=["compose", "kubernetes"])
def test_the_image_answers_as_it_is_deployed(tmp_path: Path, files: dict[str, Path], described: Any) -> None:
    words, mounts, environment = described(files)
    port, metrics = lasting_port(), lasting_port()
    base = f"http://127.0.0.1:{port}"
    ports = ["--host", "127.0.0.1", "--port", str(port)]
    ports += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
    with ExitStack() as stack:
        gateway = stack.enter_context(container(tmp_path, [*words, *ports], mounts, environment))
        _wait_for(f"{base}/liveness", gateway)
        assert (files["sockets"] / "sockets").stat().st_uid == USER
        engine = [
            "fake-engine",
            "--handshake",
            f"tcp://127.0.0.1:{handshake_port(SOCKET)}",
            "--model-path",
            "/models/m",
        ]
        stack.enter_context(container(tmp_path, [*engine, "--answer", "Hello"], mounts))
        _wait_for(f"{base}/readiness", gateway)
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert httpx.post(f"{base}/v1/chat/completions", json=body).status_code == 401
        answer = httpx.post(f"{base}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"})
        assert answer.json()["choices"][0]["message"]["content"] == "Hello"
        assert "smg_worker_health" in httpx.get(f"http://127.0.0.1:{metrics}/metrics").text
        assert gateway.stop() == 0
        assert "gateway ended" in gateway.log()


def test_the_image_s_health_check_tells_the_living_from_the_dead(tmp_path: Path) -> None:
    port = lasting_port()
    words = ["demo", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", "0"]
    with container(tmp_path, words, {}) as demo:
        _wait_for(f"http://127.0.0.1:{port}/readiness", demo)
        name = buildah("from", IMAGE)
        for asked, code in ((port, 0), (lasting_port(), 1)):
            check = ["--env", f"SMG_TRIO_PORT={asked}", name, "--", "python", "/opt/smg-trio/healthcheck.py"]
            command = [program("buildah"), "run", "--isolation", "chroot", *check]
            assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == code
        buildah("rm", name)
        assert demo.stop() == 0


def _wait_for(url: str, gateway: Run) -> None:
    """Ask until it is a 200: containers start slowly, and there is no event to wait for across them."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            continue
    raise AssertionError(f"{url} is not there\n{gateway.log()}")
