"""What the Responses API keeps between requests, behind one interface: in memory (bounded) or in SQLite.

`open_history` makes the store that a setting names. This room knows records, not HTTP; JSON is kept as it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from smg_trio.core.errors import ConfigError
from smg_trio.history.base import HistoryStore
from smg_trio.history.memory import MemoryHistory
from smg_trio.history.sqlite import open_sqlite_history

__all__ = ["HistoryStore", "open_history"]


@asynccontextmanager
async def open_history(backend: str) -> AsyncIterator[HistoryStore | None]:
    """The store of ``--history-backend``: ``memory``, ``none`` (None: nothing is kept) or ``sqlite:PATH``.

    Raises ConfigError for anything else, and for a file that cannot be used.
    """
    if backend == "memory":
        yield MemoryHistory()
    elif backend == "none":
        yield None
    elif backend.startswith("sqlite:") and len(backend) > len("sqlite:"):
        async with open_sqlite_history(backend.removeprefix("sqlite:")) as store:
            yield store
    else:
        raise ConfigError("--history-backend", f"{backend!r} is unknown.", "Use memory, none or sqlite:PATH.")
