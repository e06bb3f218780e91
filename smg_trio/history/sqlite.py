"""History in one SQLite file: what a call has returned from survives a crash of the process and of the machine.

Write-ahead log with ``synchronous=FULL``: a commit is on disk before it is acknowledged. SQLite calls block, so they
run in one thread at a time; a commit costs one fsync.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from smg_trio.core.conversations import Item, StoredConversation, StoredResponse
from smg_trio.core.errors import ConfigError

Result = TypeVar("Result")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, value TEXT NOT NULL, input_items TEXT NOT NULL, previous_id TEXT, conversation_id TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, metadata TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items (
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (conversation_id, number), UNIQUE (conversation_id, id)
) WITHOUT ROWID;
"""


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
    connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;")
    connection.executescript(_SCHEMA)
    return connection


@asynccontextmanager
async def open_sqlite_history(path: str) -> AsyncIterator[SqliteHistory]:
    """The store in the file at `path`, made if absent. Raises ConfigError if it cannot be used."""
    try:
        connection = await trio.to_thread.run_sync(_connect, path)
    except sqlite3.Error as error:
        raise ConfigError("--history-backend", f"cannot use {path}: {error}.") from None
    store = SqliteHistory(connection)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.close()


class SqliteHistory:
    """See `HistoryStore`. Cancelled calls go on in their thread to their end."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._limiter = trio.CapacityLimiter(1)

    async def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """One transaction in the thread; not abandoned on cancellation, so that none is left half-way."""

        def transaction() -> Result:
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return result

        return await trio.to_thread.run_sync(transaction, limiter=self._limiter)

    async def close(self) -> None:
        """Close the file."""
        await trio.to_thread.run_sync(self._connection.close, limiter=self._limiter)

    async def put_response(self, response: StoredResponse) -> None:
        """See `HistoryStore.put_response`."""
        row = (
            response.response_id,
            json.dumps(dict(response.value)),
            json.dumps(list(response.input_items)),
            response.previous_response_id,
            response.conversation_id,
        )
        await self._run(lambda db: db.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?)", row))

    async def get_response(self, response_id: str) -> StoredResponse | None:
        """See `HistoryStore.get_response`."""

        def work(db: sqlite3.Connection) -> StoredResponse | None:
            row = db.execute("SELECT * FROM responses WHERE id = ?", (response_id,)).fetchone()
            return None if row is None else _response(row)

        return await self._run(work)

    async def delete_response(self, response_id: str) -> bool:
        """See `HistoryStore.delete_response`."""
        statement = "DELETE FROM responses WHERE id = ?"
        return await self._run(lambda db: db.execute(statement, (response_id,)).rowcount > 0)

    async def put_conversation(self, conversation: StoredConversation) -> None:
        """See `HistoryStore.put_conversation`."""
        row = (conversation.conversation_id, conversation.created_at, json.dumps(dict(conversation.metadata)))
        statement = (
            "INSERT INTO conversations VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET metadata = excluded.metadata"
        )
        await self._run(lambda db: db.execute(statement, row))

    async def get_conversation(self, conversation_id: str) -> StoredConversation | None:
        """See `HistoryStore.get_conversation`."""

        def work(db: sqlite3.Connection) -> StoredConversation | None:
            row = db.execute("SELECT * FROM conversations WHERE id = ?", (conversation_id,)).fetchone()
            if row is None:
                return None
            return StoredConversation(conversation_id=row[0], created_at=row[1], metadata=json.loads(row[2]))

        return await self._run(work)

    async def delete_conversation(self, conversation_id: str) -> bool:
        """See `HistoryStore.delete_conversation`."""
        statement = "DELETE FROM conversations WHERE id = ?"
        return await self._run(lambda db: db.execute(statement, (conversation_id,)).rowcount > 0)

    async def add_items(self, conversation_id: str, items: Sequence[Item]) -> None:
        """See `HistoryStore.add_items`."""

        def work(db: sqlite3.Connection) -> None:
            known = db.execute("SELECT 1 FROM conversations WHERE id = ?", (conversation_id,)).fetchone()
            if known is None:
                return
            last = "SELECT COALESCE(MAX(number), 0) FROM items WHERE conversation_id = ?"
            number: int = db.execute(last, (conversation_id,)).fetchone()[0]
            for offset, item in enumerate(items, number + 1):
                row = (conversation_id, offset, item["id"], json.dumps(item))
                db.execute("INSERT OR IGNORE INTO items VALUES (?, ?, ?, ?)", row)

        await self._run(work)

    async def items(self, conversation_id: str) -> list[Item]:
        """See `HistoryStore.items`."""
        statement = "SELECT value FROM items WHERE conversation_id = ? ORDER BY number"

        def work(db: sqlite3.Connection) -> list[Item]:
            return [json.loads(value) for (value,) in db.execute(statement, (conversation_id,))]

        return await self._run(work)

    async def delete_item(self, conversation_id: str, item_id: str) -> bool:
        """See `HistoryStore.delete_item`."""
        statement = "DELETE FROM items WHERE conversation_id = ? AND id = ?"
        return await self._run(lambda db: db.execute(statement, (conversation_id, item_id)).rowcount > 0)


def _response(row: tuple[str, str, str, str | None, str | None]) -> StoredResponse:
    return StoredResponse(
        response_id=row[0],
        value=json.loads(row[1]),
        input_items=json.loads(row[2]),
        previous_response_id=row[3],
        conversation_id=row[4],
    )
