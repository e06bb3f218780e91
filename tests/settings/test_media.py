"""Limits per modality, and which hosts a rule of --mm-fetch-allow means."""

from __future__ import annotations

import pytest

from smg_trio.settings.checks import check_settings
from smg_trio.settings.hosts import HostRule
from smg_trio.settings.media import host_rules, media_limits
from smg_trio.settings.settings import Settings


def test_what_is_not_named_keeps_its_default() -> None:
    assert media_limits(()) == media_limits(Settings().limit_mm) == {"image": 16, "video": 1, "audio": 0}
    assert media_limits(("image=4",)) == {"image": 4, "video": 1, "audio": 0}
    assert media_limits(("image=4, video=0", "image=2")) == {"image": 2, "video": 0, "audio": 0}


def test_rules_are_read_in_every_form() -> None:
    texts = ("Images.Example.", "*.cdn.example:8443, b.example:80", "10.0.0.1:8000", "[::0001]:9", "[2001:db8::A]")
    assert host_rules(texts) == (
        HostRule("images.example"),
        HostRule("cdn.example", below=True, port=8443),
        HostRule("b.example", port=80),
        HostRule("10.0.0.1", port=8000),
        HostRule("::1", port=9),
        HostRule("2001:db8::a"),
    )
    check_settings(Settings(mm_fetch="allowlist", mm_fetch_allow=texts, mm_fetch_private=True))


@pytest.mark.parametrize(
    ("rule", "host", "allowed"),
    [
        ("a.example", "a.example", True),
        ("a.example", "b.a.example", False),
        ("a.example", "aXexample", False),
        ("*.a.example", "b.a.example", True),
        ("*.a.example", "c.b.a.example", True),
        ("*.a.example", "a.example", False),
        ("*.a.example", "ba.example", False),
        ("*.a.example", "b.a.example.evil.example", False),
    ],
)
def test_a_rule_means_whole_labels(rule: str, host: str, allowed: bool) -> None:
    [made] = host_rules((rule,))
    assert made.allows_host(host) is allowed


def test_ports_that_are_not_named_are_those_of_the_schemes() -> None:
    [plain, other] = host_rules(("a.example", "a.example:8443"))
    assert [port for port in (80, 443, 8080, 8443) if plain.allows_port(port)] == [80, 443]
    assert [port for port in (80, 443, 8080, 8443) if other.allows_port(port)] == [8443]
