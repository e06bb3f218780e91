"""Stored responses, conversations and their items belong to the key holder: to others they do not exist."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import WebSocketConnection, open_websocket_url

from tests.postgres import PostgresServer

from .harness import ENDLESS, HELLO, PATIENCE_S, Bench, error_of, open_gateway

ALICE, BOB = {"authorization": "Bearer a-key"}, {"authorization": "Bearer b-key"}
SLOW: dict[str, Any] = {"step_time_s": 0.005}
KEYS = '[keys.alice]\nkey = "a-key"\n[keys.bob]\nkey = "b-key"\n'


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> str:
    """Which store it is in; for a database, its URL."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return server.new_url()
    return str(request.param)


@asynccontextmanager
async def owned_gateway(tmp_path: Path, backend: str, keys: str = KEYS, **options: Any) -> AsyncIterator[Bench]:
    if keys:
        file = tmp_path / "keys.toml"
        file.write_text(keys)
        file.chmod(0o600)
        options["api_key_file"] = str(file)
    if backend.startswith("postgresql:"):
        options |= {"history_backend": "postgres", "history_url": backend}
    else:
        options["history_backend"] = f"sqlite:{tmp_path}/history.db" if backend == "sqlite" else backend
    async with open_gateway(tmp_path, options.pop("says", HELLO), **options) as bench:
        yield bench


async def create(bench: Bench, who: dict[str, str], **fields: Any) -> httpx.Response:
    return await bench.http.post("/v1/responses", json={"input": "hi"} | fields, headers=who)


async def created(bench: Bench, who: dict[str, str], **fields: Any) -> dict[str, Any]:
    answer = await create(bench, who, **fields)
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


@asynccontextmanager
async def talking(bench: Bench, who: dict[str, str]) -> AsyncIterator[WebSocketConnection]:
    url = f"ws://127.0.0.1:{bench.port}/v1/responses"
    async with open_websocket_url(url, extra_headers=list(who.items())) as socket:
        yield socket


async def turn(socket: WebSocketConnection, **fields: Any) -> dict[str, Any]:
    """The last event of a turn."""
    await socket.send_message(json.dumps({"type": "response.create", "input": "hi"} | fields))
    with trio.fail_after(PATIENCE_S):
        while True:
            event: dict[str, Any] = json.loads(await socket.get_message())
            if event["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
                return event


async def test_a_response_exists_for_its_holder_alone(tmp_path: Path, backend: str) -> None:
    async with owned_gateway(tmp_path, backend) as bench:
        hers = await created(bench, ALICE, input="SECRET", request_id="hers")
        message = hers["output"][0]["id"]
        never = "resp_never"
        for method, path in [
            ("GET", "/v1/responses/{}"),
            ("GET", "/v1/responses/{}/input_items"),
            ("POST", "/v1/responses/{}/cancel"),
            ("DELETE", "/v1/responses/{}"),
        ]:
            answer = await bench.http.request(method, path.format("hers"), headers=BOB)
            unknown = await bench.http.request(method, path.format(never), headers=BOB)
            error = error_of(answer, 404)
            assert error["code"] == "not_found"
            assert answer.text == unknown.text.replace(never, "hers"), "nothing tells another's id from an unknown one"
        error = error_of(await create(bench, BOB, previous_response_id="hers"), 400)
        assert error == {
            "message": "Previous response with id 'hers' not found.",
            "type": "invalid_request_error",
            "param": "previous_response_id",
            "code": "previous_response_not_found",
        }
        reference = [{"type": "item_reference", "id": message}]
        assert message in error_of(await create(bench, BOB, input=reference), 400)["message"]
        async with talking(bench, BOB) as socket:
            event = await turn(socket, previous_response_id="hers")
            assert (event["status"], event["error"]["code"]) == (400, "previous_response_not_found")
            assert (await turn(socket, input=reference))["status"] == 400
        # Neither did any of it change anything for her.
        assert (await bench.http.get("/v1/responses/hers", headers=ALICE)).json() == hers
        assert (await create(bench, ALICE, previous_response_id="hers")).status_code == 200
        assert (await create(bench, ALICE, input=reference)).status_code == 200
        async with talking(bench, ALICE) as socket:
            assert (await turn(socket, previous_response_id="hers"))["type"] == "response.completed"
        assert (await bench.http.delete("/v1/responses/hers", headers=ALICE)).status_code == 200


async def test_an_id_that_another_holder_uses_is_a_conflict(tmp_path: Path, backend: str) -> None:
    async with owned_gateway(tmp_path, backend, says=ENDLESS, engine=SLOW) as bench:
        assert (await created(bench, ALICE, request_id="hers", background=True))["status"] == "queued"
        for fields in ({}, {"stream": True}, {"background": True}, {"store": False}):
            error_of(await create(bench, BOB, request_id="hers", **fields), 409)
        error_of(await bench.http.post("/v1/responses/hers/cancel", headers=BOB), 404)
        cancelled = await bench.http.post("/v1/responses/hers/cancel", headers=ALICE)
        assert cancelled.json()["status"] == "cancelled"
        error_of(await create(bench, BOB, request_id="hers", max_output_tokens=2), 409)
        assert (await bench.http.get("/v1/responses/hers", headers=ALICE)).json()["status"] == "cancelled"


async def test_a_conversation_exists_for_its_holder_alone(tmp_path: Path, backend: str) -> None:
    async with owned_gateway(tmp_path, backend) as bench:
        item = {"type": "message", "role": "user", "content": "SECRET", "id": "msg_hers"}
        hers = (await bench.http.post("/v1/conversations", json={"items": [item]}, headers=ALICE)).json()["id"]
        body: dict[str, Any] = {"metadata": {"a": "b"}, "items": [{"role": "user", "content": "x"}]}
        for method, path in [
            ("GET", ""),
            ("POST", ""),
            ("DELETE", ""),
            ("GET", "/items"),
            ("POST", "/items"),
            ("GET", "/items/msg_hers"),
            ("DELETE", "/items/msg_hers"),
        ]:
            url = f"/v1/conversations/{hers}{path}"
            answer = await bench.http.request(method, url, headers=BOB, json=body if method == "POST" else None)
            assert error_of(answer, 404)["code"] == "not_found", (method, path)
        error_of(await create(bench, BOB, conversation=hers), 404)
        error_of(await create(bench, BOB, input=[{"type": "item_reference", "id": "msg_hers"}]), 400)
        async with talking(bench, BOB) as socket:
            assert (await turn(socket, conversation=hers))["status"] == 404
        kept = (await bench.http.get(f"/v1/conversations/{hers}/items", headers=ALICE)).json()["data"]
        assert [one["id"] for one in kept] == ["msg_hers"]
        assert (await bench.http.get(f"/v1/conversations/{hers}", headers=ALICE)).json()["metadata"] == {}
        assert (await create(bench, ALICE, conversation=hers)).status_code == 200
        assert (await bench.http.delete(f"/v1/conversations/{hers}", headers=ALICE)).status_code == 200


async def test_a_rotated_key_of_the_same_holder_keeps_what_is_stored(tmp_path: Path, backend: str) -> None:
    async with owned_gateway(tmp_path, backend) as bench:
        hers = (await created(bench, ALICE))["id"]
        talk = (await bench.http.post("/v1/conversations", json={}, headers=ALICE)).json()["id"]
        (tmp_path / "keys.toml").write_text(KEYS.replace("a-key", "new-key"))
        await bench.files.read_all()
        error_of(await bench.http.get(f"/v1/responses/{hers}", headers=ALICE), 401)
        rotated = {"x-api-key": "new-key"}
        assert (await bench.http.get(f"/v1/responses/{hers}", headers=rotated)).status_code == 200
        assert (await create(bench, rotated, previous_response_id=hers)).status_code == 200
        assert (await create(bench, rotated, conversation=talk)).status_code == 200
        error_of(await bench.http.get(f"/v1/responses/{hers}", headers=BOB), 404)


async def test_a_key_without_a_name_is_a_holder_of_its_own_whatever_its_line(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("a-key\nb-key\n")
    file.chmod(0o600)
    async with owned_gateway(tmp_path, "memory", keys="", api_key_file=str(file)) as bench:
        hers = (await created(bench, ALICE))["id"]
        file.write_text("b-key\na-key\n")
        await bench.files.read_all()
        error_of(await bench.http.get(f"/v1/responses/{hers}", headers=BOB), 404)
        assert (await bench.http.get(f"/v1/responses/{hers}", headers=ALICE)).status_code == 200


async def test_without_keys_everybody_shares_one_owner_and_what_was_shared_stays_so_with_keys(tmp_path: Path) -> None:
    for part in ("1", "2"):
        (tmp_path / part).mkdir()
    async with owned_gateway(tmp_path / "1", "sqlite", keys="") as bench:
        shared = (await created(bench, {}, input="SHARED"))["id"]
        assert (await bench.http.get(f"/v1/responses/{shared}", headers=BOB)).status_code == 200
    (tmp_path / "1" / "history.db").rename(tmp_path / "2" / "history.db")
    async with owned_gateway(tmp_path / "2", "sqlite") as bench:
        hers = (await created(bench, ALICE, previous_response_id=shared))["id"]
        assert (await bench.http.get(f"/v1/responses/{shared}", headers=BOB)).status_code == 200
        error_of(await bench.http.get(f"/v1/responses/{hers}", headers=BOB), 404)


async def test_a_control_plane_key_alone_divides_nothing(tmp_path: Path) -> None:
    options = {"control_plane_api_keys": ("ops:Ops:admin:admin-key",)}
    async with owned_gateway(tmp_path, "memory", keys="", **options) as bench:
        anyones = (await created(bench, {}))["id"]
        admin = {"authorization": "Bearer admin-key"}
        assert (await bench.http.get(f"/v1/responses/{anyones}", headers=admin)).status_code == 200
        admins = (await created(bench, admin))["id"]
        assert (await bench.http.get(f"/v1/responses/{admins}")).status_code == 200
