"""What is open is said at the start, with the flag that closes it."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from smg_trio.gateway.security.api_keys import ApiKeys
from smg_trio.gateway.security.exposure import exposure_line, exposures, is_everywhere, is_local
from smg_trio.gateway.security.key_ring import Key, KeyHolder, KeyRing, Role
from smg_trio.settings.flags import flags_of
from smg_trio.settings.settings import Settings, options
from tests.e2e.harness import HELLO, open_gateway

CLOSED: dict[str, Any] = {
    "host": "127.0.0.1",
    "prometheus_host": "::1",
    "api_key": ("k",),
    "control_plane_api_keys": ("ops:Ops:admin:c",),
}
TLS = {"tls_cert_path": "cert.pem", "tls_key_path": "key.pem"}


async def doors_of(**settings: Any) -> list[str]:
    keys = ApiKeys(Settings(**settings))
    await keys.read()
    return exposures(Settings(**settings), keys.ring)


async def test_the_defaults_leave_four_doors_open() -> None:
    doors = await doors_of()
    assert len(doors) == 4
    assert "anyone who can reach this port" in doors[0]


@pytest.mark.parametrize(
    ("changed", "words", "flag"),
    [
        ({"api_key": ()}, "no API key: any process on this host can use models (", "--api-key-file"),
        ({"control_plane_api_keys": ()}, "can also manage workers", "--control-plane-api-keys"),
        ({"api_key": (), "control_plane_api_keys": ()}, "use models and manage workers", "--api-key-file"),
        ({"host": "10.0.0.1"}, "HTTP without TLS on 10.0.0.1", "--tls-cert-path"),
        ({"host": "0.0.0.0"} | TLS, "HTTP on every interface", "--host"),
        ({"host": "::"} | TLS, "HTTP on every interface", "--host"),
        ({"prometheus_host": "0.0.0.0"}, "metrics without a key", "--prometheus-host"),
        ({"prometheus_host": "10.0.0.1"}, "metrics without a key on 10.0.0.1", "--prometheus-host"),
        ({"cors_allowed_origins": ("https://a", "*")}, "web pages of any origin", "--cors-allowed-origins"),
    ],
    ids=str,
)
async def test_each_door_is_said_with_the_flag_that_closes_it(changed: dict[str, Any], words: str, flag: str) -> None:
    [door] = await doors_of(**(CLOSED | changed))
    assert words in door
    assert f"({flag} " in door


async def test_metrics_for_known_scrapers_alone_are_closed() -> None:
    assert not await doors_of(**(CLOSED | {"prometheus_host": "0.0.0.0", "prometheus_tls_client_ca_path": "ca.pem"}))


async def test_any_host_name_is_a_door_only_where_names_are_looked_at() -> None:
    changed = {"allowed_hosts": ("*",)}
    assert await doors_of(**(CLOSED | changed)) == []
    doors = await doors_of(**(CLOSED | changed | {"api_key": (), "control_plane_api_keys": ()}))
    assert "web pages by DNS rebinding (--allowed-hosts your.host)" in doors


async def test_what_is_closed_is_not_said(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("k")
    assert await doors_of(**CLOSED) == []
    assert await doors_of(**(CLOSED | {"api_key": (), "api_key_file": str(tmp_path / "f")})) == []
    changed = {"host": "10.0.0.1", "cors_allowed_origins": ("https://a",)} | TLS
    assert await doors_of(**(CLOSED | changed)) == []
    closed = KeyRing([Key(b"m", KeyHolder("m")), Key(b"a", KeyHolder("a", Role.ADMIN))])
    assert exposure_line(Settings(**CLOSED), closed) == "security: all configurable protections are on"


def test_every_flag_it_names_exists() -> None:
    known = {flag for option in options() for flag in flags_of(option)}
    line = exposure_line(Settings(cors_allowed_origins=("*",)), KeyRing())
    assert set(re.findall(r"--[a-z-]+", line)) <= known


@pytest.mark.parametrize(
    ("host", "local", "everywhere"),
    [
        ("127.0.0.1", True, False),
        ("127.8.8.8", True, False),
        ("::1", True, False),
        ("localhost", True, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("", False, True),
        ("10.0.0.1", False, False),
        ("gpu-7", False, False),
    ],
)
def test_hosts_are_told_apart(host: str, local: bool, everywhere: bool) -> None:
    assert (is_local(host), is_everywhere(host)) == (local, everywhere)


KEYS = {name: CLOSED[name] for name in ("api_key", "control_plane_api_keys")}


async def test_a_gateway_says_so_once_when_it_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    with caplog.at_level(logging.INFO, "smg_trio"):
        async with open_gateway(tmp_path / "a", HELLO, connect=False):
            pass
        async with open_gateway(tmp_path / "b", HELLO, connect=False, **KEYS):
            pass
    lines = [(record.levelname, record.message) for record in caplog.records if "security:" in record.message]
    assert [level for level, _ in lines] == ["WARNING", "INFO"]
    assert "--api-key-file" in lines[0][1]
