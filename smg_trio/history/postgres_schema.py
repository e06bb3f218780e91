"""The tables of the PostgreSQL history, and how those of earlier versions are brought up to date.

They are in the first schema of the connection's search path. Several gateways may start at the same time: one brings
the tables up to date, the others wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, LiteralString

if TYPE_CHECKING:
    import psycopg

_LOCK: Final = 0x736D_6774_7269_6F  # "smgtrio"; one of PostgreSQL's advisory locks, which are plain numbers

_FIRST: Final = """
CREATE SEQUENCE smg_trio_writes;
CREATE TABLE smg_trio_responses (
    id text PRIMARY KEY, previous_id text, owner text NOT NULL, pending boolean NOT NULL, number bigint NOT NULL,
    written_at timestamptz NOT NULL DEFAULT now(), record text NOT NULL
);
CREATE INDEX smg_trio_responses_by_owner ON smg_trio_responses (owner, written_at);
CREATE INDEX smg_trio_responses_by_age ON smg_trio_responses (written_at);
CREATE TABLE smg_trio_response_items (
    response_id text NOT NULL REFERENCES smg_trio_responses ON DELETE CASCADE, item_id text NOT NULL,
    owner text NOT NULL, number bigint NOT NULL, PRIMARY KEY (response_id, item_id)
);
CREATE INDEX smg_trio_response_items_by_item ON smg_trio_response_items (item_id, owner, number);
CREATE TABLE smg_trio_conversations (
    id text PRIMARY KEY, owner text NOT NULL, created_at bigint NOT NULL, metadata text NOT NULL,
    written_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX smg_trio_conversations_by_owner ON smg_trio_conversations (owner, written_at);
CREATE INDEX smg_trio_conversations_by_age ON smg_trio_conversations (written_at);
CREATE TABLE smg_trio_items (
    conversation_id text NOT NULL REFERENCES smg_trio_conversations ON DELETE CASCADE, id text NOT NULL,
    owner text NOT NULL, number bigint NOT NULL DEFAULT nextval('smg_trio_writes'), value text NOT NULL,
    PRIMARY KEY (conversation_id, id)
);
CREATE INDEX smg_trio_items_in_order ON smg_trio_items (conversation_id, number);
CREATE INDEX smg_trio_items_by_item ON smg_trio_items (id, owner, number);
"""
_RELAYED: Final = """
CREATE TABLE smg_trio_relayed (
    id text PRIMARY KEY, worker_url text NOT NULL, owner text NOT NULL, written_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX smg_trio_relayed_by_age ON smg_trio_relayed (written_at);
"""

_IN_SEARCH_PATH: Final = """
SELECT 1 FROM pg_tables WHERE tablename = 'smg_trio_schema' AND schemaname = ANY(current_schemas(false))
"""

MIGRATIONS: Final[tuple[LiteralString, ...]] = (_FIRST, _RELAYED)
"""The statements that lead from each version to the next; 0 is an empty database."""
VERSION: Final = len(MIGRATIONS)


class NewerSchema(Exception):
    """The tables were made by a later version of this program."""


def prepare_schema(db: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Make the tables, or bring those of an earlier version up to date, all in one transaction.

    Raises NewerSchema, and psycopg.Error, which leaves the database as it was.
    """
    if _version(db) == VERSION:  # so that later on the gateway needs no right to make tables
        return
    with db.transaction():
        db.execute("SET LOCAL statement_timeout = 0")
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        version = _version(db)
        if version > VERSION:
            raise NewerSchema
        for statements in MIGRATIONS[version:]:
            db.execute(statements)
        db.execute("CREATE TABLE IF NOT EXISTS smg_trio_schema (version integer NOT NULL)")
        db.execute("DELETE FROM smg_trio_schema")
        db.execute("INSERT INTO smg_trio_schema VALUES (%s)", (VERSION,))


def _version(db: psycopg.Connection[tuple[Any, ...]]) -> int:
    # Not to_regclass, which in this transaction may remember what was so before another gateway made the table.
    if db.execute(_IN_SEARCH_PATH).fetchone() is None:
        return 0
    row = db.execute("SELECT version FROM smg_trio_schema").fetchone()
    return 0 if row is None else int(row[0])
