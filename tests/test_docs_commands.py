"""Commands of the documentation: run where they can be, and elsewhere checked word by word.

A comment above a bash block says which:

- ``<!-- run -->``, and ``<!-- run with demo -->``: while a demo gateway runs;
- ``<!-- run with cleanup -->``: it starts processes that are ended afterwards;
- ``<!-- run with vllm -->``: the same, with vLLM in ``~/vllm``: a stand-in that takes the same flags, or that of
  `SMG_TRIO_INTEROP_PYTHON`, with a tiny model in the place of the one that the page names;
- ``<!-- run with docker -->``: with the program that `SMG_TRIO_DOCKER` names, such as podman;
- ``<!-- not run: why -->``.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from smg_trio.cli.main import make_parser
from smg_trio.gateway.routes import ROUTES
from smg_trio.launcher.serve_options import parse_serve
from smg_trio.testing.demo import DEMO_MODEL

from .commands_of_pages import parts_of, words_of
from .conftest import shared_path
from .ports import lasting_port
from .stand_in_vllm import write_stand_in

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GUIDES = [DOCS / "index.md", DOCS / "getting-started.md", DOCS / "troubleshooting.md", *sorted(DOCS.glob("howto/*.md"))]
EVERYWHERE = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
VLLM_PYTHON = os.environ.get("SMG_TRIO_INTEROP_PYTHON")
DOCKER = os.environ.get("SMG_TRIO_DOCKER")
LIMIT_S = 300 if VLLM_PYTHON or DOCKER else 60
HUB_MODEL = "Qwen/Qwen3-0.6B"
"""What guides name; the tests have no network."""
CPU = "VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1"
CPU_FLAGS = "--enforce-eager --max-model-len 2048"
"""What a vLLM for CPUs and a tiny model need beyond the words of the page."""
_BLOCK = re.compile(r"^(?:<!-- ((?:not )?run\b[^>]*?) -->\n)?```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PORT = re.compile(r"\b301\d\d\b")
_PATHS = [re.compile("^" + re.sub(r"<[^>]+>", "[^/]+", route.path) + "$") for route in ROUTES]


@dataclass(frozen=True)
class Block:
    """A bash block of a page, and what its mark says ("" without one)."""

    page: Path
    number: int
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}-{self.number}"


def blocks(pages: list[Path]) -> list[Block]:
    return [
        Block(page, number, mark, text)
        for page in pages
        for number, (mark, text) in enumerate(_BLOCK.findall(page.read_text()), 1)
    ]


KINDS = ("run", "run with demo", "run with cleanup", "run with vllm", "run with docker")
RUN = [block for block in blocks(GUIDES) if block.mark.startswith("run")]


def test_every_block_of_a_guide_says_whether_it_is_run() -> None:
    for block in blocks(GUIDES):
        kind, _, why = block.mark.partition(": ")
        assert kind in KINDS or (kind == "not run" and why), str(block)
    assert len(RUN) > 8


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the commands that an installation would have."""
    directory = tmp_path_factory.mktemp("bin")
    for name, words in (("smg-trio", "-m smg_trio"), ("python", "")):
        write_script(directory / name, f'exec {sys.executable} {words} "$@"')
    if DOCKER:
        write_script(directory / "docker", f'exec {DOCKER} "$@"')
    return directory


def write_script(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def model_for_vllm(home: Path) -> str:
    """Make ``vllm/bin`` below a home directory; the model that this vLLM is given."""
    directory = home / "vllm" / "bin"
    directory.mkdir(parents=True)
    if VLLM_PYTHON:
        environment, python = f"env -u PYTHONPATH {CPU}", shlex.quote(VLLM_PYTHON)
        model, flags = str(shared_path("data", "tiny-llama")), CPU_FLAGS
    else:
        write_stand_in(home)
        environment, python = f"env PYTHONPATH={home}:{ROOT}", sys.executable
        model, flags = str(DEMO_MODEL), ""
    write_script(directory / "vllm", f'exec {environment} {python} -m vllm.entrypoints.cli.main "$@" {flags}')
    write_script(directory / "python", f'exec {environment} {python} "$@" {flags}')
    return model


def environment(programs: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return kept | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "DEMO_MODEL": str(DEMO_MODEL),
    }


@pytest.fixture(scope="module")
def demo(programs: Path) -> Iterator[str]:
    """Host and port of a running demo."""
    command = [programs / "smg-trio", "demo", "--port", "0", "--step-ms", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(programs))
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("Ready on "))
        yield line.split()[2].removeprefix("http://")
    finally:
        process.terminate()
        process.wait(timeout=LIMIT_S)


@contextmanager
def shell(text: str, directory: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A bash that runs a text, in a session of its own, whose processes are all ended afterwards."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", text], cwd=directory, env=variables, text=True, start_new_session=True,
        stdout=(directory / "out").open("w"), stderr=(directory / "err").open("w"), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("block", RUN, ids=str)
def test_it_does_what_the_page_says(
    block: Block, programs: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = re.sub(r"/tmp/smg-", f"{tmp_path}/", block.text)
    ports = {port: str(lasting_port()) for port in set(_PORT.findall(text))}
    text = _PORT.sub(lambda found: ports[found[0]], text)
    if block.mark == "run with demo":
        text = text.replace("127.0.0.1:30000", request.getfixturevalue("demo"))
    variables = environment(programs)
    if block.mark == "run with vllm":
        text = text.replace(HUB_MODEL, model_for_vllm(tmp_path))
        variables |= {"HOME": str(tmp_path), "SMG_ZMQ_SOCKET_DIR": f"{tmp_path}/s"}
    if block.mark == "run with docker":
        if not DOCKER:
            pytest.skip("SMG_TRIO_DOCKER names no program that builds and runs images")
        text = f"cd {shlex.quote(str(ROOT))}\n{text}"
    with shell(text, tmp_path, variables) as process:
        code = process.wait(timeout=LIMIT_S)
    said = (tmp_path / "out").read_text()
    assert code == 0, said + (tmp_path / "err").read_text()
    assert '"server_error"' not in said


@pytest.mark.parametrize("page", EVERYWHERE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_has_words_that_its_program_knows(page: Path) -> None:
    for block in blocks([page]):
        for command in parts_of(block.text):
            check_words(words_of(command), str(block))


def check_words(words: list[str], where: str) -> None:
    """Refuse words that their program would refuse; programs that are not known here are left alone."""
    words = [word.removeprefix("~/vllm/bin/") for word in words[:1]] + words[1:]
    if words[:1] == ["smg-trio"]:
        check_own(words[1:])
    elif words[:3] == ["python", "-m", "smg_trio"]:
        check_own(words[3:])
    elif words[:2] == ["vllm", "serve"]:
        assert flags(words) <= known_flags("vllm-0.32.0"), where
    elif words[:4] == ["python", "-m", "tokenspeed.cli", "serve"]:
        assert flags(words) <= known_flags("tokenspeed-0.1.1") | SET_BY_THE_LAUNCHER, where
    elif words[:1] == ["curl"]:
        (url,) = (word for word in words if word.startswith("http://127.0.0.1"))
        path = "/" + url.split("/", 3)[3]
        assert any(pattern.match(path) for pattern in _PATHS), f"{where}: {path}"
    elif words[:1] in (["install"], ["docker"], ["kubectl"]):
        for word in words:
            assert not word.startswith("deploy/") or (ROOT / word).exists(), f"{where}: {word}"


SET_BY_THE_LAUNCHER = {"--headless", "--data-parallel-address", "--data-parallel-rpc-port", "--zmq-engine-index"}


def check_own(words: list[str]) -> None:
    if words[:1] == ["serve"]:
        parse_serve(words[1:], {})
    elif "--help" not in words and "--version" not in words:
        make_parser().parse_args(words)


def flags(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def known_flags(engine: str) -> set[str]:
    return set((ROOT / f"tests/launcher/flags-{engine}.txt").read_text().split())


def test_wrong_words_are_noticed() -> None:
    for command in (
        "smg-trio launch --no-such-flag",
        "vllm serve m --no-such-flag",
        "curl -s http://127.0.0.1:30000/no/such/path",
        "kubectl apply -f deploy/nothing.yaml",
        "smg-trio serve --backend nothing --model m",
    ):
        with pytest.raises(BaseException):  # noqa: B017, PT011  # argparse exits, others assert or refuse
            check_words(words_of(command), "here")
