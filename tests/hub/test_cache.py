"""What the hub's cache holds, in the states that engines and downloads leave it in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smg_trio.core.errors import ConfigError
from smg_trio.hub.cache import A_TOKENIZER, CachedSnapshot, find_snapshot
from smg_trio.hub.download import Hub
from smg_trio.hub.locating import FilesAt, Wanted, find
from smg_trio.hub.names import HubName

NAME = HubName("org/model")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TEMPLATE = {"tokenizer_config.json": '{"chat_template": "{{ messages }}"}'}
USUAL = {"config.json": "{}", "tokenizer.json": "{}", "generation_config.json": "{}", **TEMPLATE}


def fill(cache: Path, files: dict[str, str], *, absent: tuple[str, ...] = (), listed: list[str] | None = None) -> Path:
    """A cache as the library lays it out."""
    folder = cache / "models--org--model"
    snapshot = folder / "snapshots" / COMMIT
    for name, text in files.items():
        blob = folder / "blobs" / name.replace("/", "-")
        for path in (blob, snapshot / name):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_text(text)
        (snapshot / name).symlink_to(blob)
    for name in absent:
        file = folder / ".no_exist" / COMMIT / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (folder / "refs" / "refs" / "pr").mkdir(parents=True)
    for ref in ("main", "refs/pr/1"):
        (folder / "refs" / ref).write_text(COMMIT)
    if listed is not None:
        (folder / "trees").mkdir()
        tree = {"format_version": 1, "files": {name: {"size": 1, "blob_id": "x"} for name in listed}}
        (folder / "trees" / f"{COMMIT}.json").write_text(json.dumps(tree))
    return snapshot


def found(cache: Path, name: HubName = NAME, *, tokenizer: bool = True) -> CachedSnapshot:
    snapshot = find_snapshot(cache, name, tokenizer=tokenizer)
    assert snapshot is not None
    return snapshot


def test_by_branch_by_request_and_by_commit(tmp_path: Path) -> None:
    snapshot = fill(tmp_path, USUAL)
    for revision in ("main", "refs/pr/1", COMMIT):
        assert found(tmp_path, HubName(NAME.repo, revision)) == CachedSnapshot(snapshot, COMMIT, True, ())
    assert find_snapshot(tmp_path, HubName(NAME.repo, "v1"), tokenizer=True) is None
    assert find_snapshot(tmp_path, HubName("org/other"), tokenizer=True) is None


def without(*names: str) -> dict[str, str]:
    return {name: text for name, text in USUAL.items() if name not in names}


@pytest.mark.parametrize(
    ("files", "absent", "missing", "usable"),
    [
        (without("tokenizer.json"), (), (A_TOKENIZER,), False),
        (without("config.json"), (), ("config.json",), False),
        (without("generation_config.json"), (), ("generation_config.json",), True),
        (without("generation_config.json"), ("generation_config.json",), (), True),
        (without("generation_config.json") | {"README.md": ""}, (), (), True),
        (without("tokenizer_config.json"), (), ("tokenizer_config.json", "chat_template.jinja"), True),
        (USUAL | {"tokenizer_config.json": "{}"}, (), ("chat_template.jinja",), True),
        (USUAL | {"tokenizer_config.json": "{}"}, ("chat_template.jinja",), (), True),
        (USUAL | {"tokenizer_config.json": "{}", "chat_template.jinja": ""}, (), (), True),
        (USUAL | {"tokenizer_config.json": "{}", "chat_template.json": "{}"}, (), (), True),
        ({"tekken.json": "{}", "params.json": "{}"}, ("generation_config.json",), (), True),
        ({"model.safetensors": ""}, (), (A_TOKENIZER, "config.json", "tokenizer_config.json",
                                         "generation_config.json", "chat_template.jinja"), False),
    ],
)  # fmt: skip
def test_what_is_missing_judging_by_traces(
    tmp_path: Path, files: dict[str, str], absent: tuple[str, ...], missing: tuple[str, ...], usable: bool
) -> None:
    fill(tmp_path, files, absent=absent)
    seen = found(tmp_path)
    assert (seen.missing, seen.usable) == (missing, usable)


def test_a_listing_tells_exactly(tmp_path: Path) -> None:
    fill(tmp_path, USUAL, listed=[*USUAL, "model.safetensors", "1_Pooling/config.json", "tokenizer.model"])
    assert found(tmp_path).missing == ("1_Pooling/config.json",)
    assert found(tmp_path).usable


def test_a_link_without_its_blob_is_no_file(tmp_path: Path) -> None:
    fill(tmp_path, USUAL)
    (tmp_path / "models--org--model" / "blobs" / "config.json").unlink()
    assert found(tmp_path).missing == ("config.json",)


@pytest.mark.parametrize("content", ["", "main", COMMIT[:-1], "../../../etc", "\xff"])
def test_a_broken_reference_is_none(tmp_path: Path, content: str) -> None:
    fill(tmp_path, USUAL)
    (tmp_path / "models--org--model" / "refs" / "main").write_text(content, encoding="latin-1")
    assert find_snapshot(tmp_path, NAME, tokenizer=True) is None


@pytest.mark.parametrize("content", ["", "[]", '{"files": 3}', "{}"])
def test_a_broken_listing_is_none(tmp_path: Path, content: str) -> None:
    fill(tmp_path, USUAL, listed=[])
    (tmp_path / "models--org--model" / "trees" / f"{COMMIT}.json").write_text(content)
    assert found(tmp_path).missing == ()


def test_where_the_tokenizer_is_elsewhere_it_is_not_missing(tmp_path: Path) -> None:
    fill(tmp_path, {"config.json": "{}", "generation_config.json": "{}"})
    assert found(tmp_path, tokenizer=False).missing == ()


def at(wanted: Wanted, cache: Path, *, offline: bool = False) -> FilesAt | None:
    return find(wanted, Hub("http://127.0.0.1:9", cache, offline))


def test_a_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = fill(tmp_path / "cache", USUAL)
    monkeypatch.chdir(tmp_path)
    wanted = Wanted(text="org/model")
    assert at(wanted, tmp_path / "cache") == FilesAt(snapshot, "cache", COMMIT)
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert at(wanted, tmp_path / "cache") == FilesAt(Path("org/model"), "directory")


def test_a_directory_that_is_a_snapshot_has_its_commit(tmp_path: Path) -> None:
    snapshot = fill(tmp_path, USUAL)
    assert at(Wanted(text=str(snapshot)), tmp_path) == FilesAt(snapshot, "directory", COMMIT)


def test_offline_what_is_there_must_do(tmp_path: Path) -> None:
    snapshot = fill(tmp_path, without("generation_config.json"))
    wanted = Wanted(text="org/model")
    assert at(wanted, tmp_path) is None
    assert at(wanted, tmp_path, offline=True) == FilesAt(snapshot, "cache", COMMIT)


@pytest.mark.parametrize(
    ("files", "missing"), [(without("config.json"), "config.json"), (without("tokenizer.json"), "a tokenizer")]
)
def test_offline_and_not_there(tmp_path: Path, files: dict[str, str], missing: str) -> None:
    fill(tmp_path, files)
    with pytest.raises(ConfigError) as caught:
        at(Wanted(text="org/model"), tmp_path, offline=True)
    assert f"(missing: {missing}), and HF_HUB_OFFLINE forbids downloads." in caught.value.problem
    assert "hf download org/model" in caught.value.remedy


def test_a_repository_known_to_have_no_tokenizer_is_not_asked_for(tmp_path: Path) -> None:
    fill(tmp_path, {"config.json": "{}"}, listed=["config.json", "model.safetensors"])
    with pytest.raises(ConfigError, match="has no tokenizer"):
        at(Wanted(text="org/model"), tmp_path)


def test_files_of_their_own(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "model.gguf"):
        (tmp_path / name).touch()
    tokenizer, gguf = str(tmp_path / "tokenizer.json"), str(tmp_path / "model.gguf")
    assert at(Wanted(text=tokenizer, only_tokenizer=True), tmp_path) == FilesAt(Path(tokenizer), "directory")
    assert at(Wanted(text=gguf, tokenizer=False), tmp_path) == FilesAt(tmp_path, "directory")
    with pytest.raises(ConfigError, match="is GGUF only"):
        at(Wanted(text=gguf), tmp_path)
    with pytest.raises(ConfigError, match="is neither a directory"):
        at(Wanted(text=tokenizer), tmp_path)
