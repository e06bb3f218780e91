"""Which plug-ins are installed, from the metadata of distributions: nothing of theirs is imported.

Only files that mention the asked group and name are parsed, so that others installed beside cost a look into a small
file each, once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from smg_trio.plugins.kinds import KINDS, Kind


@dataclass(frozen=True, slots=True)
class Installed:
    """One entry point of one of our groups."""

    kind: Kind
    name: str
    entry: metadata.EntryPoint
    metadata: metadata.Distribution

    @property
    def distribution(self) -> str:
        """Name of the distribution that brings it."""
        return self.metadata.name

    @property
    def origin(self) -> str:
        """Distribution and version."""
        return f"{self.metadata.name} {self.metadata.version}"


class InstalledPlugins:
    """What is installed, as it was when it was first asked for. Reads files, and imports nothing."""

    def __init__(self) -> None:
        self._mentioned: list[tuple[metadata.Distribution, str]] | None = None

    def of(self, kind: Kind, name: str = "") -> list[Installed]:
        """The entry points of a kind, or those called `name`."""
        return list(self._found((kind,), name))

    def all(self) -> list[Installed]:
        """The entry points of all kinds."""
        return list(self._found(KINDS, ""))

    def _found(self, kinds: tuple[Kind, ...], wanted: str) -> Iterator[Installed]:
        """In the order of ``sys.path``; of a distribution that is there twice, as Python does, the first."""
        if self._mentioned is None:
            found = ((folder, text) for folder, text in _entry_point_files() if "[smg_trio." in text)
            self._mentioned = [(metadata.Distribution.at(folder), text) for folder, text in found]
        seen: set[str] = set()
        for distribution, text in self._mentioned:
            if wanted not in text or not any(f"[{kind.group}]" in text for kind in kinds):
                continue
            name = normalized(distribution.name)
            if name in seen:
                continue
            seen.add(name)
            for kind in kinds:
                for entry in distribution.entry_points.select(group=kind.group):
                    if wanted in ("", entry.name):
                        yield Installed(kind, entry.name, entry, distribution)


def _entry_point_files() -> Iterator[tuple[str, str]]:
    """The folder of each distribution's metadata, and the text of its entry points.

    `importlib.metadata.distributions` would say the same at five times the cost, which every start would pay.
    """
    for path in dict.fromkeys(sys.path):
        try:
            with os.scandir(path or ".") as entries:
                folders = [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue
        for folder in folders:
            try:
                with open(os.path.join(folder, "entry_points.txt"), encoding="utf-8", errors="replace") as file:
                    yield folder, file.read()
            except OSError:
                continue


def normalized(distribution: str) -> str:
    """A distribution's name as names of distributions are compared."""
    return distribution.lower().replace("-", "_").replace(".", "_")
