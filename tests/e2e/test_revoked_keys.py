"""A key that is revoked ends what its WebSockets may do, too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

from smg_trio.gateway.security.key_files import read_key_toml
from smg_trio.gateway.security.key_ring import KeyLimits

from .harness import ENDLESS, HELLO, PATIENCE_S, Bench, open_gateway

KEYS = '[keys.alice]\nkey = "a-key"\n[keys.bob]\nkey = "b-key"\n[keys.eve]\nkey = "e-key"\nrole = "user"\n'
WITHOUT_ALICE = KEYS.replace("a-key", "new-key")


@asynccontextmanager
async def keyed_gateway(tmp_path: Path, says: str = HELLO, keys: str = KEYS, **options: Any) -> AsyncIterator[Bench]:
    file = tmp_path / "keys.toml"
    file.write_text(keys)
    file.chmod(0o600)
    async with open_gateway(tmp_path, says, api_key_file=str(file), **options) as bench:
        bench.feed.interval_s = 0.05
        yield bench


async def replace_keys(bench: Bench, tmp_path: Path, keys: str) -> None:
    (tmp_path / "keys.toml").write_text(keys)
    await bench.files.read_all()


@asynccontextmanager
async def socket_at(bench: Bench, path: str, key: str = "") -> AsyncIterator[WebSocketConnection]:
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    with trio.fail_after(PATIENCE_S):
        async with open_websocket_url(f"ws://127.0.0.1:{bench.port}{path}", extra_headers=headers) as socket:
            yield socket


async def turn(socket: WebSocketConnection, **fields: Any) -> dict[str, Any]:
    """The last event of a turn."""
    await socket.send_message(json.dumps({"type": "response.create", "input": "hi"} | fields))
    while True:
        event: dict[str, Any] = json.loads(await socket.get_message())
        if event["type"] in ("response.completed", "response.incomplete", "error"):
            return event


async def end_of(socket: WebSocketConnection) -> tuple[list[dict[str, Any]], tuple[int, str | None]]:
    """All messages until the gateway closes the socket, and the code and reason that it closes with."""
    messages = []
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            messages.append(json.loads(await socket.get_message()))
    assert closed.value.reason is not None
    return messages, (closed.value.reason.code, closed.value.reason.reason)


async def test_the_next_turn_of_a_revoked_key_is_refused_and_closes_the_socket(tmp_path: Path) -> None:
    async with keyed_gateway(tmp_path) as bench:
        async with (
            socket_at(bench, "/v1/responses", "a-key") as hers,
            socket_at(bench, "/v1/responses", "b-key") as his,
        ):
            assert (await turn(hers))["type"] == "response.completed"
            await replace_keys(bench, tmp_path, WITHOUT_ALICE)
            event = await turn(hers, stream_id="s")
            assert (event["status"], event["error"]["code"], event["stream_id"]) == (401, "invalid_api_key", "s")
            assert await end_of(hers) == ([], (4401, "invalid_api_key"))
            assert (await turn(his))["type"] == "response.completed", "others go on"
        assert len(bench.engine.received) == 2
        await bench.wait_idle()


async def test_a_key_whose_role_has_changed_is_refused_as_well(tmp_path: Path) -> None:
    async with keyed_gateway(tmp_path) as bench, socket_at(bench, "/v1/responses", "a-key") as socket:
        await replace_keys(bench, tmp_path, KEYS.replace('"a-key"', '"a-key"\nrole = "user"'))
        assert (await turn(socket))["error"]["code"] == "permission_denied"
        assert await end_of(socket) == ([], (4401, "permission_denied"))


async def test_limits_that_change_hold_from_the_next_turn_on(tmp_path: Path) -> None:
    async with keyed_gateway(tmp_path) as bench, socket_at(bench, "/v1/responses", "a-key") as socket:
        assert (await turn(socket))["type"] == "response.completed"
        await replace_keys(bench, tmp_path, KEYS.replace('"a-key"', '"a-key"\ntokens_per_minute = 1'))
        refusal = (await turn(socket))["error"]
        assert (refusal["code"], "limit 1, requested" in refusal["message"]) == ("rate_limit_exceeded", True)


async def test_a_turn_in_progress_may_end_but_not_be_followed(tmp_path: Path) -> None:
    slow = {"step_time_s": 0.01}
    async with keyed_gateway(tmp_path, ENDLESS, engine=slow) as bench:
        async with socket_at(bench, "/v1/responses", "a-key") as socket:
            await socket.send_message(json.dumps({"type": "response.create", "input": "x", "max_output_tokens": 20}))
            await bench.engine.wait_received(1)
            await replace_keys(bench, tmp_path, WITHOUT_ALICE)
            while json.loads(await socket.get_message())["type"] != "response.incomplete":
                pass
            assert (await turn(socket))["error"]["code"] == "invalid_api_key"
            assert await end_of(socket) == ([], (4401, "invalid_api_key"))
        await bench.wait_idle()


async def test_a_turn_asked_for_with_a_revoked_key_ends_the_one_in_progress(tmp_path: Path) -> None:
    async with keyed_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.01}) as bench:
        async with socket_at(bench, "/v1/responses", "a-key") as socket:
            await socket.send_message(json.dumps({"type": "response.create", "input": "x"}))
            await bench.engine.wait_received(1)
            await replace_keys(bench, tmp_path, WITHOUT_ALICE)
            await socket.send_message(json.dumps({"type": "response.create", "input": "x"}))
            messages, closed = await end_of(socket)
            assert messages[-1]["error"]["code"] == "invalid_api_key"
            assert closed == (4401, "invalid_api_key")
        await bench.wait_idle()


async def test_a_socket_opened_without_a_key_ends_when_keys_are_set(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        bench.feed.interval_s = 0.05
        async with socket_at(bench, "/v1/responses") as socket, socket_at(bench, "/dashboard/feed") as feed:
            assert (await turn(socket))["type"] == "response.completed"
            await feed.get_message()
            file = tmp_path / "keys.toml"
            file.write_text(KEYS)
            bench.gateway.keys.replace(read_key_toml(KEYS, "keys.toml", KeyLimits()))
            assert (await turn(socket))["error"]["code"] == "invalid_api_key"
            assert (await end_of(socket))[1] == (4401, "invalid_api_key")
            assert (await end_of(feed))[1] == (4401, "invalid_api_key")


@pytest.mark.parametrize("in_message", [False, True], ids=["header", "message"])
async def test_the_live_feed_ends_for_a_revoked_key(tmp_path: Path, in_message: bool) -> None:
    async with keyed_gateway(tmp_path) as bench:
        async with socket_at(bench, "/dashboard/feed", "" if in_message else "e-key") as feed:
            if in_message:
                await feed.send_message(json.dumps({"type": "auth", "key": "e-key"}))
            assert json.loads(await feed.get_message())["type"] == "snapshot"
            await replace_keys(bench, tmp_path, KEYS.replace("e-key", "other"))
            messages, closed = await end_of(feed)
            assert closed == (4401, "invalid_api_key")
            assert messages[-1]["error"]["code"] == "invalid_api_key"
            assert all(one["type"] == "snapshot" for one in messages[:-1])
            assert len(messages) <= 2, "what was sent before the keys changed, and the error"
        assert bench.feed.watchers == 0
