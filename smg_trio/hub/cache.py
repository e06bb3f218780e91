"""What the hub's cache on this disk holds of a repository, read without network and without the library.

The layout is `huggingface_hub`'s, which documents it (0.34 to 2.4):

```
models--ORG--NAME/refs/REVISION              the commit that a branch or tag had when it was last looked up
models--ORG--NAME/snapshots/COMMIT/FILE      links to blobs
models--ORG--NAME/.no_exist/COMMIT/FILE      files that were asked for and are not in the repository
models--ORG--NAME/trees/COMMIT.json          all files of the commit, since 2.0, after a download of several
```

An engine on the same host has nearly always filled it. Where no listing of the commit is there, whether the cache holds
all that the repository has is concluded from what an engine or a whole download leaves behind.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from smg_trio.text.model_file_names import find_tokenizer_files, needed_files

if TYPE_CHECKING:
    from smg_trio.hub.names import HubName

COMMIT: Final = re.compile(r"[0-9a-f]{40}")
A_TOKENIZER: Final = "a tokenizer"
"""Stands for the name of its files where these are not known."""

OFTEN_THERE: Final = ("config.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
"""Files that models may lack, and whose lack shows only in answers."""
_ONLY_IN_WHOLE_DOWNLOADS: Final = (".gitattributes", "README.md")
"""No engine asks for them: where they are, the whole repository was fetched."""
_DEEPEST: Final = 2
"""Folders below a snapshot that are looked into; no file that is needed lies deeper."""


@dataclass(frozen=True, slots=True)
class CachedSnapshot:
    """A repository at one commit, as far as the cache has it.

    Attributes:
        directory: of the snapshot.
        commit: 40 hexadecimal digits.
        usable: the files without which a model cannot be served are there.
        missing: needed files that are not there, or may be in the repository and are not known to be.
        listed: all files of the repository, None where the cache does not say.
        fetched: something has been downloaded just now.
    """

    directory: Path
    commit: str
    usable: bool
    missing: tuple[str, ...]
    listed: frozenset[str] | None = None
    fetched: bool = False


def repository_folder(cache: Path, name: HubName) -> Path:
    """Where the cache keeps a repository."""
    return cache / "--".join(["models", *name.repo.split("/")])


def find_snapshot(cache: Path, name: HubName, *, tokenizer: bool) -> CachedSnapshot | None:
    """What the cache has of a repository at a revision, or None if that revision never was looked up.

    Args:
        cache: the directory of all repositories.
        name: which.
        tokenizer: whether the tokenizer is to come from it too.
    """
    folder = repository_folder(cache, name)
    commit = _commit_of(folder, name.revision)
    if commit is None:
        return None
    directory = folder / "snapshots" / commit
    present = file_names(directory)
    listed = _listed(folder / "trees" / f"{commit}.json")
    if listed is None:
        missing = _probably_missing(present, file_names(folder / ".no_exist" / commit), directory, tokenizer)
    else:
        missing = tuple(file for file in files_to_have(listed, tokenizer=tokenizer) if file not in present)
    return CachedSnapshot(
        directory=directory,
        commit=commit,
        usable=_is_usable(present, missing, tokenizer),
        missing=missing,
        listed=listed,
    )


def files_to_have(names: Collection[str], *, tokenizer: bool) -> tuple[str, ...]:
    """Of a repository's files those that are fetched; without the tokenizer's own where that comes from elsewhere."""
    needed = needed_files(names)
    main = None if tokenizer else find_tokenizer_files(names)
    return needed if main is None else tuple(name for name in needed if name not in main.names)


def file_names(directory: Path) -> frozenset[str]:
    """All files below a directory, as ``folder/file``; links that lead nowhere are none."""
    names: list[str] = []
    for folder, folders, files in os.walk(directory):
        where = Path(folder).relative_to(directory)
        if len(where.parts) >= _DEEPEST:
            folders.clear()
        names += [(where / file).as_posix() for file in files if os.path.exists(os.path.join(folder, file))]
    return frozenset(names)


def _commit_of(folder: Path, revision: str) -> str | None:
    try:
        commit = (folder / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        commit = revision
    return commit if COMMIT.fullmatch(commit) else None


def _listed(file: Path) -> frozenset[str] | None:
    try:
        files = json.loads(file.read_text(encoding="utf-8"))["files"]
        return frozenset(str(name) for name in files)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_usable(present: Collection[str], missing: Collection[str], tokenizer: bool) -> bool:
    if tokenizer and find_tokenizer_files(present) is None:
        return False
    return "config.json" in present or "config.json" not in missing


def _probably_missing(
    present: Collection[str], absent: Collection[str], directory: Path, tokenizer: bool
) -> tuple[str, ...]:
    """What the repository may have beyond what is present, judging by traces; `absent` is known not to exist."""
    found = find_tokenizer_files(present)
    wanted: tuple[str, ...] = OFTEN_THERE if tokenizer else ("config.json", "generation_config.json")
    if any(name in present for name in _ONLY_IN_WHOLE_DOWNLOADS):
        wanted = ("config.json",)
    known = {*present, *absent}
    if found is not None and found.format == "tekken":  # Mistral's own format
        known |= {"tokenizer_config.json", "chat_template.jinja"}
        known |= {"config.json"} if "params.json" in present else set()
    if _has_template(present, directory):
        known.add("chat_template.jinja")
    missing = [name for name in wanted if name not in known]
    return (A_TOKENIZER, *missing) if tokenizer and found is None else tuple(missing)


def _has_template(present: Collection[str], directory: Path) -> bool:
    if any(fnmatchcase(name, "*.jinja") or name == "chat_template.json" for name in present):
        return True
    try:
        settings = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and bool(settings.get("chat_template"))
