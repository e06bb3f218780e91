"""The servers that client libraries talk to, each started once; run by ``nox -s clients``.

Without `SMG_TRIO_CLIENTS` set everything here is skipped; with it, what is not installed is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.directories import mark_directory
from tests.e2e.harness import MODEL

SWITCH = "SMG_TRIO_CLIENTS"
ROOT = Path(__file__).parents[2]
COMMAND_LIMIT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this directory needs client libraries, and time."""
    needs = f"needs client libraries: nox -s clients, or {SWITCH}=1"
    mark_directory(items, __file__, "clients", timeout_s=COMMAND_LIMIT_S + 20, switch=SWITCH, needs=needs)


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway: where it is, the name of its model, and the directory with the model's tokenizer."""

    url: str
    model_directory: str
    model: str = MODEL

    @property
    def v1(self) -> str:
        """The base URL of OpenAI's clients."""
        return self.url + "/v1"


TEMPLATES = os.environ.get("SMG_TRIO_CLIENTS_TEMPLATES", "").split() or [
    "deepseek-r1",
    "gemma-2",
    "gpt-oss",
    "llama3.1",
    "ministral-3-reasoning",
    "mistral-nemo",
    "qwen3-coder",
    "qwen3.5",
]
"""Chat templates of different kinds; ``SMG_TRIO_CLIENTS_TEMPLATES`` names others."""


@contextmanager
def serving(*options: str) -> Iterator[Served]:
    """A gateway; see `server` for its options."""
    command = [sys.executable, "-m", "tests.clients.server", *options]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        try:
            assert len(words) == 2, "the server did not start"
            yield Served(*words)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """A gateway whose engine generates."""
    with serving() as served:
        yield served


@pytest.fixture(scope="session")
def embedding() -> Iterator[Served]:
    """A gateway whose engine embeds."""
    with serving("embed") as served:
        yield served


@pytest.fixture(scope="session")
def seeing() -> Iterator[Served]:
    """A gateway whose engine takes pictures, and says what it saw (`server`)."""
    with serving("see") as served:
        yield served


def run_command(command: list[str], directory: Path, **environment: str) -> str:
    """Run a client's command line to its end, which must be a good one; returns what it printed."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | offline | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def find_program(name: str) -> str:
    """A client's program: named by ``SMG_TRIO_CLIENTS_<NAME>``, beside this Python, or on the path; or skip."""
    named = os.environ.get(f"{SWITCH}_{name.upper().replace('-', '_')}")
    beside = str(Path(sys.executable).parent)
    program = named or shutil.which(name, path=beside) or shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    return program
