"""Models of a hub in processes of their own, told by the environment: what is loaded, what is asked, how they end."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from smg_trio.testing.demo import DEMO_MODEL
from tests.interop.processes import Process
from tests.small_hub import SmallHub, Trouble, model_files, small_hub

REPO = "org/model"
PATIENCE_S = 20.0
LAUNCH = ("launch", "--host", "127.0.0.1", "--port", "0", "--prometheus-host", "127.0.0.1", "--prometheus-port", "0")
HEAVY = ("httpx", "httpx2", "requests", "huggingface_hub.hf_api", "huggingface_hub.file_download")

Start = Callable[..., Process]


@pytest.fixture
def server() -> Iterator[SmallHub]:
    with small_hub() as running:
        running.add(REPO, model_files(DEMO_MODEL), large=frozenset({"tokenizer.json"}))
        yield running


@pytest.fixture
def environment(server: SmallHub, tmp_path: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return kept | {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": server.url, "HF_TOKEN": ""}


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start ``launch`` with these words."""
    started: list[Process] = []

    def start_one(*words: str, variables: Mapping[str, str] | None = None) -> Process:
        log = tmp_path / f"log-{len(started)}"
        command = [sys.executable, "-m", "smg_trio", *LAUNCH, *words]
        started.append(Process("launch", command, log, environment | dict(variables or {})))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()


def fill(environment: Mapping[str, str], *, files: str = "None") -> None:
    """Fill the cache by the library itself, as an engine does."""
    code = f"import huggingface_hub as h; h.snapshot_download({REPO!r}, allow_patterns={files})"
    subprocess.run([sys.executable, "-c", code], env=dict(environment), check=True, timeout=60, capture_output=True)


def readiness(process: Process) -> dict[str, object]:
    process.until_logged("listening on")
    [line] = [line for line in process.logged().splitlines() if "listening on" in line]
    answer = httpx.get(f"http://{line.rpartition(' ')[2]}/readiness", trust_env=False)
    return dict(answer.json())


def loaded_modules(environment: Mapping[str, str], model: str) -> set[str]:
    """The heavy modules that finding and loading a model brings into a process."""
    code = (
        "import sys, trio\n"
        "from smg_trio.settings.settings import Settings\n"
        "from smg_trio.gateway.models.orders import order_of_settings, locate, load\n"
        "from smg_trio.gateway.plugin_set import PluginSet\n"
        f"order = order_of_settings(Settings(model_path={model!r}))\n"
        "located = trio.run(locate, order)\n"
        "print(trio.run(load, order, located, PluginSet(Settings())).files.source)\n"
        f"print([name for name in {HEAVY} if name in sys.modules], 'huggingface_hub' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(environment), check=True, timeout=60, capture_output=True, text=True
    )
    return set(done.stdout.splitlines())


def test_a_directory_loads_no_client_and_a_full_cache_no_http(server: SmallHub, environment: dict[str, str]) -> None:
    assert loaded_modules(environment, str(DEMO_MODEL)) == {"directory", "[] False"}
    fill(environment)
    server.requests.clear()
    assert loaded_modules(environment, REPO) == {"cache", "[] True"}
    assert server.requests == []


@pytest.mark.parametrize("files", ["None", "['*.json', '*.jinja']"], ids=["all", "small"])
def test_a_cache_made_by_the_library_costs_no_request(
    server: SmallHub, environment: dict[str, str], start: Start, files: str
) -> None:
    fill(environment, files=files)
    server.requests.clear()
    for variables in ({}, {"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        gateway = start("--model-path", REPO, variables=variables)
        gateway.until_logged(f"model {REPO}: cache ", PATIENCE_S)
    assert server.requests == []


def test_two_gateways_and_an_engine_s_download_at_once(
    server: SmallHub, environment: dict[str, str], start: Start
) -> None:
    go_on = threading.Event()
    server.troubles.append(Trouble("/cdn/", times=99, stall=go_on))
    gateways = [start("--model-path", REPO) for _ in range(2)]
    server.wait_asked("/cdn/", PATIENCE_S)
    go_on.set()
    fill(environment)
    for gateway in gateways:
        gateway.until_logged(f"model {REPO}: ", PATIENCE_S)
    blobs = Path(environment["HF_HOME"]) / "hub" / "models--org--model" / "blobs"
    assert [path for path in blobs.iterdir() if path.name.endswith(".incomplete")] == []


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (("--model-path", "org/nowhere"), {}, "--model-path: 'org/nowhere' is neither a directory here nor a repo"),
        (("--model-path", REPO, "--revision", "v9"), {}, "--revision: 'org/model' has no revision 'v9'"),
        (("--model-path", f"{REPO}@v1", "--revision", "v2"), {}, "names another revision than --revision v2"),
        (("--model-path", REPO), {"HF_HUB_OFFLINE": "1"}, "(missing: config.json, a tokenizer), and HF_HUB_OFFLINE"),
        (("--model-path", "./nowhere"), {}, "'./nowhere' is neither a directory nor a model's name"),
        (("--model-path", REPO, "--tokenizer-path", "org/nowhere"), {}, "--tokenizer-path: 'org/nowhere' is neither"),
        (("--revision", "main"), {}, "--revision: needs --model-path"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_model_that_cannot_be_ends_the_process_with_2_and_one_line(
    start: Start, words: tuple[str, ...], variables: dict[str, str], said: str
) -> None:
    gateway = start(*words, variables=variables)
    assert gateway.ended(PATIENCE_S) == 2
    last = gateway.logged().splitlines()[-1]
    assert last.startswith("smg-trio: error: --")
    assert said in last
    assert "Traceback" not in gateway.logged()


def test_a_stalled_download_does_not_hold_the_end_up(server: SmallHub, start: Start) -> None:
    server.troubles.append(Trouble("/resolve/", times=99, stall=threading.Event()))
    gateway = start("--model-path", REPO)
    server.wait_asked("/resolve/", PATIENCE_S)
    assert readiness(gateway)["reason"] == "tokenizer not yet registered"
    os.kill(gateway.pid, signal.SIGTERM)
    assert gateway.ended(PATIENCE_S) == 0
    assert "gateway ended" in gateway.logged()


def test_a_full_disk_is_waited_for(server: SmallHub, start: Start, environment: dict[str, str]) -> None:
    """As `EFBIG` where the file system gives `ENOSPC`: a limit that can be set and lifted without a disk."""
    go_on = threading.Event()
    server.troubles.append(Trouble("/api/", stall=go_on))
    gateway = start("--model-path", REPO)
    server.wait_asked("/api/", PATIENCE_S)
    _, hard = resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (20_000, hard))
    go_on.set()
    gateway.until_logged("File too large): free some space there, or set HF_HOME to a directory", PATIENCE_S)
    resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (hard, hard))
    gateway.until_logged(f"model {REPO}: download ", PATIENCE_S)


def test_an_address_behind_a_proxy(server: SmallHub, start: Start) -> None:
    """The environment's proxy is asked: here it is the hub itself, under a name that no resolver knows."""
    variables = {"HF_ENDPOINT": "http://hub.invalid", "HTTP_PROXY": server.url, "http_proxy": server.url}
    gateway = start("--model-path", REPO, variables=variables)
    gateway.until_logged(f"model {REPO}: download ", PATIENCE_S)
