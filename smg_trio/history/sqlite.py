"""History in one SQLite file: what a call has returned from survives a crash of the process and of the machine.

Write-ahead log with ``synchronous=FULL``: a commit is on disk before it is acknowledged. SQLite calls block, so they
run in one thread at a time; a commit costs one fsync.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from smg_trio.core.conversations import SHARED, Item, StoredConversation, StoredResponse, is_visible
from smg_trio.core.errors import ConfigError
from smg_trio.history.availability import Availability
from smg_trio.history.base import HistoryUnavailable, chain_from, id_taken
from smg_trio.history.private_files import create_private, warn_of_open_files
from smg_trio.history.relayed import RelayedResponse
from smg_trio.history.sqlite_schema import NewerSchema, index_items, prepare_schema

Result = TypeVar("Result")

_PUT_RESPONSE = """
INSERT INTO responses (id, value, input_items, previous_id, conversation_id, owner, written_at)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
    value = excluded.value, input_items = excluded.input_items, previous_id = excluded.previous_id,
    conversation_id = excluded.conversation_id, written_at = excluded.written_at
WHERE owner = excluded.owner
"""
_GET_RESPONSE = """
SELECT id, value, input_items, previous_id, conversation_id, owner FROM responses WHERE id = ? AND owner IN (?, ?)
"""
_PUT_RELAYED = """
INSERT INTO relayed (id, worker_url, owner, written_at) VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET worker_url = excluded.worker_url, written_at = excluded.written_at
WHERE owner = excluded.owner
"""
_FORGET = (
    "DELETE FROM responses WHERE written_at < ?",
    "DELETE FROM conversations WHERE written_at < ?",
    "DELETE FROM relayed WHERE written_at < ?",
)
_FIND_RESPONSE_ITEM = """
SELECT r.value, r.input_items FROM response_items i JOIN responses r ON r.id = i.response_id
WHERE i.item_id = ? AND r.owner = ? ORDER BY i.number DESC LIMIT 1
"""
_FIND_CONVERSATION_ITEM = """
SELECT i.value FROM items i JOIN conversations c ON c.id = i.conversation_id WHERE i.id = ? AND c.owner = ? LIMIT 1
"""


def _connect(path: str) -> sqlite3.Connection:
    create_private(path)
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
    try:
        connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;")
        prepare_schema(connection)
    except BaseException:
        connection.close()
        raise
    warn_of_open_files(path)
    return connection


@asynccontextmanager
async def open_sqlite_history(path: str) -> AsyncIterator[SqliteHistory]:
    """The store in the file at `path`, made if absent. Raises ConfigError if it cannot be used."""
    try:
        connection = await trio.to_thread.run_sync(_connect, path)
    except (sqlite3.Error, OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigError("--history-backend", f"cannot use {path}: {problem}.") from None
    except NewerSchema:
        raise ConfigError(
            "--history-backend", f"{path} was written by a later version.", "Use that version, or another file."
        ) from None
    store = SqliteHistory(connection, path)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.close()


class SqliteHistory:
    """See `HistoryStore`. Cancelled calls go on in their thread to their end."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        """`path`: of its file, for the log."""
        self._connection = connection
        self._availability = Availability(path)
        self._limiter = trio.CapacityLimiter(1)

    def ensure_writable(self) -> None:
        """See `HistoryStore.ensure_writable`."""
        self._availability.check_writable()

    async def _write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """One transaction that changes something. Raises HistoryUnavailable; then nothing has changed."""
        result = await self._run("BEGIN IMMEDIATE", work, writing=True)
        self._availability.forget_failure()
        return result

    async def _read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """One transaction that changes nothing. Raises HistoryUnavailable."""
        return await self._run("BEGIN", work, writing=False)

    async def _run(self, begin: str, work: Callable[[sqlite3.Connection], Result], *, writing: bool) -> Result:
        """One transaction in the thread; not abandoned on cancellation, so that none is left half-way."""

        def transaction() -> Result:
            connection = self._connection
            connection.execute(begin)
            try:
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite may have rolled back itself
                    connection.execute("ROLLBACK")
                raise
            return result

        try:
            return await trio.to_thread.run_sync(transaction, limiter=self._limiter)
        except sqlite3.Error as error:
            self._availability.failed(error, writing=writing)
            raise HistoryUnavailable from None

    async def close(self) -> None:
        """Close the file."""
        await trio.to_thread.run_sync(self._connection.close, limiter=self._limiter)

    async def put_response(self, response: StoredResponse) -> None:
        """See `HistoryStore.put_response`."""
        row = _row(response)
        await self._write(lambda db: _put_response(db, response, row))

    async def update_response(self, response: StoredResponse) -> bool:
        """See `HistoryStore.update_response`."""
        row = _row(response)

        def work(db: sqlite3.Connection) -> bool:
            kept = _get_response(db, response.response_id, response.owner)
            if kept is None or kept.owner != response.owner or not kept.is_pending:
                return False
            _put_response(db, response, row)
            return True

        return await self._write(work)

    async def has_response(self, response_id: str) -> bool:
        """See `HistoryStore.has_response`."""
        statement = "SELECT 1 FROM responses WHERE id = ?"
        return await self._read(lambda db: db.execute(statement, (response_id,)).fetchone() is not None)

    async def get_response(self, response_id: str, owner: str) -> StoredResponse | None:
        """See `HistoryStore.get_response`."""
        return await self._read(lambda db: _get_response(db, response_id, owner))

    async def get_chain(self, response_id: str, owner: str) -> list[StoredResponse] | None:
        """See `HistoryStore.get_chain`."""
        return await self._read(lambda db: chain_from(response_id, lambda of: _get_response(db, of, owner)))

    async def delete_response(self, response_id: str, owner: str) -> bool:
        """See `HistoryStore.delete_response`."""
        statement = "DELETE FROM responses WHERE id = ? AND owner IN (?, ?)"
        return await self._write(lambda db: db.execute(statement, (response_id, SHARED, owner)).rowcount > 0)

    async def find_items(self, item_ids: Collection[str], owner: str) -> dict[str, Item]:
        """See `HistoryStore.find_items`."""

        def work(db: sqlite3.Connection) -> dict[str, Item]:
            found = ((item_id, _find_item(db, item_id, owner)) for item_id in item_ids)
            return {item_id: item for item_id, item in found if item is not None}

        return await self._read(work)

    async def put_conversation(self, conversation: StoredConversation) -> None:
        """See `HistoryStore.put_conversation`."""
        metadata = json.dumps(dict(conversation.metadata))
        row = (conversation.conversation_id, conversation.created_at, metadata, conversation.owner, time.time())
        statement = (
            "INSERT INTO conversations (id, created_at, metadata, owner, written_at) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET metadata = excluded.metadata, written_at = excluded.written_at"
        )
        await self._write(lambda db: db.execute(statement, row))

    async def get_conversation(self, conversation_id: str, owner: str) -> StoredConversation | None:
        """See `HistoryStore.get_conversation`."""
        statement = "SELECT id, created_at, metadata, owner FROM conversations WHERE id = ? AND owner IN (?, ?)"

        def work(db: sqlite3.Connection) -> StoredConversation | None:
            row = db.execute(statement, (conversation_id, SHARED, owner)).fetchone()
            if row is None:
                return None
            return StoredConversation(
                conversation_id=row[0], created_at=row[1], metadata=json.loads(row[2]), owner=row[3]
            )

        return await self._read(work)

    async def delete_conversation(self, conversation_id: str, owner: str) -> bool:
        """See `HistoryStore.delete_conversation`."""
        statement = "DELETE FROM conversations WHERE id = ? AND owner IN (?, ?)"
        return await self._write(lambda db: db.execute(statement, (conversation_id, SHARED, owner)).rowcount > 0)

    async def add_items(self, conversation_id: str, items: Sequence[Item]) -> None:
        """See `HistoryStore.add_items`."""

        def work(db: sqlite3.Connection) -> None:
            touch = "UPDATE conversations SET written_at = ? WHERE id = ?"
            if not db.execute(touch, (time.time(), conversation_id)).rowcount:
                return
            last = "SELECT COALESCE(MAX(number), 0) FROM items WHERE conversation_id = ?"
            number: int = db.execute(last, (conversation_id,)).fetchone()[0]
            for offset, item in enumerate(items, number + 1):
                row = (conversation_id, offset, item["id"], json.dumps(item))
                db.execute("INSERT OR IGNORE INTO items VALUES (?, ?, ?, ?)", row)

        await self._write(work)

    async def items(self, conversation_id: str) -> list[Item]:
        """See `HistoryStore.items`."""
        statement = "SELECT value FROM items WHERE conversation_id = ? ORDER BY number"

        def work(db: sqlite3.Connection) -> list[Item]:
            return [json.loads(value) for (value,) in db.execute(statement, (conversation_id,))]

        return await self._read(work)

    async def delete_item(self, conversation_id: str, item_id: str) -> bool:
        """See `HistoryStore.delete_item`."""
        statement = "DELETE FROM items WHERE conversation_id = ? AND id = ?"
        return await self._write(lambda db: db.execute(statement, (conversation_id, item_id)).rowcount > 0)

    async def put_relayed(self, response_id: str, worker_url: str, owner: str) -> None:
        """See `RelayedResponses.put_relayed`."""
        row = (response_id, worker_url, owner, time.time())
        await self._write(lambda db: db.execute(_PUT_RELAYED, row))

    async def find_relayed(self, response_id: str, owner: str) -> RelayedResponse | None:
        """See `RelayedResponses.find_relayed`."""
        statement = "SELECT worker_url, owner FROM relayed WHERE id = ?"
        row = await self._read(lambda db: db.execute(statement, (response_id,)).fetchone())
        return None if row is None else RelayedResponse(row[0], is_visible(row[1], owner))

    async def delete_relayed(self, response_id: str, owner: str) -> None:
        """See `RelayedResponses.delete_relayed`."""
        statement = "DELETE FROM relayed WHERE id = ? AND owner IN (?, ?)"
        await self._write(lambda db: db.execute(statement, (response_id, SHARED, owner)))

    async def forget_old(self, age_s: float) -> int:
        """See `HistoryStore.forget_old`."""
        moment = time.time() - age_s

        def work(db: sqlite3.Connection) -> int:
            return sum(db.execute(statement, (moment,)).rowcount for statement in _FORGET)

        return await self._write(work)


def _find_item(db: sqlite3.Connection, item_id: str, owner: str) -> Item | None:
    for own in dict.fromkeys((owner, SHARED)):
        row = db.execute(_FIND_RESPONSE_ITEM, (item_id, own)).fetchone()
        if row is not None:
            items: list[Item] = [*json.loads(row[1]), *json.loads(row[0])["output"]]
            return next(item for item in items if item["id"] == item_id)
        row = db.execute(_FIND_CONVERSATION_ITEM, (item_id, own)).fetchone()
        if row is not None:
            found: Item = json.loads(row[0])
            return found
    return None


def _get_response(db: sqlite3.Connection, response_id: str, owner: str) -> StoredResponse | None:
    row = db.execute(_GET_RESPONSE, (response_id, SHARED, owner)).fetchone()
    return None if row is None else _response(row)


def _put_response(db: sqlite3.Connection, response: StoredResponse, row: tuple[str | float | None, ...]) -> None:
    if not db.execute(_PUT_RESPONSE, row).rowcount:
        raise id_taken(response.response_id)
    index_items(db, response.response_id, response.items)


def _row(response: StoredResponse) -> tuple[str | float | None, ...]:
    """Of `_PUT_RESPONSE`, written now."""
    return (
        response.response_id,
        json.dumps(dict(response.value)),
        json.dumps(list(response.input_items)),
        response.previous_response_id,
        response.conversation_id,
        response.owner,
        time.time(),
    )


def _response(row: tuple[str, str, str, str | None, str | None, str]) -> StoredResponse:
    return StoredResponse(
        response_id=row[0],
        value=json.loads(row[1]),
        input_items=json.loads(row[2]),
        previous_response_id=row[3],
        conversation_id=row[4],
        owner=row[5],
    )
