"""Which plug-ins are installed, from the metadata of distributions: nothing of theirs is imported.

Only files that mention the asked group are parsed, so that others installed beside cost a look into a small file each.
"""

from __future__ import annotations

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


def installed(kind: Kind, name: str = "") -> list[Installed]:
    """The entry points of a kind, or those called `name`; of a distribution that is on the path twice, the first's."""
    return list(_found((kind,), name))


def all_installed() -> list[Installed]:
    """The entry points of all kinds."""
    return list(_found(KINDS, ""))


def _found(kinds: tuple[Kind, ...], wanted: str) -> Iterator[Installed]:
    seen: set[str] = set()
    for distribution in metadata.distributions():
        text = distribution.read_text("entry_points.txt") or ""
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


def normalized(distribution: str) -> str:
    """A distribution's name as names of distributions are compared."""
    return distribution.lower().replace("-", "_").replace(".", "_")
