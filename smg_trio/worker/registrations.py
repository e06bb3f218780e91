"""What engines registered with, kept beside their sockets so that a restarted gateway can take them over.

An engine registers once in its life and never again, but its sockets reconnect by themselves to a path that is bound
anew (seen on real engines: within 0.2 s). So the registration of every connected rank is kept in
``<path>-engines.json`` in the private socket directory, written atomically whenever it changes. It is a hint, never
trusted as such: whoever reads it must first hear from the engine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smg_trio.core.engines import EngineInfo, EngineProtocol

_VERSION = 1
_MAX_BYTES = 1_000_000
_FIELDS = frozenset(field.name for field in dataclasses.fields(EngineInfo))


class RegistrationFile:
    """The kept registrations of one worker. Blocking file access, all of it tiny."""

    def __init__(self, socket_path: str, protocol: EngineProtocol) -> None:
        self._path = Path(f"{socket_path}-engines.json")
        self._protocol = protocol
        self._written: dict[int, EngineInfo] | None = None

    def load(self) -> dict[int, EngineInfo]:
        """Rank → registration, as far as the file can be believed; {} if it cannot."""
        try:
            raw = self._read()
            if raw.get("version") != _VERSION or raw.get("protocol") != self._protocol.value:
                return {}
            return {int(rank): EngineInfo(**_known(info)) for rank, info in raw["engines"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}

    def _read(self) -> dict[str, Any]:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, encoding="utf-8") as file:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
                raise ValueError("not our file")
            loaded: dict[str, Any] = json.load(file)
        return loaded

    def save(self, engines: Mapping[int, EngineInfo]) -> None:
        """Keep these, if they are not what was kept last. Raises OSError."""
        if engines == self._written:
            return
        value = {
            "version": _VERSION,
            "protocol": self._protocol.value,
            "engines": {str(rank): dataclasses.asdict(info) for rank, info in engines.items()},
        }
        temporary = self._path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.replace(temporary, self._path)
        self._written = dict(engines)

    def remove(self) -> None:
        """Forget what is kept: there is nothing left to take over. Raises OSError."""
        self._path.unlink(missing_ok=True)
        self._written = None


def _known(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name in _FIELDS}
