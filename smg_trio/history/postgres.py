"""History in a PostgreSQL database, which several gateways share; what a call has returned from survives a crash of it.

Each call is one statement where that is possible, so one round trip and one commit. All text that is sent is ASCII
(JSON with escapes, and `_key`), so that no encoding of a database refuses what a client writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString, TypeVar
from urllib.parse import unquote

import psycopg

from smg_trio.core.conversations import SHARED, Item, StoredConversation, StoredResponse, is_visible
from smg_trio.core.errors import ConfigError
from smg_trio.history.availability import Availability
from smg_trio.history.base import HistoryUnavailable, chain_from, id_taken
from smg_trio.history.postgres_pool import Connection, Pool
from smg_trio.history.postgres_schema import NewerSchema, prepare_schema
from smg_trio.history.relayed import RelayedResponse

Result = TypeVar("Result")

_LONGEST_KEY: Final = 200
_HASHED: Final = "sha256:"
_SHORTEST_SECRET: Final = 4
_BATCH: Final = 1000
"""Rows that one statement deletes."""

_PUT_RESPONSE: Final = """
WITH kept AS (
    INSERT INTO smg_trio_responses AS r (id, previous_id, owner, pending, number, record)
    VALUES (%(id)s, %(previous_id)s, %(owner)s, %(pending)s, nextval('smg_trio_writes'), %(record)s)
    ON CONFLICT (id) DO UPDATE SET
        previous_id = excluded.previous_id, pending = excluded.pending, number = excluded.number,
        record = excluded.record, written_at = now()
    WHERE r.owner = excluded.owner
    RETURNING id, owner, number
),
"""
_UPDATE_RESPONSE: Final = """
WITH kept AS (
    UPDATE smg_trio_responses
    SET pending = %(pending)s, number = nextval('smg_trio_writes'), record = %(record)s, written_at = now()
    WHERE id = %(id)s AND owner = %(owner)s AND pending
    RETURNING id, owner, number
),
"""
_INDEX_ITEMS: Final = """
gone AS (
    DELETE FROM smg_trio_response_items i USING kept WHERE i.response_id = kept.id AND i.item_id <> ALL(%(items)s)
),
indexed AS (
    INSERT INTO smg_trio_response_items (response_id, item_id, owner, number)
    SELECT kept.id, item.id, kept.owner, kept.number FROM kept, unnest(%(items)s) AS item (id)
    ON CONFLICT (response_id, item_id) DO UPDATE SET number = excluded.number
)
SELECT 1 FROM kept
"""
_GET_CHAIN: Final = """
WITH RECURSIVE chain (id, previous_id) AS (
    SELECT id, previous_id FROM smg_trio_responses WHERE id = %(id)s AND owner = ANY(%(owners)s)
    UNION
    SELECT r.id, r.previous_id FROM chain JOIN smg_trio_responses r ON r.id = chain.previous_id
    WHERE r.owner = ANY(%(owners)s)
)
SELECT id, owner, record FROM chain JOIN smg_trio_responses USING (id)
"""
"""Each response once, in any order: UNION ends circles."""
_FIND_IN_RESPONSES: Final = """
SELECT wanted.id, found.record FROM unnest(%s::text[]) AS wanted (id) CROSS JOIN LATERAL (
    SELECT r.record FROM smg_trio_response_items i JOIN smg_trio_responses r ON r.id = i.response_id
    WHERE i.item_id = wanted.id AND i.owner = %s ORDER BY i.number DESC LIMIT 1
) AS found
"""
_FIND_IN_CONVERSATIONS: Final = """
SELECT wanted.id, found.value FROM unnest(%s::text[]) AS wanted (id) CROSS JOIN LATERAL (
    SELECT i.value FROM smg_trio_items i WHERE i.id = wanted.id AND i.owner = %s ORDER BY i.number DESC LIMIT 1
) AS found
"""
_PUT_RELAYED: Final = """
INSERT INTO smg_trio_relayed (id, worker_url, owner) VALUES (%s, %s, %s)
ON CONFLICT (id) DO UPDATE SET worker_url = excluded.worker_url, written_at = now()
WHERE smg_trio_relayed.owner = excluded.owner
"""
_PUT_CONVERSATION: Final = """
INSERT INTO smg_trio_conversations (id, owner, created_at, metadata) VALUES (%s, %s, %s, %s)
ON CONFLICT (id) DO UPDATE SET metadata = excluded.metadata, written_at = now()
"""
_ADD_ITEMS: Final = """
WITH conversation AS (
    UPDATE smg_trio_conversations SET written_at = now() WHERE id = %(id)s RETURNING id, owner
)
INSERT INTO smg_trio_items (conversation_id, id, owner, value)
SELECT conversation.id, item.id, conversation.owner, item.value
FROM conversation, unnest(%(ids)s::text[], %(values)s::text[]) WITH ORDINALITY AS item (id, value, place)
ORDER BY item.place
ON CONFLICT DO NOTHING
"""
"""The updated row is locked, so that what several gateways add at the same time is not mixed."""
_FORGET: Final[tuple[LiteralString, ...]] = (
    """
    DELETE FROM smg_trio_responses WHERE id IN (
        SELECT id FROM smg_trio_responses WHERE written_at < now() - make_interval(secs => %s)
        LIMIT %s FOR UPDATE SKIP LOCKED
    )
    """,
    """
    DELETE FROM smg_trio_conversations WHERE id IN (
        SELECT id FROM smg_trio_conversations WHERE written_at < now() - make_interval(secs => %s)
        LIMIT %s FOR UPDATE SKIP LOCKED
    )
    """,
    """
    DELETE FROM smg_trio_relayed WHERE id IN (
        SELECT id FROM smg_trio_relayed WHERE written_at < now() - make_interval(secs => %s)
        LIMIT %s FOR UPDATE SKIP LOCKED
    )
    """,
)


@asynccontextmanager
async def open_postgres_history(url: str, pool_max: int, timeout_s: float) -> AsyncIterator[PostgresHistory]:
    """Open the store in the database at a URL.

    A database that cannot be reached is a line in the log; calls try again. Raises ConfigError if it can be reached and
    not be used.
    """
    try:
        pool = Pool(url, pool_max, timeout_s, prepare_schema)
    except psycopg.ProgrammingError:
        # Not in psycopg's words, which may quote a part of the password.
        problem = "is not a URL that PostgreSQL understands."
        raise ConfigError("--history-url", problem, "Percent-encode special characters in its parts.") from None
    store = PostgresHistory(pool, url)
    try:
        await store.connect()
        yield store
    finally:
        pool.close()


class PostgresHistory:
    """See `HistoryStore`. Cancelled calls go on in their thread to their end or deadline."""

    def __init__(self, pool: Pool, url: str) -> None:
        """`url`: to keep its password out of the log."""
        self._pool = pool
        self._secrets = _secrets(url)
        self._availability = Availability(pool.where)

    async def connect(self) -> None:
        """Make the tables if the database can be reached. Raises ConfigError if it refuses."""
        try:
            await self._pool.run(lambda db: None)
        except NewerSchema:
            problem = f"{self._pool.where} holds tables of a later version."
            raise ConfigError("--history-url", problem, "Use that version, or another database.") from None
        except psycopg.Error as error:
            if _is_refusal(error):
                raise ConfigError("--history-url", f"{self._pool.where} cannot be used: {self._text(error)}.") from None
            self._availability.failed(self._text(error), writing=True)

    def _text(self, error: psycopg.Error) -> str:
        text = " ".join(str(error).split()).rstrip(".")
        for secret in self._secrets:
            text = text.replace(secret, "********")
        return text

    def ensure_writable(self) -> None:
        """See `HistoryStore.ensure_writable`."""
        self._availability.check_writable()

    async def _write(self, work: Callable[[Connection], Result]) -> Result:
        """Change something. Raises HistoryUnavailable; then it may have been changed or not."""
        result = await self._run(work, writing=True)
        self._availability.forget_failure()
        return result

    async def _read(self, work: Callable[[Connection], Result]) -> Result:
        return await self._run(work, writing=False)

    async def _run(self, work: Callable[[Connection], Result], *, writing: bool) -> Result:
        try:
            return await self._pool.run(work)
        except psycopg.Error as error:
            self._availability.failed(self._text(error), writing=writing)
        except NewerSchema:
            self._availability.failed("it holds tables of a later version", writing=writing)
        raise HistoryUnavailable

    async def put_response(self, response: StoredResponse) -> None:
        """See `HistoryStore.put_response`."""
        row = _row(response)
        kept = await self._write(lambda db: db.execute(_PUT_RESPONSE + _INDEX_ITEMS, row).fetchone())
        if kept is None:
            raise id_taken(response.response_id)

    async def update_response(self, response: StoredResponse) -> bool:
        """See `HistoryStore.update_response`."""
        row = _row(response)
        return await self._write(lambda db: db.execute(_UPDATE_RESPONSE + _INDEX_ITEMS, row).fetchone()) is not None

    async def has_response(self, response_id: str) -> bool:
        """See `HistoryStore.has_response`."""
        statement = "SELECT 1 FROM smg_trio_responses WHERE id = %s"
        return await self._read(lambda db: db.execute(statement, (_key(response_id),)).fetchone()) is not None

    async def get_response(self, response_id: str, owner: str) -> StoredResponse | None:
        """See `HistoryStore.get_response`."""
        statement = "SELECT owner, record FROM smg_trio_responses WHERE id = %s AND owner IN (%s, %s)"
        parameters = (_key(response_id), SHARED, _key(owner))

        def work(db: Connection) -> StoredResponse | None:
            row = db.execute(statement, parameters).fetchone()
            return None if row is None else _response(response_id, owner, row)

        return await self._read(work)

    async def get_chain(self, response_id: str, owner: str) -> list[StoredResponse] | None:
        """See `HistoryStore.get_chain`."""
        parameters = {"id": _key(response_id), "owners": [SHARED, _key(owner)]}

        def work(db: Connection) -> list[StoredResponse] | None:
            rows = {key: rest for key, *rest in db.execute(_GET_CHAIN, parameters)}

            def kept(of: str) -> StoredResponse | None:
                row = rows.get(_key(of))
                return None if row is None else _response(of, owner, row)

            return chain_from(response_id, kept)

        return await self._read(work)

    async def delete_response(self, response_id: str, owner: str) -> bool:
        """See `HistoryStore.delete_response`."""
        statement = "DELETE FROM smg_trio_responses WHERE id = %s AND owner IN (%s, %s)"
        return await self._delete(statement, (_key(response_id), SHARED, _key(owner)))

    async def _delete(self, statement: LiteralString, parameters: Sequence[str]) -> bool:
        return await self._write(lambda db: db.execute(statement, parameters).rowcount > 0)

    async def find_items(self, item_ids: Collection[str], owner: str) -> dict[str, Item]:
        """See `HistoryStore.find_items`."""
        keys = {_key(item_id): item_id for item_id in item_ids}
        owners = list(dict.fromkeys((_key(owner), SHARED)))

        def work(db: Connection) -> dict[str, Item]:
            found: dict[str, Item] = {}
            for own in owners:
                for statement, item_of in ((_FIND_IN_RESPONSES, _item_of_record), (_FIND_IN_CONVERSATIONS, _item)):
                    missing = [key for key, item_id in keys.items() if item_id not in found]
                    for key, text in db.execute(statement, (missing, own)):
                        found[keys[key]] = item_of(text, keys[key])
            return found

        return await self._read(work)

    async def put_conversation(self, conversation: StoredConversation) -> None:
        """See `HistoryStore.put_conversation`."""
        metadata = json.dumps(dict(conversation.metadata))
        row = (_key(conversation.conversation_id), _key(conversation.owner), conversation.created_at, metadata)
        await self._write(lambda db: db.execute(_PUT_CONVERSATION, row))

    async def get_conversation(self, conversation_id: str, owner: str) -> StoredConversation | None:
        """See `HistoryStore.get_conversation`."""
        statement = "SELECT owner, created_at, metadata FROM smg_trio_conversations WHERE id = %s AND owner IN (%s, %s)"
        parameters = (_key(conversation_id), SHARED, _key(owner))
        row = await self._read(lambda db: db.execute(statement, parameters).fetchone())
        if row is None:
            return None
        return StoredConversation(
            conversation_id=conversation_id, created_at=row[1], metadata=json.loads(row[2]), owner=row[0] and owner
        )

    async def delete_conversation(self, conversation_id: str, owner: str) -> bool:
        """See `HistoryStore.delete_conversation`."""
        statement = "DELETE FROM smg_trio_conversations WHERE id = %s AND owner IN (%s, %s)"
        return await self._delete(statement, (_key(conversation_id), SHARED, _key(owner)))

    async def add_items(self, conversation_id: str, items: Sequence[Item]) -> None:
        """See `HistoryStore.add_items`."""
        ids, values = [_key(item["id"]) for item in items], [json.dumps(item) for item in items]
        parameters = {"id": _key(conversation_id), "ids": ids, "values": values}
        await self._write(lambda db: db.execute(_ADD_ITEMS, parameters))

    async def items(self, conversation_id: str) -> list[Item]:
        """See `HistoryStore.items`."""
        statement = "SELECT value FROM smg_trio_items WHERE conversation_id = %s ORDER BY number"

        def work(db: Connection) -> list[Item]:
            return [json.loads(value) for (value,) in db.execute(statement, (_key(conversation_id),))]

        return await self._read(work)

    async def delete_item(self, conversation_id: str, item_id: str) -> bool:
        """See `HistoryStore.delete_item`."""
        statement = "DELETE FROM smg_trio_items WHERE conversation_id = %s AND id = %s"
        return await self._delete(statement, (_key(conversation_id), _key(item_id)))

    async def put_relayed(self, response_id: str, worker_url: str, owner: str) -> None:
        """See `RelayedResponses.put_relayed`."""
        row = (_key(response_id), worker_url, _key(owner))
        await self._write(lambda db: db.execute(_PUT_RELAYED, row))

    async def find_relayed(self, response_id: str, owner: str) -> RelayedResponse | None:
        """See `RelayedResponses.find_relayed`."""
        statement = "SELECT worker_url, owner FROM smg_trio_relayed WHERE id = %s"
        row = await self._read(lambda db: db.execute(statement, (_key(response_id),)).fetchone())
        return None if row is None else RelayedResponse(row[0], is_visible(row[1], _key(owner)))

    async def delete_relayed(self, response_id: str, owner: str) -> None:
        """See `RelayedResponses.delete_relayed`."""
        statement = "DELETE FROM smg_trio_relayed WHERE id = %s AND owner IN (%s, %s)"
        await self._delete(statement, (_key(response_id), SHARED, _key(owner)))

    async def forget_old(self, age_s: float) -> int:
        """See `HistoryStore.forget_old`. By the database's clock."""
        forgotten = 0
        for statement in _FORGET:
            count = _BATCH
            while count == _BATCH:
                count = await self._write(_deletion(statement, age_s))
                forgotten += count
        return forgotten


def _deletion(statement: LiteralString, age_s: float) -> Callable[[Connection], int]:
    return lambda db: db.execute(statement, (age_s, _BATCH)).rowcount


def _key(text: str) -> str:
    """Give what stands for an id or owner in the database: itself, unless it is long or not printable ASCII."""
    if len(text) <= _LONGEST_KEY and text.isascii() and text.isprintable() and not text.startswith(_HASHED):
        return text
    return _HASHED + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _row(response: StoredResponse) -> dict[str, Any]:
    record = {
        "value": dict(response.value),
        "input_items": list(response.input_items),
        "previous_response_id": response.previous_response_id,
        "conversation_id": response.conversation_id,
    }
    return {
        "id": _key(response.response_id),
        "previous_id": None if response.previous_response_id is None else _key(response.previous_response_id),
        "owner": _key(response.owner),
        "pending": response.is_pending,
        "record": json.dumps(record),
        "items": list(dict.fromkeys(_key(item["id"]) for item in response.items)),
    }


def _response(response_id: str, owner: str, row: Sequence[Any]) -> StoredResponse:
    """Make it of its owner and record; the owner is `owner`, who may see it, unless it is shared."""
    return StoredResponse(response_id=response_id, owner=row[0] and owner, **json.loads(row[1]))


def _item_of_record(text: str, item_id: str) -> Item:
    record = json.loads(text)
    items: list[Item] = [*record["input_items"], *record["value"]["output"]]
    return next(item for item in items if item["id"] == item_id)


def _item(text: str, _item_id: str) -> Item:
    item: Item = json.loads(text)
    return item


def _is_refusal(error: psycopg.Error) -> bool:
    """Whether the server was reached and will refuse again: credentials, name of the database, rights.

    psycopg has no error code for failed connections, just the server's words.
    """
    if error.sqlstate is not None:
        return not isinstance(error, psycopg.OperationalError)
    text = str(error)
    passing = ("starting up", "shutting down", "recovery mode", "too many", "connection slots")
    return "FATAL" in text and not any(words in text for words in passing)


def _secrets(url: str) -> list[str]:
    """Give the URL's password as it is written and as it is meant, unless it is so short that it is in any text."""
    userinfo = url.partition("://")[2].rpartition("@")[0]
    written = userinfo.partition(":")[2]
    query = url.partition("?")[2].split("&")
    found = [written, *(part.partition("=")[2] for part in query if part.startswith("password="))]
    return [secret for secret in {*found, *map(unquote, found)} if len(secret) >= _SHORTEST_SECRET]
