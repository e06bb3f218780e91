"""How log lines look and where they go: stderr, as text or as JSON, and a file beside it.

Every line carries the request's id and the worker where they are known (`core.log_context`). A record may have
``fields``, a mapping (or `Fields`) that JSON gets as keys of their own and people as ``key=value``; a value that could
be taken for several fields is quoted. Lines are written immediately, by the task that logs: a reader of stderr that
stands still stops the gateway, and nothing is lost if the gateway dies.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

from smg_trio.core.errors import ConfigError
from smg_trio.core.log_context import request_id, trace_id, worker

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
"""By the name `--log-level` takes."""
FILE_NAME: Final = "smg-trio.log"
FILE_BYTES: Final = 100 * 1024 * 1024
OLD_FILES: Final = 5
quoted: Final = encode_basestring_ascii
"""A text as JSON has it."""
_ONE_VALUE: Final = re.compile(r"""[^\s"'\[\]]+""")
_encode: Final = json.JSONEncoder(default=str).encode
_NAMES: Final = {"WARNING": "WARN", "CRITICAL": "ERROR"}
_COLOURS: Final = {"DEBUG": "\x1b[2m", "INFO": "\x1b[32m", "WARN": "\x1b[33m", "ERROR": "\x1b[31m"}


def set_up_logging(
    level: str,
    *,
    as_json: bool = False,
    directory: str | None = None,
    stream: TextIO | None = None,
    process: int | None = None,
) -> None:
    """Send all log lines to `stream` (stderr) and, if `directory` is given, to a rotated file in it.

    Replaces what was set up before. `level` is that of this package; of other libraries nothing below warnings is
    written. `process`: which of a gateway's processes this is; each line says so, and a front has a file of its own.

    Raises ConfigError if the file cannot be written.
    """
    out = sys.stderr if stream is None else stream
    coloured = not as_json and out.isatty() and not os.environ.get("NO_COLOR")
    handlers: list[logging.Handler] = [_StreamHandler(out)]
    handlers[0].setFormatter(JsonFormatter(process) if as_json else HumanFormatter(process, coloured=coloured))
    if directory is not None:
        handlers.append(_open_file(Path(directory), process))
        handlers[1].setFormatter(JsonFormatter(process) if as_json else HumanFormatter(process))
    # No line shows them, and they are looked up for every record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # Other libraries' chatter is not ours to vouch for: it may quote what passes through.
    logging.basicConfig(level=max(LEVELS[level], logging.WARNING), handlers=handlers, force=True)
    logging.getLogger("smg_trio").setLevel(LEVELS[level])


def _open_file(directory: Path, process: int | None) -> RotatingFile:
    name = Path(FILE_NAME)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return RotatingFile(directory / (f"{name.stem}-{process}{name.suffix}" if process else name))
    except OSError as error:
        raise ConfigError(
            "--log-dir", f"cannot write {error.filename}: {error.strerror}.", "Name a directory this user may write to."
        ) from None


class _StreamHandler(logging.StreamHandler[TextIO]):
    """The reader of our stderr may be gone: that costs the lines, nothing else."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(self.format(record) + "\n")
            self.stream.flush()
        except Exception:  # noqa: BLE001 - as logging's own handlers
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        if not isinstance(sys.exception() if hasattr(sys, "exception") else sys.exc_info()[1], OSError):
            super().handleError(record)


class RotatingFile(RotatingFileHandler):
    """A file that is put aside when it is full.

    The library's own looks at the file system and formats each line twice to find out; this one counts.
    """

    def __init__(self, path: Path, *, max_bytes: int = FILE_BYTES, old_files: int = OLD_FILES) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=old_files, encoding="utf-8", errors="backslashreplace")
        self._size = path.stat().st_size
        self._complained = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        try:
            line = self.format(record) + "\n"
            size = len(line) if line.isascii() else len(line.encode("utf-8", "backslashreplace"))
            if self._size and self._size + size > self.maxBytes:
                self.doRollover()
                self._size = 0
            stream = self.stream
            assert stream is not None, "the file is opened immediately"
            stream.write(line)
            stream.flush()
            self._size += size
        except Exception:  # noqa: BLE001 - as logging's own handlers
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Say it once: a full disk would otherwise fill stderr too."""
        if not self._complained:
            self._complained = True
            super().handleError(record)


class Fields(Protocol):
    """A record's fields that are made when they are needed, in the form that is needed."""

    def members(self) -> str:
        """For JSON, between two braces: ``"key": value, "key": value``; never empty."""
        ...

    def words(self) -> str:
        """For people, after the message: `` key=value key=value``."""
        ...


def _words(fields: Mapping[str, Any] | Fields) -> str:
    if isinstance(fields, Mapping):
        return "".join([f" {name}={shown(str(value))}" for name, value in fields.items()])
    return fields.words()


def shown(value: str) -> str:
    """A value on a text line: as it is if it is one word without quotes and brackets, else as JSON has it.

    So what a client or an operator named cannot look like further fields, or like the end of the request id.
    """
    return value if _ONE_VALUE.fullmatch(value) else quoted(value)


class _Clock:
    """Time stamps; the part that changes once a second is made once a second."""

    def __init__(self, layout: str, *, utc: bool) -> None:
        self._layout = layout
        self._split = time.gmtime if utc else time.localtime
        self._second = -1
        self._text = ""

    def text(self, created: float) -> str:
        """Up to the second, of a time in seconds since the epoch."""
        second = int(created)
        if second != self._second:
            self._second, self._text = second, time.strftime(self._layout, self._split(second))
        return self._text


class HumanFormatter(logging.Formatter):
    """``2026-01-31 12:00:00.123 INFO smg_trio.gateway: listening on … [request-id]``."""

    def __init__(self, process: int | None = None, *, coloured: bool = False) -> None:
        super().__init__()
        self._process = "" if process is None else f" process={process}"
        self._clock = _Clock("%Y-%m-%d %H:%M:%S", utc=False)
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        """One line, and those of a traceback."""
        level = _NAMES.get(record.levelname, record.levelname)
        if self._coloured:
            level = f"{_COLOURS.get(level, '')}{level}\x1b[0m"
        message = record.getMessage()
        fields = record.__dict__.get("fields")
        if fields is not None:
            message += _words(fields)
        about, request = worker.get(), request_id.get()
        if about and about not in message:
            message += f" worker={shown(about)}"
        message += self._process
        if trace := trace_id.get():
            message += f" trace_id={trace}"
        if request:
            message += f" [{shown(request)}]"
        if not message.isprintable():
            # What a client sent must not look like lines of ours, nor speak to the terminal.
            message = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in message)
        line = f"{self._clock.text(record.created)}.{int(record.msecs):03d} {level} {record.name}: {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object per line: timestamp (UTC), level, logger, message, request_id, worker, the record's fields.

    Put together by hand: the library's encoder takes twice as long.
    """

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = "" if process is None else f', "process": {process}'
        self._clock = _Clock("%Y-%m-%dT%H:%M:%S", utc=True)

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        level = _NAMES.get(record.levelname, record.levelname)
        stamp = f"{self._clock.text(record.created)}.{int(record.created % 1 * 1e6):06d}Z"
        line = (
            f'{{"timestamp": "{stamp}", "level": {quoted(level)}, "logger": {quoted(record.name)}, '
            f'"message": {quoted(record.getMessage())}'
        )
        line += self._process
        fields = record.__dict__.get("fields")
        if request := request_id.get():
            line += f', "request_id": {quoted(request)}'
        if trace := trace_id.get():
            line += f', "trace_id": "{trace}"'
        if (about := worker.get()) and not (isinstance(fields, Mapping) and "worker" in fields):
            line += f', "worker": {quoted(about)}'
        if fields:
            line += ", " + (_encode(fields)[1:-1] if isinstance(fields, Mapping) else fields.members())
        if record.exc_info:
            line += f', "exception": {quoted(self.formatException(record.exc_info))}'
        return line + "}"
