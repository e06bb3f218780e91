"""Downloads with the real client library from a small hub over HTTP."""

from __future__ import annotations

import logging
import threading
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from smg_trio.core.errors import ConfigError
from smg_trio.hub.cache import CachedSnapshot, find_snapshot
from smg_trio.hub.download import Hub, Progress, download, pause_after
from smg_trio.hub.failures import HubUnavailable
from smg_trio.hub.names import HubName
from tests.small_hub import SmallHub, Trouble

from .conftest import FILES

NAME = HubName("org/model")
NEEDED = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json", "generation_config.json"}
PATIENCE_S = 20


async def fetch(
    hub: Hub, name: HubName = NAME, *, tokenizer: bool = True, progress: Progress | None = None, patient: bool = False
) -> CachedSnapshot:
    progress = progress or Progress(str(name))
    with trio.fail_after(PATIENCE_S):
        return await download(hub, name, tokenizer=tokenizer, option="--model-path", progress=progress, patient=patient)


async def test_the_small_files_come_and_nothing_else(hub: Hub, server: SmallHub) -> None:
    server.add(NAME.repo, FILES, large=frozenset({"tokenizer.json"}))
    progress = Progress(NAME.repo)
    found = await fetch(hub, progress=progress)
    assert server.files_asked() == NEEDED - {"tokenizer.json"}
    assert len([path for method, path in server.requests if "/cdn/" in path and method == "GET"]) == 1
    assert server.weights_asked == []
    assert {path.name for path in found.directory.iterdir()} == NEEDED
    assert all((found.directory / name).read_bytes() == FILES[name] for name in NEEDED)
    assert (progress.files_done, progress.files) == (5, 5)
    assert progress.size_done == progress.size == sum(len(FILES[name]) for name in NEEDED)
    assert str(progress) == "downloading org/model: 5 of 5 files, 0.0 of 0.0 MB"


async def test_what_was_downloaded_is_found_without_network(hub: Hub, server: SmallHub) -> None:
    files = {name: content for name, content in FILES.items() if name not in ("generation_config.json", "README.md")}
    server.add(NAME.repo, {name: files[name] for name in files if name != ".gitattributes"})
    found = await fetch(hub)
    cached = find_snapshot(hub.cache, NAME, tokenizer=True)
    assert cached is not None
    assert (cached.directory, cached.commit, cached.missing) == (found.directory, found.commit, ())


async def test_a_branch_a_tag_and_a_commit(hub: Hub, server: SmallHub) -> None:
    repository = server.add(NAME.repo, FILES)
    first = repository.branches["main"]
    second = repository.commit(FILES | {"config.json": b'{"model_type": "second"}'})
    repository.branches["v1"] = first
    for revision, commit in (("main", second), ("v1", first), (first, first)):
        name = HubName(NAME.repo, revision)
        assert (await fetch(hub, name)).commit == commit
        cached = find_snapshot(hub.cache, name, tokenizer=True)
        assert cached is not None
        assert cached.commit == commit


async def test_a_branch_that_has_moved_is_followed_when_it_is_looked_up(hub: Hub, server: SmallHub) -> None:
    repository = server.add(NAME.repo, FILES)
    before = await fetch(hub)
    after = repository.commit(FILES | {"config.json": b"{}"})
    assert (await fetch(hub)).commit == after != before.commit


async def test_only_what_is_missing_is_fetched(hub: Hub, server: SmallHub) -> None:
    server.add(NAME.repo, FILES)
    found = await fetch(hub)
    (found.directory / "config.json").unlink()
    server.requests.clear()
    assert (await fetch(hub)).fetched
    assert server.files_asked() <= {"config.json"}
    server.requests.clear()
    assert not (await fetch(hub)).fetched
    assert server.files_asked() == set()


async def test_without_a_tokenizer_of_its_own_the_settings_suffice(hub: Hub, server: SmallHub) -> None:
    server.add(NAME.repo, {"model.gguf": b"GGUF", "config.json": b"{}"})
    found = await fetch(hub, tokenizer=False)
    assert [path.name for path in found.directory.iterdir()] == ["config.json"]
    assert server.weights_asked == []


async def test_a_connection_that_is_cut_costs_nothing_but_time(hub: Hub, server: SmallHub, no_pauses: None) -> None:
    server.add(NAME.repo, FILES, large=frozenset({"tokenizer.json"}))
    server.troubles.append(Trouble("/cdn/", cut_after=10_000, method="GET"))
    server.troubles.append(Trouble("/config.json", cut_after=10, method="GET"))
    found = await fetch(hub, patient=True)
    assert {path.name: path.read_bytes() for path in found.directory.iterdir()} == {
        name: FILES[name] for name in NEEDED
    }
    assert len([path for method, path in server.requests if method == "GET" and "/cdn/" in path]) == 2


def test_pauses_grow_and_the_hub_s_word_counts() -> None:
    assert [pause_after(attempt, None) for attempt in range(8)] == [1, 2, 5, 10, 30, 60, 60, 60]
    assert (pause_after(0, 7), pause_after(3, 7), pause_after(0, 1e9)) == (7, 10, 600)


REFUSALS = {
    "nowhere": ("org/nowhere", {}, "neither a directory here nor a repository on", "hf auth login"),
    "private": ("org/private", {"private": True}, "or it is private", "set HF_TOKEN"),
    "gated": ("org/gated", {"gated": True}, "is gated", "Ask for access on http://127.0.0.1"),
    "disabled": ("org/disabled", {"disabled": True}, "has been disabled", "another repository"),
}


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("token", ["", "hf_other"])
async def test_refusals_say_what_to_do(
    hub: Hub, server: SmallHub, case: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, options, problem, remedy = REFUSALS[case]
    if options:
        server.add(repo, FILES, **options)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ConfigError) as caught:
        await fetch(hub, HubName(repo))
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy
    assert server.weights_asked == []


@pytest.mark.parametrize("options", [{"private": True}, {"gated": True}])
async def test_the_token_of_the_environment_opens(
    hub: Hub, server: SmallHub, options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(NAME.repo, FILES, **options)
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert (await fetch(hub)).fetched


async def test_a_token_that_is_none(hub: Hub, server: SmallHub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.add(NAME.repo, FILES)
    monkeypatch.setenv("HF_TOKEN", "nonsense")
    with pytest.raises(ConfigError, match="does not accept the token"):
        await fetch(hub)


async def test_a_revision_that_is_none(hub: Hub, server: SmallHub) -> None:
    server.add(NAME.repo, FILES)
    with pytest.raises(ConfigError, match="has no revision 'v9'") as caught:
        await fetch(hub, HubName(NAME.repo, "v9"))
    assert caught.value.option == "--revision"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"config.json": b"{}", "model.safetensors": b"0"}, "has no tokenizer"),
        ({"model-Q4_K_M.gguf": b"GGUF", "README.md": b""}, "is GGUF only"),
        ({}, "has no tokenizer"),
    ],
    ids=["weights", "gguf", "empty"],
)
async def test_without_a_tokenizer_nothing_is_fetched(
    hub: Hub, server: SmallHub, files: dict[str, bytes], problem: str
) -> None:
    server.add(NAME.repo, files)
    with pytest.raises(ConfigError, match=problem) as caught:
        await fetch(hub)
    assert "--tokenizer-path" in caught.value.remedy
    assert server.files_asked() == set()
    assert server.weights_asked == []


async def test_a_tokenizer_that_can_be_none_is_not_fetched(
    hub: Hub, server: SmallHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(NAME.repo, FILES)
    monkeypatch.setattr("smg_trio.hub.download.LARGEST_FILE", 1000)
    with pytest.raises(ConfigError, match="more than a tokenizer ever has"):
        await fetch(hub)
    assert server.files_asked() == set()


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_hub_that_is_busy_is_asked_again(
    hub: Hub, server: SmallHub, status: int, caplog: pytest.LogCaptureFixture, no_pauses: None
) -> None:
    server.add(NAME.repo, FILES)
    server.troubles.append(Trouble("/api/models", times=3, status=status, headers={"Retry-After": "0"}))
    with caplog.at_level(logging.WARNING):
        assert (await fetch(hub, patient=True)).fetched
    assert len([one for one in caplog.messages if f"answered {status} when asked for 'org/model'." in one]) == 3


async def test_who_is_not_patient_is_told(hub: Hub, server: SmallHub) -> None:
    server.troubles.append(Trouble("/api/models", times=9, status=503))
    with pytest.raises(HubUnavailable, match="answered 503"):
        await fetch(hub)


async def test_a_hub_that_is_not_there_is_tried_again(
    hub: Hub, caplog: pytest.LogCaptureFixture, no_pauses: None
) -> None:
    unreachable = Hub("http://127.0.0.1:9", hub.cache)
    progress = Progress(NAME.repo)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(fetch, unreachable, progress=progress, patient=True))
        with trio.fail_after(PATIENCE_S):
            while "attempt 3" not in str(progress):
                await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert "'org/model' is not a directory here and cannot be fetched from http://127.0.0.1:9 (" in str(progress)
    assert "trying again in" in str(progress)
    assert "Connection refused" in str(progress)


async def test_a_cache_that_may_do_does_where_the_hub_is_not_there(hub: Hub, server: SmallHub, tmp_path: Path) -> None:
    files = {name: FILES[name] for name in NEEDED - {"generation_config.json"}}
    server.add(NAME.repo, files)
    found = await fetch(hub)
    noted = found.directory.parents[1] / ".no_exist" / found.commit / "generation_config.json"
    noted.unlink()
    cached = find_snapshot(hub.cache, NAME, tokenizer=True)
    assert cached is not None
    assert cached.missing == ("generation_config.json",)
    unreachable = Hub("http://127.0.0.1:9", hub.cache)
    again = await fetch(unreachable, patient=True)
    assert (again.commit, again.fetched) == (found.commit, False)


async def test_a_slow_hub_holds_unreachable_else_up_and_can_be_left(hub: Hub, server: SmallHub) -> None:
    server.add(NAME.repo, FILES)
    stall = threading.Event()
    server.troubles.append(Trouble("/resolve/", times=99, stall=stall))
    progress = Progress(NAME.repo)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(fetch, hub, progress=progress))
        await trio.to_thread.run_sync(server.wait_asked, "/resolve/")
        assert str(progress).startswith("downloading org/model: 0 of 5 files")
        nursery.cancel_scope.cancel()
    stall.set()


async def test_two_at_once_have_the_same_files(hub: Hub, server: SmallHub) -> None:
    server.add(NAME.repo, FILES, large=frozenset({"tokenizer.json"}))
    found: list[CachedSnapshot] = []

    async def one() -> None:
        found.append(await fetch(Hub(hub.endpoint, hub.cache)))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(one)
    assert len({snapshot.directory for snapshot in found}) == 1
    assert {path.name: path.read_bytes() for path in found[0].directory.iterdir()} == {
        name: FILES[name] for name in NEEDED
    }
