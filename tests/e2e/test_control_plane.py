"""Keys with roles: who may use models, who may look at workers, who may change them."""

from __future__ import annotations

import io
import json
import logging
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from smg_trio.gateway.routes import ROUTES, Route
from tests.gateway.conftest import set_up as set_up

from .harness import HELLO, HI, MODEL, Bench, chat_body, error_of, launched_gateway, open_gateway
from .test_auth import OPEN, path_of

KEYS: dict[str, Any] = {
    "api_key": ("models-key",),
    "control_plane_api_keys": ("eye:Wall screen:user:user-key", "ops:On call:admin:admin:key"),
}
LOOK = {
    "/metrics",
    "/workers",
    "/workers/<worker_id>",
    "/v1/loads",
    "/get_loads",
    "/load",
    "/get_server_info",
    "/server_info",
    "/is_sleeping",
    "/is_paused",
}
ANY_KEY = {"/v1/models", "/v1/models/<path:model>", "/get_model_info", "/openapi.json", "/version"}
ADMIN = {
    "/workers",
    "/workers/<worker_id>",
    "/flush_cache",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/sleep",
    "/wake_up",
    "/pause",
    "/resume",
    "/start_profile",
    "/stop_profile",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
}


def opens(route: Route) -> set[str]:
    """The keys that open a route."""
    if route.path in OPEN:
        return {"", "unknown", "models-key", "user-key", "admin:key"}
    if route.path in ANY_KEY:
        return {"models-key", "user-key", "admin:key"}
    if route.path in LOOK and route.method == "GET":
        return {"user-key", "admin:key"}
    if route.path in ADMIN and route.method != "GET":
        return {"admin:key"}
    return {"models-key"}


async def ask(bench: Bench, route: Route, key: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = b"{}" if route.method in ("POST", "PUT", "PATCH") else None
    return await bench.http.request(route.method, path_of(route), content=body, headers=headers)


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
async def test_each_route_opens_to_the_keys_it_is_meant_for(tmp_path: Path, http2: bool) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, http2=http2, metrics_on_port=True, **KEYS) as bench:
        for route in ROUTES:
            for key in ("", "unknown", "models-key", "user-key", "admin:key"):
                answer = await ask(bench, route, key)
                if key in opens(route):
                    assert answer.status_code not in (401, 403), (route, key)
                elif key in ("", "unknown"):
                    assert answer.status_code == 401, (route, key)
                    assert answer.headers["www-authenticate"] == "Bearer"
                else:
                    assert answer.status_code == 403, (route, key)
                    assert answer.headers["x-smg-error-code"] == "permission_denied"
                    assert "www-authenticate" not in answer.headers


async def test_a_role_that_does_not_suffice_is_said_in_the_api_s_own_shape(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, **KEYS) as bench:
        user = {"authorization": "Bearer user-key"}
        error = error_of(await bench.http.post("/workers", json={"url": "ipc:///x"}, headers=user), 403)
        assert error == {
            "message": "Admin role required for this control plane operation.",
            "type": "permission_error",
            "param": None,
            "code": "permission_denied",
        }
        error = error_of(await bench.http.post("/v1/chat/completions", json=chat_body(), headers=user), 403)
        assert "an API key is required" in error["message"]
        answer = await bench.http.post("/v1/messages", json={}, headers={"x-api-key": "user-key"})
        assert answer.status_code == 403
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "permission_error"


async def test_an_admin_drains_a_worker_and_a_user_only_sees_it(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, **KEYS) as bench:
        user, admin = {"authorization": "Bearer user-key"}, {"authorization": "Bearer admin:key"}
        worker_id = (await bench.http.get("/workers", headers=user)).json()["workers"][0]["id"]
        path = f"/workers/{worker_id}"
        assert (await bench.http.delete(path, headers=user)).status_code == 403
        assert (await bench.http.patch(path, json={"priority": 7}, headers=admin)).status_code == 202
        assert (await bench.http.get(path, headers=user)).json()["priority"] == 7
        assert (await bench.http.delete(path, headers=admin)).status_code == 202


async def test_without_control_plane_keys_every_key_opens_everything(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, api_key=("models-key",), metrics_on_port=True) as bench:
        for route in ROUTES:
            assert (await ask(bench, route, "models-key")).status_code not in (401, 403), route


async def test_with_control_plane_keys_alone_models_stay_open(tmp_path: Path) -> None:
    keys = KEYS["control_plane_api_keys"]
    async with open_gateway(tmp_path, HELLO, control_plane_api_keys=keys) as bench:
        assert (await bench.chat()).status_code == 200
        assert (await bench.http.get("/v1/models")).status_code == 200
        error_of(await bench.http.get("/workers"), 401)
        error_of(await bench.http.post("/flush_cache"), 401)


# ---- the log -------------------------------------------------------------------------------------------------


async def test_access_lines_name_the_key_and_never_say_it(tmp_path: Path, set_up: Any) -> None:
    out: io.StringIO = set_up(as_json=True)
    async with open_gateway(tmp_path, HELLO, **KEYS) as bench:
        for key, status in (("models-key", 200), ("user-key", 403), ("unknown", 401)):
            answer = await bench.http.post(
                "/v1/chat/completions",
                json={"model": MODEL, "messages": HI},
                headers={"authorization": f"Bearer {key}"},
            )
            assert answer.status_code == status
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    named = [line.get("key") for line in lines if line["logger"] == "smg_trio.access"]
    assert named == ["api-key-1", "eye", None]
    for key in ("models-key", "user-key", "admin:key", "unknown"):
        assert key not in out.getvalue()


async def test_attempts_at_administration_are_on_record_where_that_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for audited in (False, True):
        (tmp_path / str(audited)).mkdir()
        caplog.clear()
        with caplog.at_level(logging.INFO, "smg_trio.audit"):
            async with open_gateway(
                tmp_path / str(audited), HELLO, control_plane_audit_enabled=audited, **KEYS
            ) as bench:
                for key in ("admin:key", "user-key", "models-key", "unknown"):
                    headers = {"authorization": f"Bearer {key}"}
                    await bench.http.post("/flush_cache", headers=headers)
                    await bench.http.get("/workers", headers=headers)
                await bench.http.delete("/workers/a%0Ab", headers={"authorization": "Bearer admin:key"})
        said = [record.message for record in caplog.records if record.name == "smg_trio.audit"]
        expected = [
            "POST /flush_cache by ops: 200",
            "POST /flush_cache by eye: 403",
            "POST /flush_cache by api-key-1: 403",
            "POST /flush_cache by anonymous: 401",
            "DELETE /workers/a%0Ab by ops: 400",
        ]
        assert said == (expected if audited else [])


# ---- the key file --------------------------------------------------------------------------------------------


def keys_toml(**holders: str) -> str:
    return "".join(f'[keys.{name}]\nkey = "{name}-key"\n{rest}\n' for name, rest in holders.items())


async def status(bench: Bench, key: str, method: str = "GET", path: str = "/v1/models") -> int:
    answer = await bench.http.request(method, path, headers={"authorization": f"Bearer {key}"})
    return answer.status_code


async def test_keys_come_and_go_with_their_file_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(keys_toml(alice="", ops='role = "admin"'))
    file.chmod(0o600)
    async with open_gateway(tmp_path, HELLO, api_key_file=str(file)) as bench:
        assert await status(bench, "alice-key") == 200
        assert await status(bench, "ops-key", "POST", "/flush_cache") == 200
        file.write_text(keys_toml(bob="", alice='role = "admin"'))
        await bench.files.read_all()
        assert await status(bench, "bob-key") == 200
        assert await status(bench, "ops-key") == 401
        assert await status(bench, "alice-key", "POST", "/flush_cache") == 200
        for broken in ("[keys.alice", keys_toml(eve='role = "root"'), ""):
            file.write_text(broken)
            caplog.clear()
            await bench.files.read_all()
            assert "API keys not reloaded, the previous contents stay in force: --api-key-file" in caplog.text
            assert await status(bench, "bob-key") == 200
            assert await status(bench, "eve-key") == 401
        file.unlink()
        await bench.files.read_all()
        assert await status(bench, "bob-key") == 200
        assert await status(bench, "unknown") == 401


async def test_a_process_takes_new_keys_on_sighup(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("first\n")
    async with launched_gateway(tmp_path, HELLO, flags=("--api-key-file", str(file))) as (process, _):
        file.write_text("second\n")
        process.signal(signal.SIGHUP)
        await process.wait_log("API keys reloaded")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{process.port}") as http:
            for key, expected in (("first", 401), ("second", 200)):
                answer = await http.get("/v1/models", headers={"x-api-key": key})
                assert answer.status_code == expected
        process.signal(signal.SIGTERM)
        assert await process.wait(10) == 0
