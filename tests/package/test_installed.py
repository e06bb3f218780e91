"""The wheel in an environment of its own: what somebody has who installed it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from smg_trio import __version__

PATIENCE_S = 60


@contextmanager
def demo(command: list[str | Path], directory: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run a command that ends in `demo`; the gateway's address while it runs. It ends with 0 at SIGTERM."""
    process = subprocess.Popen(
        [*command, "demo", "--port", "0", "--step-ms", "1"],
        cwd=directory, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("Ready on "))
        yield line.split()[2]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def ask(url: str) -> str:
    """The content of the demo's answer to a chat request."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi!"}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=PATIENCE_S) as answer:
        content = json.load(answer)["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


def clean(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing of this checkout can be found."""
    dropped = ("PYTHONPATH", "VIRTUAL_ENV")
    return {key: value for key, value in os.environ.items() if key not in dropped} | {"HOME": str(tmp_path)}


def test_the_program_says_its_version(installed: Path, tmp_path: Path) -> None:
    for command in ([installed / "smg-trio"], [installed / "python", "-m", "smg_trio"]):
        done = subprocess.run(
            [*command, "--version"], cwd=tmp_path, env=clean(tmp_path), capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == f"smg-trio {__version__}"


def test_the_demo_answers(installed: Path, tmp_path: Path) -> None:
    with demo([installed / "smg-trio"], tmp_path, clean(tmp_path)) as url:
        assert ask(url).endswith("You said: Hi!")


EXTRAS = (
    "certifi", "httpcore", "httpcore2", "httpx2", "jwt", "mcp", "mistral_common", "numpy", "opentelemetry", "PIL",
    "psycopg", "rich",
)  # fmt: skip
"""What modules for extras import."""


def test_every_module_can_be_imported(installed: Path, tmp_path: Path) -> None:
    program = (
        "import importlib, pkgutil, smg_trio\n"
        f"EXTRAS = {EXTRAS!r}\n"
        "for found in pkgutil.walk_packages(smg_trio.__path__, 'smg_trio.'):\n"
        "    if found.name == 'smg_trio.__main__':\n"
        "        continue\n"
        "    try:\n"
        "        importlib.import_module(found.name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        assert error.name.partition('.')[0] in EXTRAS, found.name\n"
    )
    subprocess.run([installed / "python", "-I", "-W", "error::SyntaxWarning", "-c", program], cwd=tmp_path, check=True)


def test_pipx_runs_the_demo_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    pipx = shutil.which("pipx", path=str(Path(sys.executable).parent))
    if pipx is None:
        pytest.skip("pipx is not installed here")
    environment = clean(tmp_path) | {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_DEFAULT_PYTHON": sys.executable}
    with demo([pipx, "run", "--no-cache", "--spec", wheel, "smg-trio"], tmp_path, environment) as url:
        assert ask(url).endswith("You said: Hi!")
