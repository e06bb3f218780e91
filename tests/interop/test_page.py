"""The reference's page with a real vLLM engine: both sides name the model as on the hub, from one cache."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import page as commands
from tests.e2e.page import MODEL, Page, install, opened_page
from tests.interop.processes import ONE_PROCESS, ONE_PROCESS_FLAGS, QUIET_CPU
from tests.small_hub import SmallHub, model_files, small_hub

ONLINE = {"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
# "Add your usual engine flags", says the page: those that a CPU needs.
ENGINE = " ".join((commands.ENGINE["vllm"].rstrip(), "--enforce-eager", "--max-model-len", "2048", *ONE_PROCESS_FLAGS))
START_WITHIN_S = 300.0

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("curl", "jq", "bash"))), reason="the page's commands need bash, curl and jq"
)


@pytest.fixture
def server(model: Path) -> Iterator[SmallHub]:
    with small_hub() as running:
        running.add(MODEL, model_files(model), large=frozenset({"model.safetensors", "tokenizer.json"}))
        yield running


@pytest.fixture
def page(vllm_python: str, server: SmallHub, tmp_path: Path) -> Iterator[Page]:
    install(tmp_path, "vllm", f"{vllm_python} -m vllm.entrypoints.cli.main")
    with tempfile.TemporaryDirectory(prefix="smg-") as sockets:
        environment = QUIET_CPU | ONE_PROCESS | ONLINE
        environment |= {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": server.url, "HF_TOKEN": ""}
        with opened_page(tmp_path, Path(sockets) / "s", environment) as opened:
            yield opened


def ask(page: Page) -> int:
    """Tokens of the prompt of the page's chat request, which is answered."""
    answered = json.loads(page.run(commands.CHAT))
    assert answered["model"] == MODEL
    assert answered["usage"]["completion_tokens"] > 0
    return int(answered["usage"]["prompt_tokens"])


def test_gateway_and_engine_fill_one_cache_and_then_need_no_network(page: Page, server: SmallHub) -> None:
    gateway = page.start(commands.LAUNCH)
    gateway.until_logged(f"model {MODEL}: download")
    assert server.weights_asked == []
    engine = page.start(ENGINE, _22670=page.handshake_port())
    page.wait_ready(engine, START_WITHIN_S)
    online = ask(page)
    assert {path.rpartition("/")[2] for path in server.weights_asked} == {"model.safetensors"}
    assert gateway.stop() == 0
    engine.kill()

    server.requests.clear()
    gateway = page.start(commands.LAUNCH, environment=OFFLINE)
    gateway.until_logged(f"model {MODEL}: cache ")
    engine = page.start(ENGINE, environment=OFFLINE, _22670=page.handshake_port())
    page.wait_ready(engine, START_WITHIN_S)
    assert ask(page) == online
    assert server.requests == []


def test_what_an_engine_leaves_in_the_cache_suffices(page: Page, server: SmallHub, model: Path) -> None:
    by_directory = commands.LAUNCH.replace(MODEL, f"{model} --served-model-name {MODEL}")
    gateway = page.start(by_directory)
    engine = page.start(ENGINE, _22670=page.handshake_port())
    page.wait_ready(engine, START_WITHIN_S)
    usual = ask(page)
    assert gateway.stop() == 0
    server.requests.clear()
    gateway = page.start(commands.LAUNCH)
    gateway.until_logged(f"model {MODEL}: cache ")
    page.wait_ready(engine, START_WITHIN_S)  # the engine of before is taken over
    assert ask(page) == usual
    assert server.requests == []
