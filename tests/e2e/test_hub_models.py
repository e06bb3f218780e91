"""Models named as on the hub: what clients and operators see while their files come, and when they cannot come."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from smg_trio.core.errors import ConfigError
from smg_trio.core.workers import WorkerState
from smg_trio.hub.download import Hub
from smg_trio.testing.demo import DEMO_MODEL
from tests.small_hub import Repository, SmallHub, Trouble, model_files, small_hub

from .harness import HELLO, PATIENCE_S, Bench, error_of, open_gateway, worker_url
from .model import TestModel, tokens_named
from .test_worker_api import add, refusal, wait_gone, wait_status

REPO = "org/model"
OWN = {"model_path": REPO, "served_model_name": ()}


@pytest.fixture
def server() -> Iterator[SmallHub]:
    with small_hub() as running:
        yield running


@pytest.fixture
def hub(server: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The gateway's hub is the server, with an empty cache; what fails is tried again very soon."""
    found = Hub(server.url, tmp_path / "cache")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("smg_trio.hub.locating.hub_of_environment", lambda: found)
    monkeypatch.setattr("smg_trio.hub.download.PAUSES_S", (0.02,))
    return found


def publish(server: SmallHub, tmp_path: Path, repo: str = REPO, **options: Any) -> Repository:
    """A repository with the model that speaks the harness's words."""
    directory = tmp_path / repo.replace("/", "-")
    TestModel(directory, tokens_named(HELLO))
    return server.add(repo, model_files(directory), **options)


def stall(server: SmallHub, where: str) -> threading.Event:
    """Hold answers up until the event is set."""
    event = threading.Event()
    server.troubles.append(Trouble(where, times=10_000, stall=event))
    return event


async def wait_model(bench: Bench) -> None:
    with trio.fail_after(PATIENCE_S):
        while (await bench.http.get("/readiness")).status_code != 200:
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def downloading(
    server: SmallHub, tmp_path: Path, **settings: Any
) -> AsyncIterator[tuple[Bench, threading.Event]]:
    """A gateway with an engine, whose model has not come yet; the event lets it come."""
    publish(server, tmp_path)
    go_on = stall(server, "/resolve/")
    async with open_gateway(tmp_path, HELLO, **(OWN | settings)) as bench:
        await trio.to_thread.run_sync(server.wait_asked, "/resolve/")
        try:
            yield bench, go_on
        finally:
            go_on.set()


async def test_engines_connect_and_clients_are_told_while_files_come(
    hub: Hub, server: SmallHub, tmp_path: Path
) -> None:
    async with downloading(server, tmp_path) as (bench, go_on):
        assert bench.worker.state is WorkerState.READY
        answer = await bench.http.get("/readiness")
        assert answer.status_code == 503
        seen = answer.json()
        assert (seen["reason"], seen["healthy_workers"]) == ("tokenizer not yet registered", 1)
        assert seen["detail"].startswith("downloading org/model: 0 of 5 files, 0.0 of ")
        error = error_of(await bench.chat(model=REPO), 503)
        assert error["code"] == "tokenizer_not_registered"
        assert "is not yet registered: downloading org/model: 0 of 5 files" in error["message"]
        assert error_of(await bench.chat(model="other"), 404)["code"] == "model_not_found"
        assert (await bench.http.get("/v1/models")).json()["data"] == []
        [worker] = (await bench.http.get("/workers")).json()["workers"]
        assert worker["status_reason"].startswith("tokenizer not yet registered: downloading org/model: ")
        assert worker["status"] == "ready"
        go_on.set()
        await wait_model(bench)
        answer = await bench.chat(model=REPO)
        assert answer.json()["choices"][0]["message"]["content"] == "Hello world"
        assert answer.json()["model"] == REPO
    assert server.weights_asked == []


async def test_where_files_came_from_is_shown(hub: Hub, server: SmallHub, tmp_path: Path) -> None:
    repository = publish(server, tmp_path)
    commit = repository.branches["main"]
    snapshot = hub.cache / "models--org--model" / "snapshots" / commit
    for source in ("download", "cache"):
        (tmp_path / f"from-{source}").mkdir()
        async with open_gateway(tmp_path / f"from-{source}", HELLO, **OWN) as bench:
            await wait_model(bench)
            [card] = (await bench.http.get("/v1/models")).json()["data"]
            assert (card["id"], card["root"]) == (REPO, REPO)
            assert card["files"] == {"source": source, "directory": str(snapshot), "revision": commit}
            assert bench.worker.spec.vocab_size == bench.model.vocab_size
    (tmp_path / "directory").mkdir()
    async with open_gateway(tmp_path / "directory", HELLO) as bench:
        [card] = (await bench.http.get("/v1/models")).json()["data"]
        assert card["files"] == {"source": "directory", "directory": str(bench.model.directory), "revision": None}


async def test_ids_beyond_the_vocabulary_are_refused_though_it_came_after_the_worker(
    hub: Hub, server: SmallHub, tmp_path: Path
) -> None:
    async with downloading(server, tmp_path) as (bench, go_on):
        go_on.set()
        await wait_model(bench)
        beyond = bench.model.vocab_size + 1
        error_of(await bench.http.post("/v1/completions", json={"model": REPO, "prompt": [beyond]}), 400)
        assert bench.worker.state is WorkerState.READY


async def test_a_network_that_comes_back_needs_no_restart(hub: Hub, server: SmallHub, tmp_path: Path) -> None:
    publish(server, tmp_path)
    outage = Trouble("/api/", times=10_000, status=503)
    server.troubles.append(outage)
    async with open_gateway(tmp_path, HELLO, **OWN) as bench:
        with trio.fail_after(PATIENCE_S):
            while "attempt 3" not in (detail := (await bench.http.get("/readiness")).json()["detail"]):
                await trio.lowlevel.checkpoint()
        assert f"{server.url} answered 503 when asked for 'org/model'." in detail
        outage.times = 0
        await wait_model(bench)
        assert (await bench.chat(model=REPO)).status_code == 200


async def test_a_revision_is_a_name_of_its_own(hub: Hub, server: SmallHub, tmp_path: Path) -> None:
    repository = publish(server, tmp_path)
    commit = repository.branches["v1"] = repository.branches["main"]
    repository.commit({"README.md": b"nothing else"})
    async with open_gateway(tmp_path, HELLO, model_path=f"{REPO}@v1", served_model_name=()) as bench:
        await wait_model(bench)
        names = {card["id"]: card["files"]["revision"] for card in (await bench.http.get("/v1/models")).json()["data"]}
        assert names == {f"{REPO}@v1": commit, REPO: commit}
        for name in names:
            assert (await bench.chat(model=name)).status_code == 200


async def test_a_tokenizer_of_another_repository(hub: Hub, server: SmallHub, tmp_path: Path) -> None:
    publish(server, tmp_path, "org/original")
    server.add("org/gguf", {"model-Q4_K_M.gguf": b"GGUF", "README.md": b""})
    settings = {"model_path": "org/gguf:Q4_K_M", "tokenizer_path": "org/original", "served_model_name": ()}
    async with open_gateway(tmp_path, HELLO, **settings) as bench:
        await wait_model(bench)
        assert (await bench.chat(model="org/gguf:Q4_K_M")).status_code == 200
    assert server.weights_asked == []


FAILURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "org/nowhere": ("", {}, "neither a directory here nor a repository"),
    "org/private": ("all", {"private": True}, "or it is private. Check the name"),
    "org/gated": ("all", {"gated": True}, "is gated, and this account has no access to it. Ask for access on"),
    "org/disabled": ("all", {"disabled": True}, "has been disabled"),
    "org/weights": ("weights", {}, "has no tokenizer (no tokenizer.json"),
    "org/gguf": ("gguf", {}, "is GGUF only"),
    "org/broken": ("broken", {}, "cannot be loaded"),
    "org/model@v9": ("", {}, "has no revision 'v9'. Name a branch, a tag or a commit."),
    "/not/here": ("", {}, "is neither a directory nor a model's name"),
    "../not/here": ("", {}, "is neither a directory nor a model's name"),
    "~nobody/x": ("", {}, "is neither a directory nor a model's name"),
    "a" * 5000: ("", {}, "is neither a directory nor a model's name"),
    "org/model@../../x": ("", {}, "is not a revision"),
    "org/na\0me": ("", {}, "is neither a directory nor a model's name"),
}
CONTENTS: dict[str, dict[str, bytes]] = {
    "all": model_files(DEMO_MODEL),
    "weights": {"config.json": b"{}", "model.safetensors": b"0"},
    "gguf": {"model.gguf": b"GGUF"},
    "broken": model_files(DEMO_MODEL) | {"tokenizer.json": b"version https://git-lfs.github.com/spec/v1"},
}


async def test_a_worker_whose_model_cannot_be_had_says_why(hub: Hub, server: SmallHub, tmp_path: Path) -> None:
    publish(server, tmp_path)
    for name, (content, options, _) in FAILURES.items():
        if content:
            server.add(name, CONTENTS[content], **options)
    async with open_gateway(tmp_path, HELLO) as bench:
        for number, (name, (_, _, reason)) in enumerate(FAILURES.items()):
            url = worker_url(tmp_path, f"f{number}-")
            worker_id = await add(bench, url, runtime_type="vllm", labels={"model_path": name})
            value = await wait_status(bench, worker_id, "failed")
            assert reason in value["status_reason"]
            assert "--tokenizer-path" not in value["status_reason"]
            answer = await bench.http.put(f"/workers/{_first_id(bench)}", json=_body(bench, name))
            assert reason in refusal(answer, 400)
        assert (await bench.chat()).status_code == 200
        assert [card["id"] for card in (await bench.http.get("/v1/models")).json()["data"]] == ["m"]
    assert server.weights_asked == []


def _first_id(bench: Bench) -> str:
    return bench.worker.spec.worker_id


def _body(bench: Bench, model: str) -> dict[str, Any]:
    return {"url": bench.urls[0], "runtime_type": "vllm", "labels": {"model_path": model}}


async def test_a_model_comes_and_goes_with_its_workers(hub: Hub, server: SmallHub, tmp_path: Path) -> None:
    publish(server, tmp_path, "org/second")
    async with open_gateway(tmp_path, HELLO) as bench:
        urls = [worker_url(tmp_path, f"s{number}-") for number in range(2)]
        labels = {"model_path": "org/second"}
        ids = [await add(bench, url, runtime_type="vllm", labels=labels) for url in urls]
        for url in urls:
            bench.urls.append(url)
            bench.start_engine(HELLO, worker=len(bench.urls) - 1)
        for worker_id in ids:
            await wait_status(bench, worker_id, "ready")
        with trio.fail_after(PATIENCE_S):
            while (answer := await bench.chat(model="org/second")).status_code == 503:
                await trio.lowlevel.checkpoint()
        assert answer.status_code == 200
        assert len([path for method, path in server.requests if method == "GET" and "/api/" in path]) == 1
        for worker_id in ids:
            await bench.http.delete(f"/workers/{worker_id}")
            await wait_gone(bench, worker_id)
        assert error_of(await bench.chat(model="org/second"), 404)["code"] == "model_not_found"


async def test_a_download_ends_with_its_last_worker(hub: Hub, server: SmallHub, tmp_path: Path) -> None:
    publish(server, tmp_path, "org/second")
    go_on = stall(server, "org/second/resolve/")
    async with open_gateway(tmp_path, HELLO) as bench:
        url = worker_url(tmp_path, "s")
        worker_id = await add(bench, url, runtime_type="vllm", labels={"model_path": "org/second"})
        await trio.to_thread.run_sync(server.wait_asked, "org/second/resolve/")
        error = error_of(await bench.chat(model="org/second"), 503)
        assert error["code"] == "tokenizer_not_registered"
        assert (await bench.http.get("/readiness")).status_code == 200, "the gateway's own model is served"
        await bench.http.delete(f"/workers/{worker_id}")
        await wait_gone(bench, worker_id)
        assert error_of(await bench.chat(model="org/second"), 404)["code"] == "model_not_found"
        go_on.set()


async def test_put_changes_a_worker_s_model_once_that_is_there(hub: Hub, server: SmallHub, tmp_path: Path) -> None:
    publish(server, tmp_path, "org/second")
    async with open_gateway(tmp_path, HELLO) as bench:
        server.troubles.append(Trouble("/api/", status=503))
        answer = await bench.http.put(f"/workers/{_first_id(bench)}", json=_body(bench, "org/second"))
        assert answer.status_code == 503
        assert "answered 503" in answer.json()["error"]
        assert (await bench.chat()).status_code == 200
        worker_id = _first_id(bench)
        answer = await bench.http.put(f"/workers/{worker_id}", json=_body(bench, "org/second"))
        assert answer.status_code == 202
        # Two engines of one identity would take the input connection from each other, and a registration with it.
        bench.kill(bench.engine)
        bench.start_engine(HELLO)
        await wait_status(bench, worker_id, "ready")
        assert (await bench.chat(model="org/second")).status_code == 200


@pytest.mark.parametrize(
    ("repo", "files", "problem"),
    [("org/nowhere", None, "neither a directory here"), ("org/weights", CONTENTS["weights"], "has no tokenizer")],
    ids=["nowhere", "no-tokenizer"],
)
async def test_a_gateway_whose_own_model_cannot_be_had_ends(
    hub: Hub, server: SmallHub, tmp_path: Path, repo: str, files: dict[str, bytes] | None, problem: str
) -> None:
    if files is not None:
        server.add(repo, files)
    with pytest.raises(ExceptionGroup) as caught:
        async with open_gateway(tmp_path, HELLO, connect=False, model_path=repo, served_model_name=()) as bench:
            with trio.fail_after(PATIENCE_S):
                await bench.ended.wait()
            await trio.sleep_forever()
    [error] = caught.value.exceptions
    assert isinstance(error, ConfigError)
    assert problem in error.message
