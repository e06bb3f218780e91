"""What the PostgreSQL store is alone with: several gateways, a database that dies, hangs or refuses, and old tables."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
import trio

from smg_trio.core.conversations import StoredConversation, StoredResponse
from smg_trio.core.errors import ConfigError, Conflict
from smg_trio.history import HistoryOptions, HistoryStore, open_history
from smg_trio.history.base import HistoryUnavailable
from smg_trio.history.postgres import PostgresHistory
from smg_trio.history.postgres_pool import Pool
from smg_trio.history.postgres_schema import VERSION
from tests.postgres import PostgresServer


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresHistory]:
    async with open_history("postgres", HistoryOptions(url=url, **options)) as history:
        assert isinstance(history, PostgresHistory)
        yield history


def response(response_id: str, previous: str | None = None, **value: Any) -> StoredResponse:
    value = {"status": "completed", "output": [{"id": f"msg_{response_id}"}], **value}
    return StoredResponse(
        response_id=response_id, value=value, input_items=[], previous_response_id=previous, owner="a"
    )


# ---- several gateways ----------------------------------------------------------------------------------------


async def test_gateways_that_start_at_the_same_time_make_the_tables_once(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_url()
    async with trio.open_nursery() as nursery:

        async def use(number: int) -> None:
            async with opened(url, pool_max=1) as history:
                await history.put_response(response(f"r{number}", f"r{number - 1}"))

        for number in range(8):
            nursery.start_soon(use, number)
    async with opened(url) as history:
        for number in range(8):
            assert await history.has_response(f"r{number}")


async def test_what_two_gateways_add_to_a_conversation_at_the_same_time_is_not_mixed(
    postgres_server: PostgresServer,
) -> None:
    url = postgres_server.new_url()
    async with opened(url) as one, opened(url) as other, trio.open_nursery() as nursery:
        await one.put_conversation(StoredConversation(conversation_id="c", created_at=1, metadata={}))
        for number in range(10):
            store = one if number % 2 else other
            nursery.start_soon(store.add_items, "c", [{"id": f"{number}_{place}"} for place in range(20)])
    async with opened(url) as history:
        ids = [item["id"] for item in await history.items("c")]
    assert len(ids) == 200
    turns = [ids[start : start + 20] for start in range(0, 200, 20)]
    assert all(turn == [f"{turn[0].partition('_')[0]}_{place}" for place in range(20)] for turn in turns)


async def test_of_two_gateways_one_gets_an_id(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_url()
    outcomes: list[bool] = []

    async def put(store: HistoryStore, owner: str) -> None:
        try:
            await store.put_response(StoredResponse(response_id="r", value={"output": []}, owner=owner))
        except Conflict:
            outcomes.append(False)
        else:
            outcomes.append(True)

    async with opened(url) as one, opened(url) as other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(put, one, "alice")
            nursery.start_soon(put, other, "bob")
        assert sorted(outcomes) == [False, True]


# ---- what clients choose -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["\0", "\ud800", "žluť 😀", "x" * 100_000, "'; DROP TABLE x", "%s", "\\", "sha256:1"])
async def test_any_text_can_be_an_id_or_content(postgres_server: PostgresServer, text: str) -> None:
    async with opened(postgres_server.new_url()) as history:
        item = {"id": text, "text": text}
        kept = StoredResponse(
            response_id=text, value={"output": [item]}, input_items=[item], previous_response_id=text,
            conversation_id=text, owner=text,
        )  # fmt: skip
        await history.put_response(kept)
        assert await history.get_response(text, text) == kept
        assert await history.find_items([text], text) == {text: item}
        conversation = StoredConversation(conversation_id=text, created_at=1, metadata={text: text}, owner=text)
        await history.put_conversation(conversation)
        await history.add_items(text, [item])
        assert await history.get_conversation(text, text) == conversation
        assert await history.items(text) == [item]
        assert await history.delete_item(text, text)
        assert await history.delete_response(text, text)
        assert await history.get_response(text, text) is None


async def test_an_id_that_is_hashed_is_not_the_id_that_reads_like_its_hash(postgres_server: PostgresServer) -> None:
    async with opened(postgres_server.new_url()) as history:
        await history.put_response(StoredResponse(response_id="ž", value={"output": []}))
        with postgres_server.connect() as connection:
            found = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'history_%'").fetchall()
            keys = {
                row[0]
                for (schema,) in found
                for row in connection.execute(
                    psycopg.sql.SQL("SELECT id FROM {}.smg_trio_responses").format(psycopg.sql.Identifier(schema))
                )
                if connection.execute("SELECT to_regclass(%s)", (f"{schema}.smg_trio_responses",)).fetchone()
            }
        hashed = [key for key in keys if key.startswith("sha256:")]
        assert hashed
        for key in hashed:
            assert not await history.has_response(key)


# ---- tables of other versions --------------------------------------------------------------------------------


def schema_of(url: str) -> str:
    return url.rpartition("%3D")[2]


async def test_tables_of_a_later_version_are_refused(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_url()
    async with opened(url):
        pass
    with postgres_server.connect() as connection:
        connection.execute(f"UPDATE {schema_of(url)}.smg_trio_schema SET version = {VERSION + 1}")
    with pytest.raises(ConfigError, match=r"--history-url: .*later version"):
        async with opened(url):
            pass


async def test_a_user_without_the_right_to_make_tables_can_use_them(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_url()
    schema = schema_of(url)
    poor = url.replace("smg@", f"user_of_{schema}@")
    with postgres_server.connect() as connection:
        connection.execute(f"CREATE ROLE user_of_{schema} LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO user_of_{schema}")
        with pytest.raises(ConfigError, match=r"permission denied for schema"):
            async with opened(poor):
                pass
        async with opened(url):
            pass
        for kind in ("TABLES", "SEQUENCES"):
            connection.execute(f"GRANT ALL ON ALL {kind} IN SCHEMA {schema} TO user_of_{schema}")
    async with opened(poor) as history:
        await history.put_response(response("r"))
        assert await history.get_response("r", "a") == response("r")


async def test_every_holder_has_an_index(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_url()
    async with opened(url), opened(url):
        pass
    with postgres_server.connect() as connection:
        rows = connection.execute("SELECT indexdef FROM pg_indexes WHERE schemaname = %s", (schema_of(url),)).fetchall()
    indexes = " ".join(row[0] for row in rows)
    assert "smg_trio_responses USING btree (owner, written_at)" in indexes
    assert "smg_trio_conversations USING btree (owner, written_at)" in indexes


# ---- a database that is away ---------------------------------------------------------------------------------


async def test_what_was_acknowledged_survives_kill_9_and_the_same_store_goes_on(
    killable_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    acknowledged: list[str] = []
    failures = 0
    killed = trio.Event()

    async def write(history: HistoryStore, writer: int) -> None:
        nonlocal failures
        for number in range(1_000):
            response_id = f"r{writer}_{number}"
            try:
                await history.put_response(response(response_id))
            except HistoryUnavailable:
                failures += 1
                return
            acknowledged.append(response_id)
            if len(acknowledged) == 100:
                killed.set()

    async with opened(killable_server.new_url()) as history:
        async with trio.open_nursery() as nursery:
            for writer in range(4):
                nursery.start_soon(write, history, writer)
            await killed.wait()
            await trio.to_thread.run_sync(killable_server.kill)
        assert failures == 4
        with pytest.raises(HistoryUnavailable):
            await history.get_response("r0_0", "a")
        with pytest.raises(HistoryUnavailable):
            history.ensure_writable()
        await trio.to_thread.run_sync(killable_server.start)
        assert len(acknowledged) >= 100
        for response_id in acknowledged:
            assert await history.get_response(response_id, "a") == response(response_id)
        await history.put_response(response("after"))
        history.ensure_writable()
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert re.match(r"history in PostgreSQL at /\S+/postgres is unavailable: .* \(failed calls: \d+\)", line.message)


async def test_a_restart_costs_no_call(killable_server: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(killable_server.new_url()) as history:
        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(history.put_response, response(f"r{number}"))
        killable_server.stop()
        killable_server.start()
        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(history.put_response, response(f"s{number}"))
        history.ensure_writable()
    assert caplog.records == []


async def test_a_database_that_hangs_is_waited_for_until_the_deadline(killable_server: PostgresServer) -> None:
    async with opened(killable_server.new_url(), timeout_s=0.3, pool_max=2) as history:
        await history.put_response(response("r"))
        with killable_server.stopped():
            started = trio.current_time()
            for _ in range(3):  # on the idle connection, then while connecting
                with pytest.raises(HistoryUnavailable):
                    await history.put_response(response("s"))
            assert trio.current_time() - started > 0.9
            with trio.move_on_after(0.01):  # cancelled, it ends at its deadline too
                with pytest.raises(HistoryUnavailable):
                    await history.get_response("r", "a")
        assert await history.get_response("r", "a") == response("r")


async def test_calls_wait_for_a_connection_no_longer_than_for_the_database(postgres_server: PostgresServer) -> None:
    pool = Pool(postgres_server.new_url(), 1, 0.2, lambda db: None)
    with pytest.raises(psycopg.OperationalError, match=r"no answer within 0\.2 s|statement timeout"):
        await pool.run(lambda db: db.execute("SELECT pg_sleep(60)"))
    await pool._slots.acquire()
    with pytest.raises(psycopg.OperationalError, match=r"in use for 0\.2 s"):
        await pool.run(lambda db: None)
    pool._slots.release()
    assert await pool.run(lambda db: 5) == 5
    pool.close()


async def test_a_database_that_is_away_at_the_start_is_used_when_it_comes(
    killable_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = killable_server.new_url()
    killable_server.stop()
    async with opened(url) as history:
        with pytest.raises(HistoryUnavailable):
            history.ensure_writable()
        with pytest.raises(HistoryUnavailable):
            await history.has_response("r")
        killable_server.start()
        await history.put_response(response("r"))
        assert await history.get_chain("r", "a") == [response("r")]
    assert len(caplog.records) == 1, "one line a minute"


async def test_a_commit_is_on_disk_whatever_the_databases_default(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_url()
    for given, used in (("off", "on"), ("on", "on"), ("remote_apply", "remote_apply"), ("local", "local")):
        pool = Pool(f"{url}%20-c%20synchronous_commit%3D{given}", 1, 5, lambda db: None)
        shown = await pool.run(lambda db: db.execute("SHOW synchronous_commit").fetchone())
        assert shown == (used,)
        pool.close()


# ---- what is refused, and what is never shown ----------------------------------------------------------------


async def test_a_database_that_refuses_is_an_error_at_the_start_without_the_password(
    postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres_server.new_url(password="s%C3%BCcret")
    for wrong in (url.replace("/postgres?", "/nothing?"), url.replace("smg:", "nobody:")):
        with pytest.raises(ConfigError, match=r"--history-url: PostgreSQL at \S+ cannot be used: .*FATAL") as refused:
            async with opened(wrong):
                pass
        assert "cret" not in str(refused.value)
    with pytest.raises(ConfigError, match="not a URL that PostgreSQL understands") as refused:
        async with opened(f"{url}&nonsense=süs%zzcret"):
            pass
    assert "cret" not in str(refused.value)
    assert "cret" not in caplog.text


async def test_an_error_that_quotes_the_password_is_shown_without_it(
    postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(postgres_server.new_url(password="TOPSECRET")) as history:

        def complain(db: psycopg.Connection[Any]) -> None:
            db.execute("SELECT 'TOPSECRET'::integer")

        with pytest.raises(HistoryUnavailable):
            await history._read(complain)
    assert "invalid input syntax" in caplog.text
    assert "TOPSECRET" not in caplog.text
    assert "********" in caplog.text


async def test_without_psycopg_the_setting_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "smg_trio.history.postgres", None)
    with pytest.raises(ConfigError, match=r"Install smg-trio\[postgres\]"):
        async with opened("postgresql://smg@/x"):
            pass


# ---- growth --------------------------------------------------------------------------------------------------


async def test_more_than_one_batch_is_forgotten(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_url()
    async with opened(url) as history:
        await history.put_response(response("new"))
        with postgres_server.connect() as connection:
            connection.execute(f"SET search_path = {schema_of(url)}")
            connection.execute(
                "INSERT INTO smg_trio_responses (id, owner, pending, number, written_at, record)"
                " SELECT 'old' || n, '', false, 0, now() - interval '1 day', '{}' FROM generate_series(1, 2500) n"
            )
        assert await history.forget_old(3600) == 2500
        assert await history.get_response("new", "a") == response("new")


async def test_a_response_of_many_items_and_megabytes(postgres_server: PostgresServer) -> None:
    async with opened(postgres_server.new_url()) as history:
        output = [{"id": f"msg_{number}", "text": "x" * 1000} for number in range(5_000)]
        big = StoredResponse(response_id="big", value={"output": output}, input_items=[], owner="a")
        await history.put_response(big)
        await history.put_response(big)
        assert await history.get_response("big", "a") == big
        assert len(await history.find_items([item["id"] for item in output[:10]], "a")) == 10
