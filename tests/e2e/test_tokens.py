"""``--auth``: tokens of an issuer, and plug-ins that say who sends a request, from outside."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import trio
import trio_websocket

from tests.issuer import AUDIENCE, running_issuer

from .answers import ok
from .harness import ENDLESS, HI, MODEL, PATIENCE_S, Bench, error_of, open_gateway

PLUGIN = """
import json, trio
from smg_trio.plugins import Identity
smg_trio_api = 1
asked = []

async def door(credentials):
    asked.append((credentials.method, credentials.path, credentials.headers.get("x-team", "")))
    match credentials.token.partition(" ")[0]:
        case "slow":
            await trio.sleep_forever()
        case "broken":
            raise RuntimeError("the directory is away")
        case "nonsense":
            return "alice"
        case "nameless":
            return Identity(name="")
        case "remembered":
            return Identity(name="rita", ttl_s=60)
        case "limited":
            return Identity(name="lim", max_concurrent_requests=1)
        case "ops":
            return Identity(name="ops", scopes=frozenset({"user", "admin"}))
        case "nothing":
            return Identity(name="nobody", scopes=frozenset({"coffee"}))
        case "alice" | "bob":
            return Identity(name=credentials.token)
    return None

auth = {"door": door}
"""


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def plugin_file(tmp_path: Path) -> str:
    file = tmp_path / "door.py"
    file.write_text(PLUGIN)
    return str(file)


async def chat(bench: Bench, token: str | None = None, **fields: object) -> httpx.Response:
    headers = {} if token is None else bearer(token)
    return await bench.http.post(
        "/v1/chat/completions", json={"model": MODEL, "messages": HI} | fields, headers=headers
    )


async def test_a_plug_in_says_who_sends_a_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_gateway(tmp_path, auth="door", plugin_file=(plugin_file(tmp_path),), api_key=("sk-1",)) as bench:
        plugin = bench.gateway.plugins.auth
        assert plugin is not None
        asked = plugin.authenticate.__globals__["asked"]  # type: ignore[attr-defined]
        # Keys come first, and the plug-in is not asked about them.
        ok(await chat(bench, "sk-1"))
        assert asked == []
        error_of(await chat(bench), 401)
        error_of(await chat(bench, "mallory"), 401)
        assert asked[-1] == ("POST", "/v1/chat/completions", "")
        with caplog.at_level(logging.INFO, "smg_trio.access"):
            ok(await bench.http.post("/v1/chat/completions", json={"model": MODEL, "messages": HI},
                                     headers={"x-api-key": "alice", "x-team": "red"}))  # fmt: skip
        assert asked[-1] == ("POST", "/v1/chat/completions", "red")
        assert any('"key": "alice"' in record.__dict__["fields"].members() for record in caplog.records
                   if record.name == "smg_trio.access")  # fmt: skip
        # Roles: models do not open the control plane, nor the other way round.
        error_of(await bench.http.get("/workers", headers=bearer("sk-1")), 403)
        ok(await bench.http.get("/workers", headers=bearer("ops")))
        error_of(await chat(bench, "ops"), 403)
        assert "none of the roles" in error_of(await chat(bench, "nothing"), 403)["message"]
        # A result is remembered as long as it says.
        for token, more in (("remembered", 1), ("alice", 3)):
            before = len(asked)
            for _ in range(3):
                ok(await chat(bench, token))
            assert len(asked) - before == more, token
        # What one identity stores is not another's.
        stored = ok(await bench.http.post("/v1/responses", json={"input": "hi"}, headers=bearer("alice"))).json()
        ok(await bench.http.get(f"/v1/responses/{stored['id']}", headers=bearer("alice")))
        error_of(await bench.http.get(f"/v1/responses/{stored['id']}", headers=bearer("bob")), 404)
        for probe in ("/health", "/readiness"):
            ok(await bench.http.get(probe))


async def test_a_plug_in_that_fails_lets_nobody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smg_trio.gateway.security.authentication.LIMIT_S", 0.05)
    async with open_gateway(tmp_path, auth="door", plugin_file=(plugin_file(tmp_path),)) as bench:
        plugin = bench.gateway.plugins.auth
        assert plugin is not None
        for number, token in enumerate(("broken", "slow", "nonsense", "nameless"), 1):
            error = error_of(await chat(bench, token), 503)
            assert error["code"] == "auth_unavailable"
            assert "directory" not in error["message"]
            assert plugin.calls.faults == number
        ok(await chat(bench, "alice"))
        text = (await bench.http.get(bench.metrics_url)).text
        assert 'smg_plugin_faults_total{kind="auth",plugin="door"} 4.0' in text


async def test_limits_of_an_identity_hold(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, auth="door", plugin_file=(plugin_file(tmp_path),)) as bench:
        body = {"model": MODEL, "messages": HI, "stream": True}
        async with bench.http.stream("POST", "/v1/chat/completions", json=body, headers=bearer("limited")) as response:
            assert response.status_code == 200
            assert error_of(await chat(bench, "limited"), 429)["code"] == "rate_limit_exceeded"
        await bench.wait_idle()


async def test_turns_of_a_websocket_are_looked_at_one_by_one(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, auth="door", plugin_file=(plugin_file(tmp_path),)) as bench:
        url = bench.base_url.replace("http", "ws") + "/v1/responses"
        with pytest.raises(trio_websocket.ConnectionRejected) as refused:
            async with trio_websocket.open_websocket_url(url, extra_headers=[("authorization", "Bearer mallory")]):
                pass
        assert refused.value.status_code == 401
        with pytest.raises(trio_websocket.ConnectionRejected) as refused:
            async with trio_websocket.open_websocket_url(url, extra_headers=[("authorization", "Bearer broken")]):
                pass
        assert refused.value.status_code == 503
        with trio.fail_after(PATIENCE_S):
            async with trio_websocket.open_websocket_url(url, extra_headers=[("authorization", "Bearer alice")]) as ws:
                await ws.send_message(json.dumps({"type": "response.create", "input": "hi"}))
                while json.loads(await ws.get_message())["type"] != "response.completed":
                    pass


async def test_tokens_of_an_issuer_open_what_their_roles_say(tmp_path: Path) -> None:
    with running_issuer() as issuer:
        settings = {
            "auth": "jwt", "jwt_issuer": issuer.url, "jwt_audience": AUDIENCE, "jwt_limits_claim": "limits",
            "jwt_role_mapping": ("llm-ops=admin",),
        }  # fmt: skip
        async with open_gateway(tmp_path, ENDLESS, **settings) as bench:
            error_of(await chat(bench), 401)
            ok(await chat(bench, issuer.token(), max_tokens=1))
            error_of(await bench.http.get("/workers", headers=bearer(issuer.token())), 403)
            ops = bearer(issuer.token(sub="olga", roles=["llm-ops"]))
            ok(await bench.http.get("/workers", headers=ops))
            error_of(await chat(bench, issuer.token(sub="olga", roles=["llm-ops"])), 403)
            error_of(await chat(bench, issuer.token(aud="other")), 401)
            one = issuer.token(sub="one", limits={"max_concurrent_requests": 1})
            body = {"model": MODEL, "messages": HI, "stream": True}
            async with bench.http.stream("POST", "/v1/chat/completions", json=body, headers=bearer(one)) as response:
                assert response.status_code == 200
                error_of(await chat(bench, one, max_tokens=1), 429)
            # Verified once, it is not verified again: the issuer was asked when the gateway started, and only then.
            assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]


async def test_smgs_flags_alone_guard_the_control_plane(tmp_path: Path) -> None:
    with running_issuer() as issuer:
        keys = f"{issuer.url}/keys"
        async with open_gateway(tmp_path, jwt_issuer=issuer.url, jwt_audience=AUDIENCE, jwt_jwks_uri=keys) as bench:
            ok(await chat(bench))
            error_of(await bench.http.get("/workers"), 401)
            ok(await bench.http.get("/workers", headers=bearer(issuer.token(roles="user"))))
            assert issuer.asked == ["/keys"]


async def test_an_issuer_that_is_not_there_yet_is_no_reason_not_to_start(tmp_path: Path) -> None:
    with running_issuer() as issuer:
        issuer.down = True
        async with open_gateway(
            tmp_path, auth="jwt", jwt_issuer=issuer.url, jwt_audience=AUDIENCE, api_key=("sk-1",)
        ) as bench:
            ok(await chat(bench, "sk-1"))
            assert error_of(await chat(bench, issuer.token()), 503)["code"] == "auth_unavailable"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the provider's, of its own library
async def test_tokens_of_an_openid_provider(tmp_path: Path) -> None:
    """One that is not ours: Authlib's, from its authorization code flow."""
    provider = pytest.importorskip("oidc_provider_mock", reason="needs oidc-provider-mock")
    with provider.run_server_in_thread() as server:
        issuer = f"http://localhost:{server.server_port}"
        async with httpx.AsyncClient(base_url=issuer, timeout=PATIENCE_S) as http:
            user = {"roles": ["models"], "email": "sue@example.com"}
            assert (await http.put("/users/sue", json=user)).status_code < 300
            query = {"client_id": AUDIENCE, "redirect_uri": "http://x.example/back", "response_type": "code",
                     "scope": "openid email"}  # fmt: skip
            granted = await http.post("/oauth2/authorize", params=query, data={"sub": "sue"})
            [code] = parse_qs(urlsplit(granted.headers["location"]).query)["code"]
            form = {"grant_type": "authorization_code", "code": code, "redirect_uri": query["redirect_uri"],
                    "client_id": AUDIENCE, "client_secret": "any"}  # fmt: skip
            token = (await http.post("/oauth2/token", data=form)).json()["id_token"]
        async with open_gateway(
            tmp_path, auth="jwt", jwt_issuer=issuer, jwt_audience=AUDIENCE, jwt_name_claim="email"
        ) as bench:
            ok(await chat(bench, token))
            forged = re.sub(r"\.[^.]*$", ".AAAA", token)
            error_of(await chat(bench, forged), 401)
