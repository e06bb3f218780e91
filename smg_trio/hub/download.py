"""Fetches the small files of a repository with `huggingface_hub`, in a thread. Never weights.

What is fetched is named file by file from `text.model_file_names`, so nothing else can come. The library honours the
environment (HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, proxies, certificates), resumes cut downloads and locks the cache
against other processes, engines among them. It is imported here only: it brings an HTTP client with it (0.2 s).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from smg_trio import __version__
from smg_trio.core.errors import ConfigError
from smg_trio.hub.cache import (
    OFTEN_THERE,
    CachedSnapshot,
    file_names,
    files_to_have,
    find_snapshot,
    repository_folder,
)
from smg_trio.hub.failures import HubUnavailable, explain, no_tokenizer, too_large
from smg_trio.text.model_file_names import find_tokenizer_files

if TYPE_CHECKING:
    from smg_trio.hub.names import HubName

logger = logging.getLogger("smg_trio.hub")

LARGEST_FILE: Final = 512 * 1024 * 1024
"""Bytes. The largest vocabularies have 40 MB; what is larger than this is none, whatever it is called."""
PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_LONGEST_PAUSE_S: Final = 600.0
_DOWNLOADS: Final = 4
_MB: Final = 1_000_000


@dataclass(slots=True)
class Progress:
    """How far a download has come; written by its thread, read by any task."""

    name: str
    files: int = 0
    files_done: int = 0
    size: int = 0
    size_done: int = 0
    note: str = ""

    def __str__(self) -> str:
        if self.note:
            return self.note
        if not self.files:
            return f"looking for {self.name} on the hub"
        done, size = self.size_done / _MB, self.size / _MB
        return f"downloading {self.name}: {self.files_done} of {self.files} files, {done:.1f} of {size:.1f} MB"


@dataclass(frozen=True, slots=True)
class Hub:
    """Where models come from.

    Attributes:
        endpoint: URL of the hub.
        cache: directory of all repositories on this disk.
        offline: nothing may be downloaded.
    """

    endpoint: str
    cache: Path
    offline: bool = False
    limiter: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(_DOWNLOADS), compare=False)


@dataclass(frozen=True, slots=True)
class _Listing:
    """All files of a repository at a commit, with their sizes where the hub says them."""

    commit: str
    sizes: Mapping[str, int | None]


async def download(
    hub: Hub, name: HubName, *, tokenizer: bool, option: str, progress: Progress, patient: bool = True
) -> CachedSnapshot:
    """Bring what is missing of a repository into the cache.

    Args:
        hub: where from and where to.
        name: which repository.
        tokenizer: whether the tokenizer is to come from it too.
        option: what named it, for messages.
        progress: kept up to date.
        patient: try again without limit while the hub cannot be reached, unless the cache has enough to go on with.

    Raises ConfigError for what no second try can mend; HubUnavailable only if not `patient`. Cancelled, the file that
    is being fetched is finished by a thread that is not waited for.
    """
    attempt = 0
    while True:
        try:
            return await _in_thread(hub, partial(_fetch_missing, hub, name, tokenizer, option, progress))
        except HubUnavailable as error:
            cached = find_snapshot(hub.cache, name, tokenizer=tokenizer)
            if cached is not None and cached.usable:
                logger.warning("%s Going on with what the cache has of %s.", error.message, name)
                return cached
            if not patient:
                raise
            pause_s = pause_after(attempt, error.retry_after_s)
            attempt += 1
            progress.note = f"{error.message} (attempt {attempt}; trying again in {pause_s:g} s)"
            logger.warning("%s Trying again in %g s.", error.message, pause_s)
            await trio.sleep(pause_s)


def pause_after(attempt: int, asked_for_s: float | None) -> float:
    """Seconds until the next attempt; `attempt`: 0.. the one that failed, `asked_for_s`: by the hub."""
    own_s = PAUSES_S[min(attempt, len(PAUSES_S) - 1)]
    return min(max(own_s, asked_for_s or 0.0), _LONGEST_PAUSE_S)


async def _in_thread(hub: Hub, work: Callable[[threading.Event], CachedSnapshot]) -> CachedSnapshot:
    left = threading.Event()
    try:
        return await trio.to_thread.run_sync(work, left, abandon_on_cancel=True, limiter=hub.limiter)
    finally:
        left.set()


def _fetch_missing(
    hub: Hub, name: HubName, tokenizer: bool, option: str, progress: Progress, left: threading.Event
) -> CachedSnapshot:
    """One attempt. Raises ConfigError, HubUnavailable."""
    began = time.monotonic()
    try:
        listing = _list_files(hub, name)
        progress.note = ""
        wanted = files_to_have(listing.sizes, tokenizer=tokenizer)
        if tokenizer and find_tokenizer_files(listing.sizes) is None:
            raise no_tokenizer(name, list(listing.sizes), option)
        directory = repository_folder(hub.cache, name) / "snapshots" / listing.commit
        present = file_names(directory)
        missing = [file for file in wanted if file not in present]
        _announce(hub, name, listing, missing, option, progress)
        for file in missing:
            if left.is_set():
                break
            _fetch_file(hub, name, listing.commit, file)
            progress.files_done += 1
            progress.size_done += listing.sizes[file] or 0
            logger.debug("%s: %s is there, %s", name, file, progress)
        directory.mkdir(parents=True, exist_ok=True)
        if not left.is_set():
            _leave_traces(hub, name, listing, wanted)
    except (ConfigError, HubUnavailable):
        raise
    except Exception as error:
        raise explain(error, name, option=option, endpoint=hub.endpoint, cache=hub.cache) from error
    if missing:
        logger.info(
            "%s: %d files, %.1f MB, downloaded in %.1f s (commit %s)",
            name, len(missing), progress.size / _MB, time.monotonic() - began, listing.commit,
        )  # fmt: skip
    return CachedSnapshot(directory, listing.commit, True, (), frozenset(listing.sizes), fetched=bool(missing))


def _leave_traces(hub: Hub, name: HubName, listing: _Listing, fetched: Sequence[str]) -> None:
    """Have the library note which of the usual files the repository lacks and which commit the revision is.

    So the next start need not ask. The revision comes last: who finds it in the cache finds the files too.
    """
    from huggingface_hub.errors import EntryNotFoundError

    lacking = [file for file in OFTEN_THERE if file not in listing.sizes]
    noted = file_names(repository_folder(hub.cache, name) / ".no_exist" / listing.commit)
    asked = [(listing.commit, file) for file in lacking if file not in noted]
    for revision, file in [*asked, (name.revision, fetched[0] if fetched else lacking[0])]:
        with suppress(EntryNotFoundError):
            _fetch_file(hub, name, revision, file)


def _announce(hub: Hub, name: HubName, listing: _Listing, missing: list[str], option: str, progress: Progress) -> None:
    for file in missing:
        if (listing.sizes[file] or 0) > LARGEST_FILE:
            raise too_large(name, file, listing.sizes[file] or 0, option)
    progress.files, progress.files_done = len(missing), 0
    progress.size, progress.size_done = sum(listing.sizes[file] or 0 for file in missing), 0
    if missing:
        logger.info(
            "downloading %d small files (%.1f MB) of %s from %s: %s",
            len(missing), progress.size / _MB, name, hub.endpoint, ", ".join(missing),
        )  # fmt: skip


def _list_files(hub: Hub, name: HubName) -> _Listing:
    from huggingface_hub import HfApi, constants

    api = HfApi(endpoint=hub.endpoint, library_name="smg-trio", library_version=__version__)
    timeout = float(constants.HF_HUB_ETAG_TIMEOUT)
    info = api.model_info(name.repo, revision=name.revision, files_metadata=True, timeout=timeout)
    if info.sha is None:
        raise HubUnavailable(f"{hub.endpoint} does not say which commit of '{name}' it has.")
    return _Listing(info.sha, {file.rfilename: file.size for file in info.siblings or ()})


def _fetch_file(hub: Hub, name: HubName, revision: str, file: str) -> None:
    from huggingface_hub import hf_hub_download

    # It is documented, and left out of the names that the package exports to type checkers.
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    if not sys.stderr.isatty():
        disable_progress_bars()
    hf_hub_download(
        name.repo,
        file,
        revision=revision,
        endpoint=hub.endpoint,
        cache_dir=hub.cache,
        library_name="smg-trio",
        library_version=__version__,
    )
