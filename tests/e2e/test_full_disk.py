"""A disk that is full costs what was to be stored, not the answer, and fills no log."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import WebSocketConnection, open_websocket_url

from smg_trio.gateway.generation import responses_run as responding
from smg_trio.history import retention
from smg_trio.history.sqlite import SqliteHistory

from .harness import ENDLESS, HELLO, PATIENCE_S, Bench, error_of, open_gateway

LONG = "x" * 20_000
"""Needs more pages than a file has free."""


def database(bench: Bench) -> sqlite3.Connection:
    assert isinstance(bench.gateway.history, SqliteHistory)
    return bench.gateway.history._connection


def fill(bench: Bench) -> None:
    """SQLite may take no further page, which is what it says of a full disk."""
    (pages,) = database(bench).execute("PRAGMA page_count").fetchone()
    database(bench).execute(f"PRAGMA max_page_count = {pages}")


def make_room(bench: Bench) -> None:
    database(bench).execute("PRAGMA max_page_count = 1000000")


def let_time_pass(bench: Bench) -> None:
    """So long ago was the last failure that the next write is tried."""
    assert isinstance(bench.gateway.history, SqliteHistory)
    bench.gateway.history._availability.forget_failure()


@asynccontextmanager
async def full_gateway(tmp_path: Path, says: str = HELLO, **options: Any) -> AsyncIterator[Bench]:
    options.setdefault("engine", {"max_model_len": 100_000})
    async with open_gateway(tmp_path, says, history_backend=f"sqlite:{tmp_path}/history.db", **options) as bench:
        fill(bench)
        yield bench


async def create(bench: Bench, **fields: Any) -> httpx.Response:
    return await bench.http.post("/v1/responses", json={"input": LONG} | fields)


async def turn(socket: WebSocketConnection, **fields: Any) -> dict[str, Any]:
    """The response of a turn."""
    await socket.send_message(json.dumps({"type": "response.create", "input": LONG} | fields))
    with trio.fail_after(PATIENCE_S):
        while (event := json.loads(await socket.get_message()))["type"] != "response.completed":
            assert event["type"] != "error", event
    value: dict[str, Any] = event["response"]
    return value


def assert_unavailable(answer: httpx.Response) -> None:
    error = error_of(answer, 503)
    assert (error["type"], error["code"]) == ("server_error", "history_unavailable")


async def test_the_answer_is_given_and_says_that_it_is_not_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with full_gateway(tmp_path) as bench:
        whole = await create(bench)
        assert whole.status_code == 200, whole.text
        body = whole.json()
        assert (body["status"], body["output"][0]["content"][0]["text"]) == ("completed", "Hello world")
        assert body["store"] is False
        error_of(await bench.http.get(f"/v1/responses/{body['id']}"), 404)

        streamed = await create(bench, stream=True)
        sent = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
        assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
        assert (sent[-1]["type"], sent[-1]["response"]["store"]) == ("response.completed", False)

        async with open_websocket_url(f"ws://127.0.0.1:{bench.port}/v1/responses") as socket:
            first = await turn(socket)
            assert first["store"] is False
            # The connection remembers what it could not store.
            assert (await turn(socket, previous_response_id=first["id"]))["store"] is False

        assert (await create(bench, store=False)).json()["store"] is False
        lines = [record for record in caplog.records if record.name == "smg_trio.history"]
        assert len(lines) == 1, "one line a minute"
        assert "is unavailable: database or disk is full" in lines[0].getMessage()
        assert not any(record.exc_info for record in caplog.records)
        make_room(bench)
        assert (await create(bench)).json()["store"] is True
        await bench.wait_idle()


async def test_where_storing_is_the_point_it_is_an_error_and_not_generated_in_vain_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with full_gateway(tmp_path) as bench:
        talk = (await bench.http.post("/v1/conversations", json={})).json()
        assert_unavailable(await create(bench, background=True))
        assert bench.engine.received == [], "refused before it was generated"
        for fields in ({"store": True}, {"conversation": talk["id"]}, {"store": True, "stream": True}):
            assert_unavailable(await create(bench, **fields))
        assert bench.engine.received == []
        let_time_pass(bench)
        assert_unavailable(await create(bench, store=True))
        assert len(bench.engine.received) == 1
        items = [{"role": "user", "content": LONG}]
        assert_unavailable(await bench.http.post("/v1/conversations", json={"items": items}))
        assert_unavailable(await bench.http.post(f"/v1/conversations/{talk['id']}/items", json={"items": items}))
        assert (await bench.http.get(f"/v1/conversations/{talk['id']}")).status_code == 200, "reading goes on"
        assert not any(record.exc_info for record in caplog.records)
        make_room(bench)
        let_time_pass(bench)
        assert (await create(bench, conversation=talk["id"])).json()["store"] is True
        assert len((await bench.http.get(f"/v1/conversations/{talk['id']}/items")).json()["data"]) == 2


async def test_a_response_in_the_background_is_stored_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(responding, "_FIRST_PAUSE_S", 0.01)
    async with full_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.001, "max_model_len": 100_000}) as bench:
        make_room(bench)
        answer = await create(bench, background=True, max_output_tokens=2000, request_id="r", input="hi")
        assert answer.json()["status"] == "queued"
        await bench.engine.wait_received(1)
        fill(bench)
        await bench.wait_idle()
        assert (await bench.http.get("/v1/responses/r")).json()["status"] in ("queued", "in_progress")
        make_room(bench)
        with trio.fail_after(PATIENCE_S):
            while True:
                found = (await bench.http.get("/v1/responses/r")).json()
                if found["status"] == "incomplete":
                    break
                await trio.sleep(0.01)
        assert len(found["output"][0]["content"][0]["text"]) == 2000
        assert not any(record.exc_info for record in caplog.records)


async def test_a_broken_file_is_an_error_without_a_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with full_gateway(tmp_path) as bench:
        database(bench).execute("DROP TABLE response_items")
        database(bench).execute("DROP TABLE responses")
        assert (await create(bench, input="hi")).json()["store"] is False
        for method, path in [("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")]:
            assert_unavailable(await bench.http.request(method, f"/v1/responses/x{path}"))
        assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_what_is_older_than_the_retention_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr(retention, "_SHORTEST_S", 0.01)
    history = f"sqlite:{tmp_path}/history.db" if backend == "sqlite" else backend
    async with open_gateway(tmp_path, HELLO, history_backend=history, history_retention_secs=0.2) as bench:
        kept = (await create(bench, input="hi")).json()["id"]
        with trio.fail_after(PATIENCE_S):
            while True:
                if (await bench.http.get(f"/v1/responses/{kept}")).status_code == 404:
                    break
                await trio.sleep(0.01)


async def test_a_history_that_keeps_nothing_says_so_and_takes_no_background_work(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, history_backend="none") as bench:
        assert (await create(bench, input="hi")).json()["store"] is False
        error_of(await create(bench, input="hi", background=True), 400)
        assert len(bench.engine.received) == 1
