"""Two gateways with one PostgreSQL database, and what clients see when it is away."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import open_websocket_url

from smg_trio.gateway.generation import responses_run
from smg_trio.history.postgres import PostgresHistory
from tests.postgres import PostgresServer

from .database_kills import kill_during
from .harness import COUNTING, ENDLESS, HELLO, PATIENCE_S, Bench, error_of, open_gateway

KEYS = '[keys.alice]\nkey = "a-key"\n[keys.bob]\nkey = "b-key"\n'
ALICE, BOB = {"authorization": "Bearer a-key"}, {"authorization": "Bearer b-key"}


@asynccontextmanager
async def sharing(tmp_path: Path, url: str, count: int = 2, says: Any = HELLO, **options: Any) -> AsyncIterator[Any]:
    """Gateways with one history, each with an engine of its own."""
    async with AsyncExitStack() as stack:
        benches = []
        for number in range(count):
            directory = tmp_path / str(number)
            directory.mkdir()
            gateway = open_gateway(directory, says, history_backend="postgres", history_url=url, **options)
            benches.append(await stack.enter_async_context(gateway))
        yield benches


async def create(bench: Bench, who: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return await bench.http.post("/v1/responses", json={"input": "hi"} | fields, headers=who)


def assert_unavailable(answer: httpx.Response) -> None:
    error = error_of(answer, 503)
    assert (error["type"], error["code"]) == ("server_error", "history_unavailable")
    assert answer.headers["x-smg-error-code"] == "history_unavailable"


async def wait_incomplete(bench: Bench, response_id: str) -> Any:
    """The response when it has ended."""
    with trio.fail_after(PATIENCE_S):
        while True:
            found = (await bench.http.get(f"/v1/responses/{response_id}")).json()
            if found["status"] == "incomplete":
                return found
            await trio.sleep(0.01)


def let_time_pass(bench: Bench) -> None:
    """So long ago was the last failure that the next write is tried."""
    assert isinstance(bench.gateway.history, PostgresHistory)
    bench.gateway.history._availability.forget_failure()


async def test_a_conversation_goes_on_through_another_gateway(tmp_path: Path, postgres_server: PostgresServer) -> None:
    (tmp_path / "keys.toml").write_text(KEYS)
    (tmp_path / "keys.toml").chmod(0o600)
    keys = {"api_key_file": str(tmp_path / "keys.toml")}
    async with sharing(tmp_path, postgres_server.new_url(), **keys) as (one, other):
        first = (await create(one, ALICE, input="FIRST", request_id="first")).json()
        assert (await other.http.get("/v1/responses/first", headers=ALICE)).json() == first
        second = await create(other, ALICE, previous_response_id="first", input="SECOND", stream=True)
        assert '"type":"response.completed"' in second.text
        prompt = other.engine.received[-1].prompt_token_ids
        alone = await create(other, ALICE, input="SECOND")
        assert alone.status_code == 200
        assert len(prompt) > len(other.engine.received[-1].prompt_token_ids), "it has read what came before"

        # Its items too, by reference and over a WebSocket; and for nobody else.
        reference = [{"type": "item_reference", "id": first["output"][0]["id"]}]
        assert (await create(other, ALICE, input=reference)).status_code == 200
        error_of(await create(other, BOB, input=reference), 400)
        error_of(await create(other, BOB, previous_response_id="first"), 400)
        error_of(await create(other, BOB, request_id="first"), 409)
        url = f"ws://127.0.0.1:{other.port}/v1/responses"
        async with open_websocket_url(url, extra_headers=list(ALICE.items())) as socket:
            turn = {"type": "response.create", "input": "x", "previous_response_id": "first"}
            await socket.send_message(json.dumps(turn))
            with trio.fail_after(PATIENCE_S):
                while (event := json.loads(await socket.get_message()))["type"] != "response.completed":
                    assert event["type"] != "error", event

        talk = (await one.http.post("/v1/conversations", json={}, headers=ALICE)).json()["id"]
        for bench in (one, other):
            assert (await create(bench, ALICE, conversation=talk)).status_code == 200
        items = (await one.http.get(f"/v1/conversations/{talk}/items", headers=ALICE)).json()["data"]
        assert len(items) == 4
        assert (await other.http.delete("/v1/responses/first", headers=ALICE)).status_code == 200
        error_of(await one.http.get("/v1/responses/first", headers=ALICE), 404)


async def test_a_background_response_can_be_seen_cancelled_and_deleted_through_another_gateway(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    async with sharing(tmp_path, postgres_server.new_url(), says=ENDLESS, engine={"step_time_s": 0.002}) as benches:
        one, other = benches
        for name in ("cancelled", "deleted", "left"):
            queued = await create(one, background=True, request_id=name, max_output_tokens=100)
            assert queued.json()["status"] == "queued"
        seen = (await other.http.get("/v1/responses/cancelled")).json()
        assert seen["status"] in ("queued", "in_progress")
        answer = (await other.http.post("/v1/responses/cancelled/cancel")).json()
        assert answer["status"] == "cancelled"
        assert (await other.http.delete("/v1/responses/deleted")).status_code == 200
        await one.wait_idle()
        await wait_incomplete(other, "left")
        again = await other.http.post("/v1/responses/left/cancel")
        assert again.json()["status"] == "incomplete", "what is over stays so"
        assert (await one.http.get("/v1/responses/cancelled")).json()["status"] == "cancelled"
        error_of(await one.http.get("/v1/responses/deleted"), 404)


async def test_while_the_database_is_away_answers_are_given_and_say_that_they_are_not_stored(
    tmp_path: Path,
    killable_server: PostgresServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(responses_run, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(responses_run, "_LONGEST_PAUSE_S", 0.01)
    caplog.set_level(logging.INFO)
    url = killable_server.new_url(password="TOPSECRET")
    async with sharing(tmp_path, url, 1, COUNTING, engine={"step_time_s": 0.001}) as (bench,):
        kept = (await create(bench, max_output_tokens=2)).json()["id"]
        background = await create(bench, background=True, request_id="later", max_output_tokens=100)
        assert background.json()["status"] == "queued"
        await bench.engine.wait_received(2)
        await trio.to_thread.run_sync(killable_server.kill)

        answer = (await create(bench, max_output_tokens=2)).json()
        assert (answer["status"], answer["store"]) == ("incomplete", False)
        streamed = await create(bench, max_output_tokens=2, stream=True)
        assert '"store":false' in streamed.text.splitlines()[-2]
        asked = len(bench.engine.received)
        for fields in ({"store": True}, {"store": True, "stream": True}, {"background": True}):
            assert_unavailable(await create(bench, max_output_tokens=2, **fields))
        assert len(bench.engine.received) == asked, "refused before it was generated"
        let_time_pass(bench)
        assert_unavailable(await create(bench, max_output_tokens=2, store=True))
        let_time_pass(bench)
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
            assert_unavailable(await bench.http.request(method, f"/v1/responses/{kept}{path}"))
        assert_unavailable(await create(bench, previous_response_id=kept))
        assert_unavailable(await bench.http.post("/v1/conversations", json={}))
        assert (await bench.chat(max_tokens=2)).status_code == 200, "the rest goes on"
        assert (await bench.http.get("/readiness")).status_code == 200
        await bench.wait_idle()

        await trio.to_thread.run_sync(killable_server.start)
        assert (await bench.http.get(f"/v1/responses/{kept}")).json()["status"] == "incomplete"
        assert (await create(bench, max_output_tokens=2)).json()["store"] is True
        found = await wait_incomplete(bench, "later")
        assert found["usage"]["output_tokens"] == 100, "what was generated meanwhile is stored"
        shown = (await bench.http.get("/server_info")).text
    assert json.loads(shown)["history_backend"] == "postgres"
    lines = [record for record in caplog.records if record.name == "smg_trio.history"]
    assert len(lines) == 1, "one line a minute"
    assert not any(record.exc_info for record in caplog.records)
    for text in (shown, caplog.text):
        assert "TOPSECRET" not in text


async def test_nothing_acknowledged_is_lost_when_the_database_is_killed(
    tmp_path: Path, killable_server: PostgresServer
) -> None:
    """`scripts/kill_database.py` does the same with more of everything."""
    async with sharing(tmp_path, killable_server.new_url()) as benches:
        outcome = await kill_during(benches, killable_server, requests=150, kills=1, clients=8)
    assert outcome.faults == []
    assert outcome.counts["stored"] >= 50, outcome.counts
    assert outcome.counts["kills of the database"] == 1
