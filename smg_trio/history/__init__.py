"""What the Responses API keeps between requests, behind one interface: in memory (bounded), SQLite or PostgreSQL.

`open_history` makes the store that a setting names. This room knows records, not HTTP; JSON is kept as it is.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smg_trio.core.errors import ConfigError
from smg_trio.history.base import HistoryStore
from smg_trio.history.memory import MemoryHistory
from smg_trio.history.sqlite import open_sqlite_history

if TYPE_CHECKING:
    from smg_trio.settings.settings import Settings

__all__ = ["HistoryOptions", "HistoryStore", "history_options", "open_history"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """How a store is used.

    Attributes:
        url: of the database, for ``postgres``.
        pool_max: most connections to it.
        timeout_s: for each call to it.
    """

    url: str | None = None
    pool_max: int = 16
    timeout_s: float = 5.0


DEFAULT_OPTIONS: Final = HistoryOptions()


def history_options(settings: Settings) -> HistoryOptions:
    """Take the options from the settings."""
    return HistoryOptions(
        url=settings.history_url,
        pool_max=settings.history_pool_max,
        timeout_s=settings.history_timeout_secs,
    )


def open_history(
    backend: str, options: HistoryOptions = DEFAULT_OPTIONS
) -> AbstractAsyncContextManager[HistoryStore | None]:
    """Open the store of ``--history-backend``: ``memory``, ``none``, ``sqlite:PATH`` or ``postgres``.

    None where nothing is kept. Raises ConfigError, here or on entering, for anything else, and for a file or database
    that cannot be used.
    """
    if backend == "memory":
        return nullcontext(MemoryHistory())
    if backend == "none":
        return nullcontext(None)
    if backend.startswith("sqlite:") and len(backend) > len("sqlite:"):
        return open_sqlite_history(backend.removeprefix("sqlite:"))
    if backend == "postgres":
        return _open_postgres(options)
    raise ConfigError("--history-backend", f"{backend!r} is unknown.", "Use memory, none, sqlite:PATH or postgres.")


def _open_postgres(options: HistoryOptions) -> AbstractAsyncContextManager[HistoryStore]:
    try:
        # Imported here, so that it costs nothing where it is not used, and need not be installed.
        from smg_trio.history.postgres import open_postgres_history
    except ImportError as error:
        problem = f"'postgres' needs psycopg ({error})."
        raise ConfigError("--history-backend", problem, "Install smg-trio[postgres].") from None
    if options.url is None:
        raise ConfigError("--history-url", "is missing.", "Write it as postgresql://USER@HOST/DATABASE.")
    return open_postgres_history(options.url, options.pool_max, options.timeout_s)
