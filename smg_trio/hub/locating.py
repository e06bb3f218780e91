"""Where a model's files are: in a directory, in the hub's cache, or on the hub.

`find` looks on this disk only, and decides without network whether a download is needed; `fetch` downloads.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smg_trio.hub.cache import COMMIT, find_snapshot
from smg_trio.hub.download import Hub, Progress, download
from smg_trio.hub.failures import gguf_file, no_tokenizer, not_a_model, not_cached
from smg_trio.hub.names import HubName, parse_hub_name
from smg_trio.text.model_file_names import find_tokenizer_files

Source = Literal["directory", "cache", "download"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Files that somebody named.

    Attributes:
        text: a directory or a name on the hub, as the user wrote it.
        option: what named it, for messages.
        revision: from a setting of its own.
        tokenizer: whether the tokenizer is to come from here.
        only_tokenizer: nothing else is to come from here, so that a tokenizer's file will do.
    """

    text: str
    option: str = "--model-path"
    revision: str | None = None
    tokenizer: bool = True
    only_tokenizer: bool = False


@dataclass(frozen=True, slots=True)
class FilesAt:
    """Where files were found.

    Attributes:
        path: the directory, or a tokenizer's own file.
        source: how they came there.
        commit: of the repository; None for a directory that is no snapshot of one.
    """

    path: Path
    source: Source
    commit: str | None = None


def hub_of_environment() -> Hub:
    """The hub and the cache that the environment names (HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE)."""
    # Imported here: a start with a directory needs nothing of it.
    from huggingface_hub import constants

    return Hub(constants.ENDPOINT, Path(constants.HF_HUB_CACHE), constants.HF_HUB_OFFLINE)


def find(wanted: Wanted, hub: Hub | None = None) -> FilesAt | None:
    """Where the files are on this disk; None if they have to be downloaded. Blocking, quick; never asks the network.

    Raises ConfigError for what can be no model, and, where downloads are forbidden, for what is not there.
    """
    # Not `Path.expanduser` and `Path.exists`, which raise for some of what clients may send.
    path = os.path.expanduser(wanted.text)
    if os.path.exists(path):
        return _find_path(Path(path), wanted)
    name = _hub_name(wanted)
    hub = hub or hub_of_environment()
    cached = find_snapshot(hub.cache, name, tokenizer=wanted.tokenizer)
    if cached is None:
        if hub.offline:
            raise not_cached(name, ("config.json", "a tokenizer"), hub.cache, wanted.option)
        return None
    if wanted.tokenizer and cached.listed is not None and find_tokenizer_files(cached.listed) is None:
        raise no_tokenizer(name, cached.listed, wanted.option)
    if not cached.missing or (hub.offline and cached.usable):
        return FilesAt(cached.directory, "cache", cached.commit)
    if hub.offline:
        raise not_cached(name, cached.missing, hub.cache, wanted.option)
    return None


def _find_path(path: Path, wanted: Wanted) -> FilesAt:
    if path.is_dir():
        snapshot = path.resolve()
        is_snapshot = snapshot.parent.name == "snapshots" and COMMIT.fullmatch(snapshot.name)
        return FilesAt(path, "directory", snapshot.name if is_snapshot else None)
    if path.suffix == ".gguf":
        if wanted.tokenizer:
            raise gguf_file(wanted.text, wanted.option)
        return FilesAt(path.parent, "directory")  # what is beside the weights, if anything is
    if wanted.only_tokenizer:
        return FilesAt(path, "directory")
    raise not_a_model(wanted.text, wanted.option)


def _hub_name(wanted: Wanted) -> HubName:
    name = parse_hub_name(wanted.text, wanted.revision, option=wanted.option)
    if name is None:
        raise not_a_model(wanted.text, wanted.option)
    return name


async def fetch(wanted: Wanted, progress: Progress, hub: Hub | None = None, *, patient: bool = True) -> FilesAt:
    """Download what `find` did not find; `patient` and what is raised are `download`'s."""
    snapshot = await download(
        hub or hub_of_environment(),
        _hub_name(wanted),
        tokenizer=wanted.tokenizer,
        option=wanted.option,
        progress=progress,
        patient=patient,
    )
    return FilesAt(snapshot.directory, "download" if snapshot.fetched else "cache", snapshot.commit)
