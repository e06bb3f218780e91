from __future__ import annotations

import pytest

from smg_trio.core.errors import ClientFault
from smg_trio.gateway.security.origins import (
    HostNotAllowed,
    OriginNotAllowed,
    OriginPolicy,
    is_loopback_host,
    is_own_origin,
    normal_origin,
)


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://127.0.0.1:30000", "127.0.0.1:30000", True),
        ("http://LocalHost:30000", "localhost:30000", True),
        ("http://gw.example", "gw.example", True),
        ("http://gw.example", "gw.example:80", True),
        ("http://gw.example:80", "gw.example", True),
        ("https://gw.example", "gw.example:443", True),
        ("https://gw.example", "gw.example", True),
        ("http://gw.example.", "gw.example", True),
        ("http://[::1]:30000", "[::1]:30000", True),
        ("http://[::1]:30000", "[0:0:0:0:0:0:0:1]:30000", True),
        ("https://gw.example", "gw.example:80", False),
        ("http://gw.example", "gw.example:443", False),
        ("http://127.0.0.1:3000", "127.0.0.1:30000", False),
        ("http://localhost:30000", "127.0.0.1:30000", False),
        ("http://evil.example", "127.0.0.1:30000", False),
        ("http://127.0.0.1:30000.evil.example", "127.0.0.1:30000", False),
        ("http://127.0.0.1:30000@evil.example", "127.0.0.1:30000", False),
        ("http://evil.example/127.0.0.1:30000", "127.0.0.1:30000", False),
        ("http://evil.example#127.0.0.1:30000", "127.0.0.1:30000", False),
        ("http://gw.example", "", False),
        ("http://", "", False),
        ("", "", False),
        ("null", "null", False),
        ("file://", "", False),
        ("ftp://gw.example", "gw.example", False),
        ("chrome-extension://gw.example", "gw.example", False),
        ("http://gw.example http://gw.example", "gw.example", False),
    ],
)
def test_an_origin_is_the_gateways_own_if_host_and_port_are(origin: str, host: str, own: bool) -> None:
    assert is_own_origin(origin, host, tls=False) is own


@pytest.mark.parametrize(("origin", "own"), [("https://gw.example:8443", True), ("http://gw.example:8443", False)])
def test_where_the_gateway_speaks_tls_a_page_without_tls_is_another_origin(origin: str, own: bool) -> None:
    assert is_own_origin(origin, "gw.example:8443", tls=True) is own


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("https://Your.Site", "https://your.site:443"),
        ("https://your.site/", "https://your.site:443"),
        ("http://a:80", "http://a:80"),
        ("http://[0:0::1]:8080", "http://[::1]:8080"),
        ("null", "null"),
        ("app://Obsidian.md", "app://obsidian.md"),
    ],
)
def test_an_origin_is_compared_in_one_form(text: str, normal: str) -> None:
    assert normal_origin(text) == normal


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST:30000", True),
        ("localhost.:30000", True),
        ("app.localhost", True),
        ("127.0.0.1:30000", True),
        ("127.8.9.1", True),
        ("[::1]:30000", True),
        ("[::ffff:127.0.0.1]", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:30000", False),
        ("notlocalhost", False),
        ("0.0.0.0:30000", False),
        ("192.168.1.5", False),
        ("[::ffff:10.0.0.1]", False),
        ("[::2]", False),
        ("2130706433", False),
        ("", False),
        ("a b", False),
        ("localhost/evil", False),
        ("[::1", False),
    ],
)
def test_loopback_names_are_known_whatever_they_look_like(host: str, loopback: bool) -> None:
    assert is_loopback_host(host) is loopback


def refusal(
    policy: OriginPolicy, method: str, *, loopback_only: bool = False, **headers: str
) -> type[ClientFault] | None:
    try:
        policy.check(method, headers, loopback_only=loopback_only)
    except ClientFault as fault:
        return type(fault)
    return None


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "WEBSOCKET", "LINK"])
def test_what_changes_something_is_refused_to_pages_of_other_origins(method: str) -> None:
    policy = OriginPolicy()
    assert refusal(policy, method, host="gw", origin="http://evil.example") is OriginNotAllowed
    assert refusal(policy, method, host="gw", origin="null") is OriginNotAllowed
    assert refusal(policy, method, host="gw", origin="http://gw") is None
    assert refusal(policy, method, host="gw") is None
    assert refusal(OriginPolicy(["http://evil.example/"]), method, host="gw", origin="http://evil.example") is None
    assert refusal(OriginPolicy(["null"]), method, host="gw", origin="null") is None
    assert refusal(OriginPolicy(["*"]), method, host="gw", origin="null") is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_what_changes_nothing_is_answered_and_kept_from_the_page_by_its_browser(method: str) -> None:
    assert refusal(OriginPolicy(), method, host="gw", origin="http://evil.example") is None


@pytest.mark.parametrize("method", ["GET", "POST", "WEBSOCKET", "OPTIONS"])
def test_only_loopback_names_may_be_asked_for_where_that_is_required(method: str) -> None:
    for hosts, host, refused in (
        ((), "evil.example:30000", HostNotAllowed),
        ((), "127.0.0.1:30000", None),
        (("gw.example", "[::2]"), "GW.example:30000", None),
        (("gw.example", "[::2]"), "[0::2]:30000", None),
        (("gw.example",), "sub.gw.example", HostNotAllowed),
        (("*",), "evil.example", None),
        (("gw.example",), "not a host", HostNotAllowed),
        ((), "", HostNotAllowed),
    ):
        policy = OriginPolicy(hosts=hosts)
        assert refusal(policy, method, loopback_only=True, host=host) is refused, (hosts, host)
        assert refusal(policy, method, host=host) is None
    assert refusal(OriginPolicy(), method, loopback_only=True) is None, "HTTP/1.0 without a Host: no browser"
