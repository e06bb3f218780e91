from __future__ import annotations

import pytest

from smg_trio.gateway.security.cors import cors_headers, preflight_headers
from smg_trio.gateway.security.origins import OriginPolicy


@pytest.mark.parametrize(
    ("origin", "allowed", "told"),
    [
        (None, ("*",), None),
        ("http://a", (), None),
        ("http://a", ("http://b",), None),
        ("http://a", ("http://a",), "http://a"),
        ("http://a", ("http://b", "http://a"), "http://a"),
        ("http://a", ("*",), "*"),
        ("null", ("http://a",), None),
        ("http://a.evil", ("http://a",), None),
        ("https://a", ("HTTPS://A:443/",), "https://a"),
    ],
)
def test_only_pages_of_named_origins_may_read(origin: str | None, allowed: tuple[str, ...], told: str | None) -> None:
    assert dict(cors_headers(origin, OriginPolicy(allowed).allowed)).get("access-control-allow-origin") == told


def test_an_answer_that_depends_on_the_origin_says_so_to_caches() -> None:
    assert dict(cors_headers("http://a", OriginPolicy(["http://a"]).allowed))["vary"] == "Origin"


def test_a_preflight_allows_what_is_asked_for_or_nothing() -> None:
    assert preflight_headers("http://a", ()) == []
    headers = dict(preflight_headers("http://a", ("*",), "authorization,x-stainless-os"))
    assert headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert "authorization" in dict(preflight_headers("http://a", ("*",)))["access-control-allow-headers"]
