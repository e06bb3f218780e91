"""The tables of the SQLite history, and how files of earlier versions are brought up to date.

``PRAGMA user_version`` numbers the schema: 0 had neither owners nor an index of items, 1 no times of writing, 2 no
responses that workers behind HTTP keep. What was
kept before there were owners belongs to `conversations.SHARED`: it was open to every key holder then, and still is.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from smg_trio.core.conversations import Item

logger = logging.getLogger("smg_trio.history")

VERSION: Final = 3

_TABLES: Final = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, value TEXT NOT NULL, input_items TEXT NOT NULL, previous_id TEXT, conversation_id TEXT,
    owner TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE conversations (
    id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, metadata TEXT NOT NULL, owner TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE items (
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (conversation_id, number), UNIQUE (conversation_id, id)
) WITHOUT ROWID;
"""
_OWNER_COLUMNS: Final = """
ALTER TABLE responses ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE conversations ADD COLUMN owner TEXT NOT NULL DEFAULT '';
"""
_ITEM_INDEXES: Final = """
CREATE TABLE response_items (
    number INTEGER PRIMARY KEY, response_id TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
    item_id TEXT NOT NULL, UNIQUE (response_id, item_id)
);
CREATE INDEX response_items_by_item ON response_items (item_id);
CREATE INDEX items_by_id ON items (id);
"""
_WRITTEN_COLUMNS: Final = """
ALTER TABLE responses ADD COLUMN written_at REAL NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN written_at REAL NOT NULL DEFAULT 0;
UPDATE responses SET written_at = strftime('%s', 'now');
UPDATE conversations SET written_at = strftime('%s', 'now');
CREATE INDEX responses_by_age ON responses (written_at);
CREATE INDEX conversations_by_age ON conversations (written_at);
"""
"""What was kept before is as old as the migration."""

_RELAYED_TABLE: Final = """
CREATE TABLE relayed (id TEXT PRIMARY KEY, worker_url TEXT NOT NULL, owner TEXT NOT NULL, written_at REAL NOT NULL)
    WITHOUT ROWID;
CREATE INDEX relayed_by_age ON relayed (written_at);
"""


class NewerSchema(Exception):
    """The file was written by a later version of this program."""


def prepare_schema(db: sqlite3.Connection) -> None:
    """Make the tables, or bring those of an earlier version up to date, all in one transaction.

    Raises NewerSchema, and sqlite3.Error, which leaves the file as it was.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise NewerSchema
        if version < 1:
            _add_owners_and_items(db)
        if version < 2:
            _run(db, _WRITTEN_COLUMNS)
        if version < VERSION:
            _run(db, _RELAYED_TABLE)
            db.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _add_owners_and_items(db: sqlite3.Connection) -> None:
    """Make the tables of version 1, or of version 0's."""
    is_new = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'responses'").fetchone() is None
    _run(db, _TABLES if is_new else _OWNER_COLUMNS)
    _run(db, _ITEM_INDEXES)
    if not is_new:
        logger.info("migrating the history file of an earlier version; its contents are shared by all keys")
    for response_id, value, input_items in db.execute("SELECT id, value, input_items FROM responses"):
        try:
            items = [*json.loads(input_items), *json.loads(value)["output"]]
            index_items(db, response_id, items)
        except (ValueError, LookupError, TypeError):
            logger.warning("the items of the kept response %s cannot be read", response_id)


def _run(db: sqlite3.Connection, statements: str) -> None:
    # Not executescript, which commits first.
    for statement in statements.split(";"):
        db.execute(statement)


def index_items(db: sqlite3.Connection, response_id: str, items: Iterable[Item]) -> None:
    """Note which items a response holds, in place of those that an earlier state of it held."""
    rows = [(response_id, item["id"]) for item in items]
    db.execute("DELETE FROM response_items WHERE response_id = ?", (response_id,))
    db.executemany("INSERT OR IGNORE INTO response_items (response_id, item_id) VALUES (?, ?)", rows)
