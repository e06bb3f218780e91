"""Logging as the command line sets it up, into a text."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from smg_trio.gateway.observability.logs import set_up_logging

SetUp = Callable[..., io.StringIO]


@pytest.fixture
def set_up() -> Iterator[SetUp]:
    """`set_up_logging` with these options, into the text it returns; undone afterwards."""
    root = logging.getLogger()
    ours = logging.getLogger("smg_trio")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    knobs = logging.logThreads, logging.logProcesses, logging.logMultiprocessing
    root.handlers = []

    def begin(level: str = "info", out: io.StringIO | None = None, **options: Any) -> io.StringIO:
        out = io.StringIO() if out is None else out
        set_up_logging(level, stream=out, **options)
        return out

    yield begin
    for handler in root.handlers:
        handler.close()
    root.handlers = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing = knobs
