"""URLs of clients are read in one way only, and shown without secrets."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.net.urls import SHOWN_CHARS, HttpUrl, InvalidUrl, parse_url, shown

READ: list[tuple[str, HttpUrl]] = [
    ("http://a.example", HttpUrl("http", "a.example", 80, "/")),
    ("  HTTPS://A.Example.:8443/b?c#d\n", HttpUrl("https", "a.example", 8443, "/b?c")),
    ("http://a.example:/x", HttpUrl("http", "a.example", 80, "/x")),
    ("http://a_b.example/my cat.png?x=ü", HttpUrl("http", "a_b.example", 80, "/my%20cat.png?x=%C3%BC")),
    ("http://a.example/%2e%2E/a%20b", HttpUrl("http", "a.example", 80, "/%2e%2E/a%20b")),
    ("http://a.example?q", HttpUrl("http", "a.example", 80, "/?q")),
    ("http://bücher.example/", HttpUrl("http", "xn--bcher-kva.example", 80, "/")),
    ("http://a。example/", HttpUrl("http", "a.example", 80, "/")),
    ("http://127.1/", HttpUrl("http", "127.0.0.1", 80, "/", ip_address("127.0.0.1"))),
    ("http://１２７.0.0.1/", HttpUrl("http", "127.0.0.1", 80, "/", ip_address("127.0.0.1"))),
    ("http://2852039166/", HttpUrl("http", "169.254.169.254", 80, "/", ip_address("169.254.169.254"))),
    ("http://[::0001]:8080/", HttpUrl("http", "::1", 8080, "/", ip_address("::1"))),
]
REFUSED: list[tuple[str, str]] = [
    ("", "the URL is empty"),
    ("   ", "the URL is empty"),
    ("iVBORw0KGgo", "not a URL"),
    ("/etc/passwd", "not a URL"),
    ("//a.example/", "not a URL"),
    ("file:///etc/passwd", "unsupported URL scheme in 'file:///etc/passwd'"),
    ("ftp://a.example/", "unsupported URL scheme"),
    ("javascript:alert(1)", "unsupported URL scheme"),
    ("httpx://a.example/", "unsupported URL scheme"),
    ("http:a.example", "has no valid host and port"),
    ("http:/a.example", "has no valid host and port"),
    ("http:///a.example", "has no valid host and port"),
    ("http://:80/", "has no valid host and port"),
    ("http://a.example:0/", "has no valid host and port"),
    ("http://a.example:65536/", "has no valid host and port"),
    ("http://a.example:８０/", "has no valid host and port"),
    ("http://a.example:80:81/", "has no valid host and port"),
    ("http://user@a.example/", "must not hold a user name"),
    ("http://user:secret@a.example/", "must not hold a user name"),
    ("http://good.example@127.0.0.1/", "must not hold a user name"),
    ("http://a.example\\@127.0.0.1/", "holds a backslash"),
    ("http://127.0.0.1\\.a.example/", "holds a backslash"),
    ("http://a\texample/", "holds a backslash or a control character"),
    ("http://a.example/\r\nHost: b", "holds a backslash or a control character"),
    ("http://a.example/\x00", "holds a backslash or a control character"),
    ("http://a.example/\ud800", "holds a backslash or a control character"),
    ("http://a b/", "host is not valid"),
    ("http://%31%32%37.0.0.1/", "host is not valid"),
    ("http://a..example/", "host is not valid"),
    ("http://-a.example/", "host is not valid"),
    ("http://a.example-/", "host is not valid"),
    ("http://" + "a" * 64 + ".example/", "host is not valid"),
    ("http://" + "a." * 200 + "example/", "host is not valid"),
    ("http://" + "ü" * 5000 + ".example/", "host is not valid"),
    ("http://1.2.3.4.5/", "host is not valid"),
    ("http://[::1/", "not valid"),
    ("http://[::1%25eth0]/", "not valid"),
    ("http://[127.0.0.1]/", "not valid"),
    ("http://a.example/" + "x" * 8192, "longer than 8192 characters"),
]


@pytest.mark.parametrize(("text", "url"), READ)
def test_urls_are_read(text: str, url: HttpUrl) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize(("text", "words"), REFUSED, ids=lambda value: value[:40])
def test_what_is_not_clear_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidUrl, match=words) as raised:
        parse_url(text)
    assert "secret" not in str(raised.value)
    assert len(str(raised.value)) < 220


@given(st.text(max_size=40), st.sampled_from(["http://", "https://a.example", "http://a.example/", "HTTP:", ""]))
def test_any_text_is_read_or_refused(text: str, before: str) -> None:
    try:
        url = parse_url(before + text)
    except InvalidUrl:
        return
    line = f"GET {url.target} HTTP/1.1\r\nHost: {url.authority}"
    assert line.isascii()
    assert line.count("\r") == line.count("\n") == 1
    assert line.count(" ") == 3
    # Read again, it is the same: what was checked is what is asked for.
    assert parse_url(f"{url.scheme}://{url.authority}{url.target}") == url
    assert urlsplit(f"{url.scheme}://{url.authority}{url.target}").hostname == url.host


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/b", "http://a.example/b"),
        ("b?c", "http://a.example/x/b?c"),
        ("//b.example:81/c", "http://b.example:81/c"),
        ("https://b.example/", "https://b.example/"),
        ("?q", "http://a.example/x/y?q"),
        ("", "http://a.example/x/y?z"),
    ],
)
def test_redirects_are_joined(location: str, target: str) -> None:
    assert parse_url("http://a.example/x/y?z").joined(location) == parse_url(target)


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "data:image/png;base64,AA", "http://u@b.example/", "//a\\b/", "http://[::1", "gopher:x"],
)
def test_redirects_to_what_is_not_fetched_are_refused(location: str) -> None:
    with pytest.raises(InvalidUrl):
        parse_url("http://a.example/x").joined(location)


def test_what_is_shown_has_no_secrets() -> None:
    assert shown("ftp://user:secret@a.example/p@q?token=secret#secret") == "ftp://a.example/p@q"
    assert shown("ftp://" + "a" * 100) == "ftp://" + "a" * (SHOWN_CHARS - 7) + "…"
    assert shown("x:\x1b[31m\n") == "x:?[31m?"


@given(st.text(max_size=200))
def test_what_is_shown_is_short_and_printable(text: str) -> None:
    assert len(shown(text)) <= SHOWN_CHARS
    assert shown(text).isprintable()
