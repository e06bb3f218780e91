"""What engines registered with, kept beside their sockets so that a restarted gateway can take them over.

An engine registers once in its life and never again, but its sockets reconnect by themselves to a path that is bound
anew (seen on real engines: within 0.2 s). So the registration of every connected rank is kept in
``<path>-engines.json`` in the private socket directory, written atomically whenever it changes. It is a hint, never
trusted as such: the reader must first hear from the engine. Whatever lies there instead is ignored, with one line
in the log.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smg_trio.core.engines import EngineInfo, EngineProtocol

logger = logging.getLogger("smg_trio.worker")

_VERSION = 1
_MAX_BYTES = 1_000_000
_MAX_NUMBER = 1 << 62
_FIELDS = {field.name: field.type for field in dataclasses.fields(EngineInfo)}
# Opening a FIFO would block until another process opens its other end.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class RegistrationFile:
    """The kept registrations of one worker. Blocking file access, all of it tiny."""

    def __init__(self, socket_path: str, protocol: EngineProtocol) -> None:
        self._path = Path(f"{socket_path}-engines.json")
        self._protocol = protocol
        self._written: dict[int, EngineInfo] | None = None

    def load(self) -> dict[int, EngineInfo]:
        """Rank → registration, as far as the file can be believed; {} if it cannot. Never waits, never raises."""
        try:
            text = self._read()
            return {} if text is None else self._parse(text)
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("ignoring the kept registrations in %s: %s", self._path, _words(error))
            return {}

    def _read(self) -> str | None:
        try:
            descriptor = os.open(self._path, _READ)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("not a regular file")
            if status.st_uid != os.geteuid():
                raise ValueError(f"it belongs to uid {status.st_uid}")
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
        return raw.decode()

    def _parse(self, text: str) -> dict[int, EngineInfo]:
        value = json.loads(text)
        if type(value) is not dict or value.get("version") != _VERSION or type(value.get("engines")) is not dict:
            raise ValueError(f"not registrations of version {_VERSION}")
        if value.get("protocol") != self._protocol.value:
            return {}
        return {_rank(rank): _registration(info) for rank, info in value["engines"].items()}

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
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, _WRITE, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.replace(temporary, self._path)
        self._written = dict(engines)

    def remove(self) -> None:
        """Forget what is kept: there is nothing left to take over. Raises OSError."""
        self._path.unlink(missing_ok=True)
        self._written = None


def _rank(name: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) <= 5):
        raise ValueError("an engine without a rank")
    return int(name)


def _registration(info: Any) -> EngineInfo:
    """Raises ValueError unless every field is there or defaulted, and of its type. Unknown fields are ignored."""
    if type(info) is not dict or "max_model_len" not in info:
        raise ValueError("an engine without a context length")
    known = {name: value for name, value in info.items() if name in _FIELDS}
    for name, value in known.items():
        if not _fits(value, str(_FIELDS[name])):
            raise ValueError(f"'{name}' of an engine is not of its type")
    return EngineInfo(**known)


def _fits(value: Any, declared: str) -> bool:
    if value is None:
        return declared.endswith("None")
    kind = type(value).__name__
    return declared.split(" | ")[0] == kind and (kind != "int" or 0 <= value <= _MAX_NUMBER)


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return "not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
