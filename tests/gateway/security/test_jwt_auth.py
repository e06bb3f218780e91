"""Tokens against an issuer that runs: which are accepted, for whom, and how its keys are followed."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from smg_trio.core.errors import ConfigError
from smg_trio.gateway.security.jwt_auth import JwtAuth
from smg_trio.gateway.security.jwt_claims import ClaimNames, identity_of
from smg_trio.gateway.security.jwt_keys import RETRY_S, IssuerKeys, KeysUnavailable, fetch_json
from smg_trio.plugins import Credentials, Identity
from smg_trio.settings.checks import check_settings
from smg_trio.settings.settings import Settings
from tests.issuer import AUDIENCE, Issuer, running_issuer


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """A new one for each test."""
    with running_issuer() as running:
        yield running


def settings_for(issuer: Issuer, **others: Any) -> Settings:
    chosen: dict[str, Any] = {"auth": "jwt", "jwt_issuer": issuer.url, "jwt_audience": AUDIENCE} | others
    settings = Settings(**chosen)
    check_settings(settings)
    return settings


async def opened(issuer: Issuer, **others: Any) -> JwtAuth:
    found = JwtAuth(settings_for(issuer, **others))
    await found.keys.refresh()
    return found


async def who(auth: JwtAuth, token: str) -> Identity | None:
    return await auth.authenticate(Credentials(token=token))


def unsigned(issuer: Issuer) -> str:
    return head_and_claims(issuer, "none") + "."


def signed_with(secret: bytes, issuer: Issuer) -> str:
    """By a library that lets anything be a shared secret."""
    told = head_and_claims(issuer, "HS256")
    return told + "." + encoded(hmac.digest(secret, told.encode(), "sha256"))


def head_and_claims(issuer: Issuer, algorithm: str) -> str:
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "eve", "exp": time.time() + 60}
    return ".".join(encoded(json.dumps(part).encode()) for part in ({"alg": algorithm, "kid": "one"}, claims))


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


async def test_a_valid_token_says_whose_it_is(issuer: Issuer) -> None:
    issuer.add_other_kinds()
    auth = await opened(issuer)
    for key_id, algorithm in (("one", "RS256"), ("one", "PS384"), ("p256", "ES256"), ("ed", "EdDSA")):
        identity = await who(auth, issuer.token(key_id, algorithm=algorithm))
        assert identity is not None, algorithm
        assert (identity.name, identity.scopes) == ("alice", frozenset({"models"}))
        assert identity.id == f"{issuer.url}|alice"
        assert 0 < identity.ttl_s <= 60


async def test_what_is_wrong_with_a_token_keeps_it_out(issuer: Issuer) -> None:
    auth = await opened(issuer)
    now = time.time()
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = (
        issuer.keys["one"]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    wrong = {
        "no token": "sk-1234",
        "nothing": "",
        "dots": "a.b.c",
        "two parts": issuer.token().rpartition(".")[0],
        "another signature": issuer.token()[:-8] + "AAAAAAAA",
        "another's key under this id": issuer.token("one", key=stranger),
        "a key id that is no text": jwt.encode({"sub": "a"}, stranger, algorithm="RS256", headers={"kid": "x" * 99}),
        "no algorithm": unsigned(issuer),
        "the public key as a shared secret": signed_with(public, issuer),
        "expired": issuer.token(exp=now - 61),
        "not yet valid": issuer.token(nbf=now + 120),
        "without an end": issuer.token(exp=None),
        "another issuer": issuer.token(iss="https://evil.example"),
        "no issuer": issuer.token(iss=None),
        "another audience": issuer.token(aud="other"),
        "no audience": issuer.token(aud=None),
        "nobody": issuer.token(sub=None),
        "too long": issuer.token(filler="x" * 20_000),
    }  # fmt: skip
    for case, token in wrong.items():
        assert await who(auth, token) is None, case


async def test_clocks_may_differ_by_the_leeway(issuer: Issuer) -> None:
    now = time.time()
    patient, strict = await opened(issuer), await opened(issuer, jwt_leeway_secs=0.0)
    for token in (issuer.token(exp=now - 30), issuer.token(nbf=now + 30)):
        assert await who(patient, token) is not None
        assert await who(strict, token) is None


async def test_a_new_key_is_fetched_when_a_token_names_it(issuer: Issuer, mock_clock: trio.testing.MockClock) -> None:
    auth = await opened(issuer)
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]
    old = issuer.token()
    issuer.replace_key()
    new = issuer.token()
    assert await who(auth, new) is None, "keys are not fetched again so soon"
    mock_clock.jump(RETRY_S)
    assert await who(auth, new) is not None
    assert await who(auth, old) is None
    asked = len(issuer.asked)
    made_up = jwt.encode({}, issuer.keys["two"], algorithm="RS256", headers={"kid": "made up"})
    for _ in range(5):
        assert await who(auth, made_up) is None
    assert len(issuer.asked) == asked, "made-up key ids have nothing fetched for a while"


async def test_the_keys_from_before_stay_while_the_issuer_is_away(
    issuer: Issuer, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    auth = await opened(issuer)
    issuer.down = True
    mock_clock.jump(RETRY_S)
    await auth.keys.refresh()
    assert "cannot be fetched" in caplog.text
    assert await who(auth, issuer.token()) is not None


async def test_without_any_keys_nobody_can_be_told(issuer: Issuer, mock_clock: trio.testing.MockClock) -> None:
    issuer.down = True
    auth = await opened(issuer)
    with pytest.raises(KeysUnavailable):
        await who(auth, issuer.token())
    issuer.down = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(auth.keys.run)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(RETRY_S)
        while "/keys" not in issuer.asked:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    mock_clock.jump(RETRY_S)
    assert await who(auth, issuer.token()) is not None


async def test_keys_may_be_in_a_file(issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(issuer.key_set()))
    auth = JwtAuth(settings_for(issuer, jwt_jwks_uri=str(file)))
    await auth.keys.read()
    assert await who(auth, issuer.token()) is not None
    assert issuer.asked == []
    for text in ("{", "{}", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}, 5, {"kty": "RSA"}]}'):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"--jwt-jwks-uri: .* is not a JSON Web Key Set"):
            await auth.keys.read()
    file.unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        await auth.keys.read()
    assert await who(auth, issuer.token()) is not None, "what was read before stays"


async def test_a_key_signs_only_what_it_is_for(issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    [key] = issuer.key_set()["keys"]
    file.write_text(json.dumps({"keys": [key | {"alg": "RS512"}, key | {"kid": "enc", "use": "enc"}]}))
    auth = JwtAuth(settings_for(issuer, jwt_jwks_uri=str(file)))
    await auth.keys.read()
    assert await who(auth, issuer.token(algorithm="RS512")) is not None
    assert await who(auth, issuer.token(algorithm="RS256")) is None
    assert await who(auth, issuer.token("enc", algorithm="RS512", key=issuer.keys["one"])) is None


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://a/b", "keys"])
def test_nothing_but_http_is_fetched(url: str) -> None:
    with pytest.raises(ValueError, match="is not an http"):
        fetch_json(url)


async def test_a_discovery_document_may_name_no_keys(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    keys = IssuerKeys(None, issuer.url, lambda url: ["nothing"])
    await keys.refresh()
    assert "names no jwks_uri" in caplog.text


CLAIMS = {
    "a list": ({"roles": ["user", "models", "other"]}, {}, {"user", "models"}),
    "words": ({"scope": "openid admin models"}, {"role": "scope"}, {"admin", "models"}),
    "inside": ({"realm_access": {"roles": ["admin"]}}, {"role": "realm_access.roles"}, {"admin"}),
    "a name with dots": ({"https://smg.example/roles": ["user"]}, {"role": "https://smg.example/roles"}, {"user"}),
    "mapped": ({"roles": ["llm-ops", "llm"]}, {"mapping": {"llm-ops": "admin", "llm": "models"}}, {"admin", "models"}),
    "left out": ({}, {}, {"models"}),
    "none that means anything": ({"roles": ["offline_access"]}, {}, set()),
    "something else": ({"roles": 5}, {}, set()),
}  # fmt: skip


@pytest.mark.parametrize("case", CLAIMS)
def test_roles_come_from_a_claim(case: str) -> None:
    claims, names, expected = CLAIMS[case]
    identity = identity_of({"sub": "a"} | claims, ClaimNames(**names), 1.0)  # type: ignore[arg-type]
    assert identity is not None
    assert identity.scopes == expected


def test_limits_and_name_come_from_claims() -> None:
    names = ClaimNames(name="email", limits="smg.limits")
    limits = {"max_concurrent_requests": 3, "tokens_per_minute": "many"}
    identity = identity_of({"sub": "a1", "email": "al\nice@x", "smg": {"limits": limits}}, names, 1.0)
    assert identity is not None
    assert (identity.name, identity.id) == ("alice@x", "|a1")
    assert (identity.max_concurrent_requests, identity.tokens_per_minute) == (3, None)
    assert identity_of({"email": 5}, names, 1.0) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"jwt_issuer": None}, "--jwt-issuer: is missing"),
        ({"jwt_audience": None}, "--jwt-audience: is missing"),
        ({"jwt_issuer": "acme"}, "--jwt-jwks-uri: is missing, and the issuer 'acme' is not a URL"),
        ({"jwt_role_mapping": ("ops=root",)}, "--jwt-role-mapping: 'ops=root' is not of the form VALUE=ROLE"),
        ({"auth": "other"}, "--jwt-issuer: is for --auth jwt"),
        ({"auth": None, "jwt_issuer": None}, "--jwt-audience: is for --auth jwt"),
        ({"jwt_audience": ""}, "--jwt-audience: must not be empty"),
        ({"jwt_leeway_secs": -1.0}, "--jwt-leeway-secs: must not be negative"),
    ],
)
def test_settings_that_cannot_work_are_refused(changed: dict[str, Any], words: str) -> None:
    whole: dict[str, Any] = {"auth": "jwt", "jwt_issuer": "https://i.example", "jwt_audience": "a"}
    check_settings(Settings(**whole))
    with pytest.raises(ConfigError) as refused:
        check_settings(Settings(**(whole | changed)))
    assert words in refused.value.message
