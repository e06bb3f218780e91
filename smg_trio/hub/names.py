"""Names of repositories on the hub: ``ORG/NAME``, ``ORG/NAME@REVISION``. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from smg_trio.core.errors import ConfigError

DEFAULT_REVISION: Final = "main"

_PART: Final = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
_NAME: Final = re.compile(rf"(?P<repo>{_PART}(?:/{_PART})?)(?::[\w.-]+)?(?:@(?P<revision>\S+))?", re.ASCII)
_REVISION: Final = re.compile(r"[\w.+#-]+(?:/[\w.+#-]+)*", re.ASCII)
_LONGEST_REPO: Final = 96
_LONGEST_REVISION: Final = 200
_LONGEST: Final = 400


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository at a revision: a branch, a tag, a commit or ``refs/pr/N``."""

    repo: str
    revision: str = DEFAULT_REVISION

    def __str__(self) -> str:
        return self.repo if self.revision == DEFAULT_REVISION else f"{self.repo}@{self.revision}"


def parse_hub_name(text: str, revision: str | None = None, *, option: str = "--model-path") -> HubName | None:
    """The repository that `text` names, or None if it cannot be the name of one.

    Names without an organisation (``gpt2``) are accepted, and vLLM's ``ORG/NAME:QUANTIZATION`` for GGUF files, whose
    part after the colon says nothing about a tokenizer.

    Args:
        text: as the user wrote it.
        revision: from a setting of its own, if there is one.
        option: what named it, for messages.

    Raises ConfigError for a revision that is none, and for two that differ.
    """
    found = _matched(text)
    if found is None or not _is_repository(found["repo"]):
        return None
    named = found["revision"]
    if named and revision and named != revision:
        raise ConfigError(option, f"'{text}' names another revision than --revision {revision}.", "Give one of them.")
    chosen = named or revision or DEFAULT_REVISION
    if not is_revision(chosen):
        raise ConfigError(
            option if named else "--revision", f"'{chosen}' is not a revision.", "Name a branch, a tag or a commit."
        )
    return HubName(found["repo"], chosen)


def without_revision(text: str) -> str:
    """The name without ``@REVISION``."""
    found = _matched(text)
    return text.removesuffix(f"@{found['revision']}") if found and found["revision"] else text


def is_revision(text: str) -> bool:
    """Whether a branch, tag or commit may be called that; it becomes part of file names and URLs."""
    return len(text) <= _LONGEST_REVISION and ".." not in text and bool(_REVISION.fullmatch(text))


def _matched(text: str) -> re.Match[str] | None:
    return _NAME.fullmatch(text) if len(text) <= _LONGEST else None


def _is_repository(name: str) -> bool:
    return len(name) <= _LONGEST_REPO and not any(mark in name for mark in ("--", "..")) and not name.endswith(".git")
