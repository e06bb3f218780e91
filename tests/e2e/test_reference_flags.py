"""Start scripts of the reference gateway: its flags start us, and those that mean something do what they mean."""

from __future__ import annotations

from pathlib import Path

import httpx

from smg_trio.settings.smg_flags import SWITCHES, WITH_VALUE, WITH_VALUES
from tests.ports import lasting_port

from .answers import ok
from .harness import HELLO, MODEL, error_of, launched_gateway, open_gateway

ACME, OTHER = {"authorization": "Bearer k1"}, {"authorization": "Bearer k2"}


async def test_a_command_line_full_of_the_references_flags_starts_us(tmp_path: Path) -> None:
    flags = [f"--{name}" for name in SWITCHES]
    flags += [word for name in WITH_VALUE for word in (f"--{name}", "1")]
    flags += [word for name in WITH_VALUES for word in (f"--{name}", "http://a:1", "b=c")]
    async with launched_gateway(tmp_path, flags=tuple(flags)) as (process, _):
        base_url = f"http://127.0.0.1:{process.port}"
        async with httpx.AsyncClient(base_url=base_url) as http:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
            ok(await http.post("/v1/chat/completions", json=body))
        [line] = [line for line in process.log if "accepted for compatibility with SMG" in line]
        assert "--enable-igw" in line


async def test_probes_have_a_port_of_their_own_with_nothing_else(tmp_path: Path) -> None:
    port = lasting_port()
    async with (
        open_gateway(tmp_path, health_check_port=port, api_key=("secret",)) as bench,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as probes,
    ):
        assert ok(await probes.get("/liveness")).text == "OK"
        assert ok(await probes.get("/health")).text == "OK"
        ready = ok(await probes.get("/readiness")).json()
        assert (ready["status"], ready["healthy_workers"]) == ("ready", 1)
        for path in ("/v1/models", "/metrics", "/dashboard"):
            assert error_of(await probes.get(path), 404)["code"] == "not_found"
        error_of(await probes.post("/readiness"), 404)
        bench.kill(bench.engine)
        while (await probes.get("/readiness")).status_code == 200:
            pass
        assert ok(await probes.get("/liveness")).text == "OK"


async def test_a_tenants_key_opens_what_is_the_tenants(tmp_path: Path) -> None:
    keys = ("acme:k1", "other:k2", "acme:k3")
    async with open_gateway(tmp_path, HELLO, tenant_api_key=keys) as bench:
        error_of(await bench.http.post("/v1/responses", json={"input": "hi"}), 401)
        stored = ok(await bench.http.post("/v1/responses", json={"input": "hi"}, headers=ACME)).json()
        path = f"/v1/responses/{stored['id']}"
        ok(await bench.http.get(path, headers=ACME))
        ok(await bench.http.get(path, headers={"authorization": "Bearer k3"}))
        error_of(await bench.http.get(path, headers=OTHER), 404)
