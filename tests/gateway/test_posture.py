"""What is open is said at the start, with the flag that closes it."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from smg_trio.config import Settings, flags_of, options
from smg_trio.gateway.posture import is_everywhere, is_local, open_doors, posture_line
from tests.e2e.harness import HELLO, open_gateway

CLOSED: dict[str, Any] = {"host": "127.0.0.1", "prometheus_host": "::1", "api_key": ("k",)}


def test_the_defaults_leave_three_doors_open() -> None:
    doors = open_doors(Settings())
    assert len(doors) == 3
    assert "whoever reaches this port" in doors[0]


@pytest.mark.parametrize(
    ("changed", "words", "flag"),
    [
        ({"api_key": ()}, "no API key, so every process of this host", "--api-key-file"),
        ({"host": "0.0.0.0"}, "HTTP on every interface", "--host"),
        ({"host": "::"}, "HTTP on every interface", "--host"),
        ({"prometheus_host": "0.0.0.0"}, "metrics without a key", "--prometheus-host"),
        ({"prometheus_host": "10.0.0.1"}, "metrics without a key on 10.0.0.1", "--prometheus-host"),
        ({"cors_allowed_origins": ("https://a", "*")}, "web pages of any origin", "--cors-allowed-origins"),
    ],
    ids=str,
)
def test_each_door_is_said_with_the_flag_that_closes_it(changed: dict[str, Any], words: str, flag: str) -> None:
    [door] = open_doors(Settings(**(CLOSED | changed)))
    assert words in door
    assert f"({flag} " in door


def test_what_is_closed_is_not_said() -> None:
    assert open_doors(Settings(**CLOSED)) == []
    assert open_doors(Settings(**(CLOSED | {"api_key": (), "api_key_file": "f"}))) == []
    assert open_doors(Settings(**(CLOSED | {"host": "10.0.0.1", "cors_allowed_origins": ("https://a",)}))) == []
    assert posture_line(Settings(**CLOSED)) == "security: nothing is open that a flag would close"


def test_every_flag_it_names_exists() -> None:
    known = {flag for option in options() for flag in flags_of(option)}
    line = posture_line(Settings(cors_allowed_origins=("*",)))
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


async def test_a_gateway_says_so_once_when_it_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    with caplog.at_level(logging.INFO, "smg_trio"):
        async with open_gateway(tmp_path / "a", HELLO, connect=False):
            pass
        async with open_gateway(tmp_path / "b", HELLO, connect=False, api_key=("k",)):
            pass
    lines = [(record.levelname, record.message) for record in caplog.records if "security:" in record.message]
    assert [level for level, _ in lines] == ["WARNING", "INFO"]
    assert "--api-key-file" in lines[0][1]
