"""All stores by the same checks; and what memory and SQLite are alone with."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from smg_trio.core.conversations import StoredConversation, StoredResponse
from smg_trio.core.errors import ConfigError, Conflict
from smg_trio.history import HistoryOptions, HistoryStore, open_history
from smg_trio.history.base import HistoryUnavailable
from smg_trio.history.memory import MemoryHistory
from smg_trio.history.retention import keep_forgetting
from smg_trio.history.sqlite import SqliteHistory
from tests.postgres import PostgresServer

Opener = Callable[[], AbstractAsyncContextManager[HistoryStore]]


@asynccontextmanager
async def opened(backend: str, **options: Any) -> AsyncIterator[HistoryStore]:
    async with open_history(backend, HistoryOptions(**options)) as history:
        assert history is not None
        yield history


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the same store each time; memory has forgotten."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return partial(opened, "postgres", url=server.new_url())
    return partial(opened, f"sqlite:{tmp_path}/history.db" if request.param == "sqlite" else "memory")


def sqlite_store(tmp_path: Path) -> AbstractAsyncContextManager[HistoryStore]:
    return opened(f"sqlite:{tmp_path}/history.db")


def response(number: int, previous: int | None = None, *, owner: str = "", **value: object) -> StoredResponse:
    return StoredResponse(
        owner=owner,
        response_id=f"resp_{number}",
        value={"status": "completed", "output": [{"id": f"msg_{number}", "text": "žluť 😀"}], **value},
        input_items=[{"id": f"in_{number}"}],
        previous_response_id=None if previous is None else f"resp_{previous}",
    )


async def test_responses_are_kept_replaced_and_forgotten(store: Opener) -> None:
    async with store() as history:
        assert await history.get_response("resp_1", "") is None
        await history.put_response(response(1, status="queued"))
        await history.put_response(response(1))
        assert await history.get_response("resp_1", "") == response(1)
        assert await history.delete_response("resp_1", "")
        assert not await history.delete_response("resp_1", "")
        assert await history.get_response("resp_1", "") is None


async def test_a_chain_is_oldest_first_and_broken_by_a_missing_link(store: Opener) -> None:
    async with store() as history:
        for number in (1, 2, 3):
            await history.put_response(response(number, number - 1 or None))
        assert await history.get_chain("resp_3", "") == [response(1), response(2, 1), response(3, 2)]
        await history.delete_response("resp_1", "")
        assert await history.get_chain("resp_3", "") is None
        await history.put_response(response(1, 3))
        chain = await history.get_chain("resp_3", "")
        assert chain is not None
        assert len(chain) == 3, "a circle ends"


async def test_conversations_and_their_items(store: Opener) -> None:
    async with store() as history:
        conversation = StoredConversation(conversation_id="conv_1", created_at=5, metadata={"a": "b"})
        await history.add_items("conv_1", [{"id": "lost"}])
        await history.put_conversation(conversation)
        await history.add_items("conv_1", [{"id": "1"}, {"id": "2"}])
        await history.add_items("conv_1", [{"id": "2", "again": True}, {"id": "3"}])
        renamed = StoredConversation(conversation_id="conv_1", created_at=5, metadata={"c": "d"})
        await history.put_conversation(renamed)
        assert await history.get_conversation("conv_1", "") == renamed
        assert await history.items("conv_1") == [{"id": "1"}, {"id": "2"}, {"id": "3"}]
        assert await history.delete_item("conv_1", "2")
        assert not await history.delete_item("conv_1", "2")
        assert await history.items("conv_1") == [{"id": "1"}, {"id": "3"}]
        assert await history.delete_conversation("conv_1", "")
        assert await history.items("conv_1") == []
        assert not await history.delete_conversation("conv_1", "")


async def test_a_long_chain_is_read_whole(store: Opener) -> None:
    async with store() as history:
        for number in range(1, 201):
            await history.put_response(response(number, number - 1 or None, owner="alice" if number > 1 else ""))
        chain = await history.get_chain("resp_200", "alice")
        assert chain is not None
        assert [one.response_id for one in chain] == [f"resp_{number}" for number in range(1, 201)]
        assert chain[-1] == response(200, 199, owner="alice")
        assert chain[0].owner == ""


async def test_memory_is_bounded_and_forgets_what_was_not_used_for_longest() -> None:
    history = MemoryHistory(max_responses=2, max_conversations=1)
    await history.put_response(response(1))
    await history.put_response(response(2))
    await history.get_response("resp_1", "")
    await history.put_response(response(3))
    assert await history.get_response("resp_2", "") is None
    assert await history.get_response("resp_1", "") is not None
    for number in range(2):
        await history.put_conversation(StoredConversation(conversation_id=str(number), created_at=0, metadata={}))
    assert await history.get_conversation("0", "") is None
    assert await history.items("0") == []


@pytest.mark.parametrize("backend", ["", "sqlite:", "redis", "sqlite:/nonexistent/dir/file.db"])
async def test_an_unusable_backend_is_refused_by_name(backend: str) -> None:
    with pytest.raises(ConfigError, match="history-backend"):
        async with open_history(backend):
            pass


async def test_none_keeps_nothing() -> None:
    async with open_history("none") as history:
        assert history is None


_WRITER = """
import sys, trio
from smg_trio.core.conversations import StoredResponse
from smg_trio.history import open_history

async def main(path, first):
    async with open_history("sqlite:" + path) as history:
        number = first
        while True:
            await history.put_response(StoredResponse(response_id=f"r{number}", value={"output": [], "n": number}))
            print(number, flush=True)
            number += 1

trio.run(main, sys.argv[1], int(sys.argv[2]))
"""


@pytest.mark.e2e  # starts processes
async def test_nothing_acknowledged_is_lost_to_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    acknowledged = -1
    for _ in range(20):
        command = [sys.executable, "-c", _WRITER, str(path), str(acknowledged + 1)]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        output = b""
        while output.count(b"\n") < 5:
            output += await process.stdout.receive_some()
        process.send_signal(signal.SIGKILL)
        async for chunk in process.stdout:
            output += chunk
        await process.wait()
        acknowledged = int(output.split(b"\n")[output.count(b"\n") - 1])
        async with open_history(f"sqlite:{path}") as history:
            assert history is not None
            for number in range(acknowledged + 1):
                kept = await history.get_response(f"r{number}", "")
                assert kept is not None
                assert kept.value["n"] == number


async def test_memory_forgets_the_oldest_when_all_are_too_heavy() -> None:
    history = MemoryHistory(max_weight=10_000)
    for number in (1, 2, 3):
        await history.put_response(response(number, text="x" * 4_000))
    assert await history.get_response("resp_1", "") is None
    assert await history.get_response("resp_3", "") is not None
    await history.put_response(response(3, text="x"))
    await history.put_response(response(4, text="x" * 4_000))
    assert await history.get_response("resp_2", "") is not None, "what was replaced weighs nothing"
    for number in (1, 2):
        await history.put_conversation(StoredConversation(conversation_id=f"c{number}", created_at=0, metadata={}))
        await history.add_items(f"c{number}", [{"id": "i", "text": "x" * 6_000}])
    assert await history.get_conversation("c1", "") is None
    assert len(await history.items("c2")) == 1


# ---- whose it is ---------------------------------------------------------------------------------------------


async def test_what_one_owner_keeps_does_not_exist_for_another(store: Opener) -> None:
    async with store() as history:
        await history.put_response(response(1, owner="alice"))
        await history.put_response(response(2, 1, owner="alice"))
        for other in ("bob", "", "ali"):
            assert await history.get_response("resp_1", other) is None
            assert await history.get_chain("resp_2", other) is None
            assert not await history.delete_response("resp_1", other)
            assert await history.find_items(["msg_1", "in_1"], other) == {}
            with pytest.raises(Conflict):
                await history.put_response(response(1, owner=other))
        assert await history.has_response("resp_1")
        assert await history.get_chain("resp_2", "alice") == [
            response(1, owner="alice"),
            response(2, 1, owner="alice"),
        ]
        assert await history.delete_response("resp_1", "alice")
        assert not await history.has_response("resp_1")
        await history.put_response(response(1, owner="bob"))
        assert await history.get_chain("resp_2", "alice") is None, "a chain does not lead to another owner's"


async def test_conversations_have_owners_too(store: Opener) -> None:
    async with store() as history:
        conversation = StoredConversation(conversation_id="c", created_at=5, metadata={}, owner="alice")
        await history.put_conversation(conversation)
        await history.add_items("c", [{"id": "1"}])
        for other in ("bob", ""):
            assert await history.get_conversation("c", other) is None
            assert not await history.delete_conversation("c", other)
            assert await history.find_items(["1"], other) == {}
        assert await history.get_conversation("c", "alice") == conversation
        assert await history.delete_conversation("c", "alice")


async def test_what_was_kept_without_keys_is_everybodys(store: Opener) -> None:
    async with store() as history:
        await history.put_response(response(1))
        await history.put_response(response(2, 1, owner="alice"))
        assert await history.get_response("resp_1", "bob") == response(1)
        assert len(await history.get_chain("resp_2", "alice") or ()) == 2
        assert list(await history.find_items(["msg_1"], "bob")) == ["msg_1"]
        assert await history.delete_response("resp_1", "bob")


# ---- items by their ids --------------------------------------------------------------------------------------


def holding(response_id: str, *items: tuple[str, str], owner: str = "a") -> StoredResponse:
    output = [{"id": item_id, "text": text} for item_id, text in items]
    return StoredResponse(response_id=response_id, value={"output": output}, owner=owner)


async def test_items_are_found_by_their_ids_wherever_they_are_kept(store: Opener) -> None:
    async with store() as history:

        async def text_of(item_id: str, owner: str = "a") -> str | None:
            found = await history.find_items([item_id, "never"], owner)
            return found[item_id]["text"] if found else None

        await history.put_response(holding("r1", ("i", "first"), ("j", "j")))
        await history.put_response(holding("r2", ("i", "second")))
        await history.put_response(holding("shared", ("i", "shared"), ("k", "k"), owner=""))
        await history.put_response(holding("other", ("i", "b's"), owner="b"))
        assert (await text_of("i"), await text_of("i", "b"), await text_of("i", "c")) == ("second", "b's", "shared")
        assert (await text_of("j"), await text_of("k")) == ("j", "k")
        await history.put_response(holding("r2", ("new", "new")))
        assert (await text_of("i"), await text_of("new")) == ("first", "new"), "a later state holds other items"
        await history.delete_response("r1", "a")
        assert (await text_of("i"), await text_of("j")) == ("shared", None)
        await history.delete_response("shared", "a")
        assert await text_of("i") is None
        await history.put_conversation(StoredConversation(conversation_id="c", created_at=0, metadata={}, owner="a"))
        await history.add_items("c", [{"id": "i", "text": "talk"}, {"id": "i", "text": "again"}])
        assert (await text_of("i"), await text_of("i", "b")) == ("talk", "b's")
        await history.delete_item("c", "i")
        assert await text_of("i") is None
        await history.add_items("c", [{"id": "i", "text": "talk"}])
        await history.delete_conversation("c", "a")
        assert await text_of("i") is None


async def test_a_later_state_without_an_item_does_not_hide_the_same_item_kept_elsewhere(store: Opener) -> None:
    async with store() as history:
        await history.put_response(holding("r1", ("i", "kept")))
        await history.put_response(holding("r2", ("i", "gone")))
        await history.put_response(holding("r2"))
        assert (await history.find_items(["i"], "a"))["i"]["text"] == "kept"


async def test_memory_forgets_items_with_what_held_them() -> None:
    history = MemoryHistory(max_responses=1, max_conversations=1)
    for number in range(3):
        await history.put_response(holding(f"r{number}", ("i", "x"), (f"i{number}", "x")))
        await history.put_conversation(
            StoredConversation(conversation_id=f"c{number}", created_at=0, metadata={}, owner="a")
        )
        await history.add_items(f"c{number}", [{"id": f"j{number}"}])
    assert set(await history.find_items(["i", "i0", "i1", "i2", "j0", "j1", "j2"], "a")) == {"i", "i2", "j2"}
    await history.delete_response("r2", "a")
    await history.delete_conversation("c2", "a")
    assert history._response_index._keys == history._conversation_index._keys == {}


# ---- files of earlier versions -------------------------------------------------------------------------------

_FIRST_SCHEMA = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, value TEXT NOT NULL, input_items TEXT NOT NULL, previous_id TEXT, conversation_id TEXT
) WITHOUT ROWID;
CREATE TABLE conversations (
    id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, metadata TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE items (
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (conversation_id, number), UNIQUE (conversation_id, id)
) WITHOUT ROWID;
INSERT INTO responses VALUES ('resp_1', '{"output": [{"id": "msg_1", "text": "old"}]}', '[{"id": "in_1"}]', NULL, NULL);
INSERT INTO responses VALUES ('resp_2', '{"output": []}', '[]', 'resp_1', NULL);
INSERT INTO conversations VALUES ('conv_1', 7, '{"a": "b"}');
INSERT INTO items VALUES ('conv_1', 1, 'it_1', '{"id": "it_1"}');
"""


async def test_a_file_of_an_earlier_version_is_brought_up_to_date_and_its_contents_are_everybodys(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(_FIRST_SCHEMA)
    for owner in ("alice", "", "bob"):  # the second and third time it is up to date already
        async with sqlite_store(tmp_path) as history:
            chain = await history.get_chain("resp_2", owner)
            assert chain is not None
            assert [one.response_id for one in chain] == ["resp_1", "resp_2"]
            assert set(await history.find_items(["msg_1", "in_1", "it_1"], owner)) == {"msg_1", "in_1", "it_1"}
            assert await history.get_conversation("conv_1", owner) == StoredConversation(
                conversation_id="conv_1", created_at=7, metadata={"a": "b"}
            )
            if owner == "alice":
                await history.put_response(response(3, 2, owner="alice"))
            assert (await history.get_response("resp_3", owner) is not None) is (owner == "alice")


async def test_what_a_file_without_times_holds_is_as_old_as_its_migration(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path) as history:
        await history.put_response(response(1, owner="alice"))
        await history.put_conversation(StoredConversation(conversation_id="c", created_at=0, metadata={}))
    with closing(sqlite3.connect(tmp_path / "history.db")) as first:  # as version 1 made it
        first.executescript("""
            DROP INDEX responses_by_age; ALTER TABLE responses DROP COLUMN written_at;
            DROP INDEX conversations_by_age; ALTER TABLE conversations DROP COLUMN written_at;
            DROP TABLE relayed; PRAGMA user_version = 1;
        """)
    async with sqlite_store(tmp_path) as history:
        assert await history.get_response("resp_1", "alice") == response(1, owner="alice")
        assert await history.forget_old(3600) == 0
        assert await history.forget_old(-3600) == 2


async def test_a_file_that_cannot_be_brought_up_to_date_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(_FIRST_SCHEMA)
        old.execute("CREATE TABLE response_items (something TEXT)")
    with pytest.raises(ConfigError, match="history-backend"):
        async with sqlite_store(tmp_path):
            pass
    with closing(sqlite3.connect(path)) as old:
        assert old.execute("PRAGMA user_version").fetchone() == (0,)
        assert len(old.execute("SELECT * FROM responses").fetchone()) == 5


async def test_a_kept_response_that_cannot_be_read_does_not_hinder_the_others(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "history.db")) as old:
        old.executescript(_FIRST_SCHEMA)
        for number, value in enumerate(("no JSON", "[]", '{"output": [{}]}', '{"output": 5}')):
            old.execute(f"INSERT INTO responses VALUES ('bad{number}', '{value}', '[]', NULL, NULL)")
        old.commit()
    async with sqlite_store(tmp_path) as history:
        assert set(await history.find_items(["msg_1", "in_1"], "")) == {"msg_1", "in_1"}


async def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "history.db")) as later:
        later.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="later version"):
        async with sqlite_store(tmp_path):
            pass


# ---- who can open the files ----------------------------------------------------------------------------------


def modes(tmp_path: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
async def test_only_the_gateways_user_can_open_the_files(
    tmp_path: Path, umask: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = os.umask(umask)
    try:
        async with sqlite_store(tmp_path) as history:
            await history.put_response(response(1))
            assert modes(tmp_path) == dict.fromkeys(("history.db", "history.db-wal", "history.db-shm"), 0o600)
    finally:
        os.umask(before)
    assert caplog.records == []


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o604])
async def test_a_file_that_others_can_open_is_warned_of_and_left_as_it_is(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.db"
    path.touch()
    path.chmod(mode)
    async with sqlite_store(tmp_path) as history:
        await history.put_response(response(1))
    (line,) = caplog.records
    assert f"chmod 600 {path} {path}-wal {path}-shm" in line.getMessage()
    assert modes(tmp_path) == {"history.db": mode}


async def test_a_history_in_sqlites_memory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_history("sqlite::memory:") as history:
        assert history is not None
        await history.put_response(response(1))
        assert await history.get_response("resp_1", "") == response(1)
    assert modes(tmp_path) == {}


# ---- what cannot be read or written --------------------------------------------------------------------------


async def test_a_transaction_that_fails_leaves_the_store_usable_and_is_logged_once_a_minute(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with sqlite_store(tmp_path) as history:
        assert isinstance(history, SqliteHistory)
        await history.put_response(response(1))
        history.ensure_writable()
        history._connection.execute("PRAGMA query_only = 1")
        for _ in range(3):
            with pytest.raises(HistoryUnavailable):
                await history.put_response(response(2))
        assert await history.get_response("resp_1", "") == response(1)
        with pytest.raises(HistoryUnavailable):
            history.ensure_writable()
        await trio.sleep(5)
        history.ensure_writable()
        assert len(caplog.records) == 1
        await trio.sleep(60)
        with pytest.raises(HistoryUnavailable):
            await history.delete_response("resp_1", "")
        assert [record.message.partition(": ")[2] for record in caplog.records] == [
            "attempt to write a readonly database (failed calls: 1)",
            "attempt to write a readonly database (failed calls: 3)",
        ]
        history._connection.execute("PRAGMA query_only = 0")
        await history.put_response(response(2))
        history.ensure_writable()


# ---- later states, and age -----------------------------------------------------------------------------------


async def test_where_a_relayed_response_is_belongs_to_its_owner(store: Opener) -> None:
    async with store() as history:
        assert await history.find_relayed("resp_1", "alice") is None
        await history.put_relayed("resp_1", "http://a", "alice")
        await history.put_relayed("resp_1", "http://b", "bob")  # another owner's note is not replaced
        await history.put_relayed("resp_2", "http://b", "")
        await history.put_relayed("resp_2", "http://c", "")
        assert await history.find_relayed("resp_1", "alice") == ("http://a", True)
        assert await history.find_relayed("resp_1", "bob") == ("http://a", False)
        assert await history.find_relayed("resp_1", "") == ("http://a", False)
        assert await history.find_relayed("resp_2", "bob") == ("http://c", True)
        await history.delete_relayed("resp_1", "bob")
        assert await history.find_relayed("resp_1", "alice") == ("http://a", True)
        await history.delete_relayed("resp_1", "alice")
        assert await history.find_relayed("resp_1", "alice") is None
        assert await history.forget_old(3600) == 0
        assert await history.forget_old(-3600) == 1
        assert await history.find_relayed("resp_2", "") is None


async def test_only_a_response_that_is_pending_has_later_states(store: Opener) -> None:
    async with store() as history:
        assert not await history.update_response(response(1, status="in_progress"))
        assert not await history.has_response("resp_1"), "what was deleted does not come back"
        await history.put_response(response(1, status="queued", owner="alice"))
        assert not await history.update_response(response(1, owner="bob"))
        assert not await history.update_response(response(1))
        assert await history.update_response(response(1, status="in_progress", owner="alice"))
        ended = response(1, owner="alice")
        assert await history.update_response(ended)
        assert not await history.update_response(response(1, status="cancelled", owner="alice"))
        assert await history.get_response("resp_1", "alice") == ended
        assert set(await history.find_items(["msg_1", "in_1"], "alice")) == {"msg_1", "in_1"}


async def test_what_was_written_long_ago_is_forgotten(store: Opener) -> None:
    async with store() as history:
        await history.put_response(response(1))
        await history.put_conversation(StoredConversation(conversation_id="c", created_at=0, metadata={}))
        await history.add_items("c", [{"id": "i"}])
        assert await history.forget_old(3600) == 0
        assert await history.has_response("resp_1")
        assert await history.forget_old(0) == 2
        assert not await history.has_response("resp_1")
        assert await history.get_conversation("c", "") is None
        assert await history.find_items(["msg_1", "in_1", "i"], "") == {}


async def test_age_counts_from_the_last_write(autojump_clock: MockClock) -> None:
    history = MemoryHistory()
    await history.put_response(response(1))
    await history.put_response(response(2))
    await history.put_conversation(StoredConversation(conversation_id="c", created_at=0, metadata={}))
    await history.put_conversation(StoredConversation(conversation_id="d", created_at=0, metadata={}))
    await trio.sleep(100)
    await history.put_response(response(1))
    await history.add_items("c", [{"id": "i"}])
    await history.get_response("resp_2", "")
    assert await history.forget_old(50) == 2
    assert await history.has_response("resp_1")
    assert not await history.has_response("resp_2")
    assert await history.get_conversation("c", "") is not None


async def test_old_responses_are_forgotten_again_and_again(autojump_clock: MockClock) -> None:
    history = MemoryHistory()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_forgetting, history, 100.0)
        for number in range(20):
            await history.put_response(response(number))
            await trio.sleep(30)
            assert 3 <= len(history._responses) <= 5 or number < 4
        nursery.cancel_scope.cancel()
