"""Fetching: over real connections, from servers that redirect, lie, stall and never end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from smg_trio.core.errors import SmgError, UnsupportedFeature
from smg_trio.media.errors import InvalidMedia, MediaNotAllowed, MediaTimeout, MediaTooLarge, MediaUnavailable
from smg_trio.media.fetch import FetchPolicy, MediaFetcher
from smg_trio.net.hosts import HostPolicy, SystemResolver
from smg_trio.settings.settings import Settings
from tests.certificates import Authority
from tests.http.running import server_context
from tests.media.network import (
    LIMIT,
    OTHER,
    PRIVATE,
    PUBLIC,
    Internet,
    internet,
    nothing,
    ok,
    raw,
    redirect,
    source,
    stall,
)

PICTURE = bytes(range(256)) * 40


@pytest.fixture
async def net(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Internet]:
    async with internet(monkeypatch) as made:
        made.names |= {"a.example": [[PUBLIC]], "b.example": [[OTHER, PUBLIC]], "in.example": [[PRIVATE]]}
        made.serve(PUBLIC, ok(PICTURE))
        yield made


@pytest.fixture
async def slow(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Internet]:
    """Without sockets: with `autojump_clock` time passes when all wait."""
    async with internet(monkeypatch, in_memory=True) as made:
        made.names |= {"a.example": [[PUBLIC]]}
        yield made


async def fetched(net: Internet, url: str, *allowed: str, **options: Any) -> bytes:
    return await net.fetcher(*allowed, **options).fetch(source(url), nothing)


async def refused(net: Internet, url: str, *allowed: str, **options: Any) -> SmgError:
    with pytest.raises(SmgError) as raised:
        await fetched(net, url, *allowed, **options)
    fault = raised.value
    assert fault.message.startswith("messages[0].content[1]: ")
    assert getattr(fault, "param", None) == "messages[0].content[1]"
    for address in (PUBLIC, OTHER, PRIVATE, "127.0.0.1", "169.254"):
        assert address not in fault.message
    return fault


async def test_a_file_is_fetched(net: Internet) -> None:
    assert await fetched(net, "http://a.example/cat.png?size=1") == PICTURE
    assert net.connected == [(PUBLIC, 80)]
    [head] = net.heads
    lines = head.decode().split("\r\n")
    assert lines[0] == "GET /cat.png?size=1 HTTP/1.1"
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    assert headers.pop("user-agent").startswith("smg-trio/")
    assert headers == {"host": "a.example", "accept": "*/*", "accept-encoding": "identity", "connection": "close"}


async def test_nothing_of_the_environment_or_of_earlier_answers_is_used(
    net: Internet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine a.example login u password p\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    net.serve(PUBLIC, ok(PICTURE, "Set-Cookie: a=b"))
    fetcher = net.fetcher()
    for _ in range(2):
        assert await fetcher.fetch(source("http://a.example/"), nothing) == PICTURE
    assert net.connected == [(PUBLIC, 80)] * 2
    assert not any(word in head.lower() for head in net.heads for word in (b"cookie", b"authorization", b"proxy"))


async def test_the_connection_goes_to_the_address_that_was_checked(net: Internet) -> None:
    net.names["a.example"] = [[PUBLIC], ["127.0.0.1"]]  # asked again, the name server says otherwise
    assert await fetched(net, "http://a.example/") == PICTURE
    assert (net.asked, net.connected) == (["a.example"], [(PUBLIC, 80)])


async def test_one_bad_address_among_good_ones_refuses_the_host(net: Internet) -> None:
    for bad in (
        "127.0.0.1",
        PRIVATE,
        "169.254.169.254",
        "::1",
        "fe80::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "0.0.0.0",
    ):
        net.names["a.example"] = [[PUBLIC, bad, OTHER]]
        fault = await refused(net, "http://a.example/")
        assert isinstance(fault, MediaNotAllowed)
        assert fault.message.endswith(": host not allowed")
        assert (fault.status, fault.code) == (400, "media_url_not_allowed")
    assert net.connected == []


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[::]", "0",
     "169.254.169.254", "2852039166", "[fd00:ec2::254]", "[64:ff9b::7f00:1]", "１０.1.2.3", "[2002:7f00:1::]"],
)  # fmt: skip
@pytest.mark.parametrize("how", ["directly", "by a redirect"])
async def test_addresses_that_are_not_public_are_refused_in_every_form(net: Internet, host: str, how: str) -> None:
    url = f"http://{host}/"
    if how == "by a redirect":
        net.serve(PUBLIC, redirect(url))
        url = "http://a.example/"
    assert isinstance(await refused(net, url), MediaNotAllowed)
    assert net.connected == [(PUBLIC, 80)] * (how == "by a redirect")


async def test_each_redirect_is_resolved_and_checked(net: Internet) -> None:
    net.serve(PUBLIC, redirect("http://in.example/"))
    net.serve(PRIVATE, ok(b"secret"))
    assert isinstance(await refused(net, "http://a.example/"), MediaNotAllowed)
    # The same name may have another address by then.
    net.serve(PUBLIC, redirect("/again"))
    net.names["a.example"] = [[PUBLIC], [PRIVATE]]
    assert isinstance(await refused(net, "http://a.example/"), MediaNotAllowed)
    assert PRIVATE not in {address for address, _ in net.connected}


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_redirects_are_followed(net: Internet, status: str) -> None:
    net.serve(PUBLIC, redirect("//b.example/x", status))
    net.serve(OTHER, ok(PICTURE))
    assert await fetched(net, "http://a.example/") == PICTURE
    assert net.asked == ["a.example", "b.example"]
    assert net.connected == [(PUBLIC, 80), (OTHER, 80)]


async def test_three_redirects_are_enough(net: Internet) -> None:
    async def count(stream: Any, head: bytes) -> None:
        at = int(head.split()[1].strip(b"/") or b"0")
        await (redirect(f"/{at + 1}") if at < 3 else ok(PICTURE))(stream, head)

    net.serve(PUBLIC, count)
    assert await fetched(net, "http://a.example/0") == PICTURE
    net.serve(PUBLIC, redirect("/"))
    fault = await refused(net, "http://a.example/")
    assert isinstance(fault, InvalidMedia)
    assert fault.message.endswith("redirects more than 3 times")
    assert len(net.connected) == 8


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "http://u:p@b.example/", "ftp://b.example/", "http://b.example:22/"]
)
async def test_redirects_lead_only_where_requests_may_ask_for(net: Internet, location: str) -> None:
    net.serve(PUBLIC, redirect(location))
    assert isinstance(await refused(net, "http://a.example/"), InvalidMedia)
    assert net.connected == [(PUBLIC, 80)]


async def test_a_redirect_without_a_location_is_no_file(net: Internet) -> None:
    net.serve(PUBLIC, ok(b"moved", status="302 Found"))
    assert "HTTP 302" in (await refused(net, "http://a.example/")).message


async def test_only_listed_hosts_and_their_ports_are_allowed(net: Internet) -> None:
    rules = ("a.example", "*.cdn.example:8080")
    net.names["x.cdn.example"] = [[PUBLIC]]
    net.serve(PUBLIC, ok(b"cdn"), 8080)
    assert await fetched(net, "http://a.example/", *rules) == PICTURE
    assert await fetched(net, "http://X.cdn.example.:8080/", *rules) == b"cdn"
    for url in ("http://b.example/", "http://cdn.example:8080/", "http://evil-a.example/", f"http://{PUBLIC}/"):
        assert (await refused(net, url, *rules)).message.endswith("host not allowed")
    for url in ("http://a.example:8080/", "http://x.cdn.example/", "http://x.cdn.example:22/"):
        assert "not allowed" in (await refused(net, url, *rules)).message
    net.serve(PUBLIC, redirect("http://b.example/"))
    assert (await refused(net, "http://a.example/", *rules)).message.endswith("host not allowed")
    # What is refused by its name is not even looked up.
    assert net.asked == ["a.example", "x.cdn.example", "a.example"]


async def test_listed_hosts_may_be_private_if_the_operator_says_so(net: Internet) -> None:
    net.serve(PRIVATE, ok(b"mine"), 9000)
    net.serve("::1", ok(b"here"), 9000)
    net.names["link.example"] = [["169.254.169.254"]]
    rules = ("in.example:9000", "[::1]:9000", "link.example", "10.1.2.3:9000")
    assert (await refused(net, "http://in.example:9000/", *rules)).message.endswith("host not allowed")
    assert await fetched(net, "http://in.example:9000/", *rules, private=True) == b"mine"
    assert await fetched(net, "http://[::1]:9000/", *rules, private=True) == b"here"
    assert await fetched(net, "http://10.66051:9000/", *rules, private=True) == b"mine"
    assert (await refused(net, "http://link.example/", *rules, private=True)).message.endswith("host not allowed")


def test_settings_become_a_policy() -> None:
    assert FetchPolicy.of(Settings()) == FetchPolicy()
    listed = FetchPolicy.of(Settings(mm_fetch="allowlist", mm_fetch_allow=("a.example",), mm_fetch_private=True))
    assert (listed.enabled, listed.hosts.any_host, len(listed.hosts.rules), listed.hosts.private) == (
        True,
        False,
        1,
        True,
    )
    public = FetchPolicy.of(Settings(mm_fetch="public", mm_fetch_private=True))
    assert (public.enabled, public.hosts.any_host, public.hosts.private) == (True, True, False)


async def test_any_host_has_two_ports_unless_more_are_listed(net: Internet) -> None:
    settings = Settings(mm_fetch="public", mm_fetch_allow=("a.example:8080",))
    fetcher = MediaFetcher(FetchPolicy.of(settings), LIMIT, resolve=net.resolve)
    net.serve(PUBLIC, ok(b"other"), 8080)
    assert await fetcher.fetch(source("http://a.example:8080/"), nothing) == b"other"
    assert await fetcher.fetch(source("http://b.example/"), nothing) == PICTURE
    assert await fetcher.fetch(source("http://a.example/"), nothing) == PICTURE
    with pytest.raises(MediaNotAllowed, match="port 8080 not allowed"):
        await fetcher.fetch(source("http://b.example:8080/"), nothing)


async def test_off_fetches_nothing(net: Internet) -> None:
    fetcher = MediaFetcher(FetchPolicy.of(Settings()), LIMIT, resolve=net.resolve)
    with pytest.raises(MediaNotAllowed, match=r"--mm-fetch is off\): send the data in a data: URL"):
        await fetcher.fetch(source("http://a.example/"), nothing)
    with pytest.raises(InvalidMedia, match="unsupported URL scheme"):
        await fetcher.fetch(source("file:///etc/passwd"), nothing)
    assert net.asked == []


async def test_a_name_without_an_address_is_not_found(net: Internet) -> None:
    fault = await refused(net, "http://nowhere.example/")
    assert (fault.status, fault.message.rpartition(": ")[2]) == (400, "the URL's host is not found")


async def test_the_next_address_is_tried(net: Internet) -> None:
    assert await fetched(net, "http://b.example/") == PICTURE
    assert net.connected == [(OTHER, 80), (PUBLIC, 80)]


async def test_a_server_that_refuses_connections_is_a_502(net: Internet) -> None:
    fault = await refused(net, "http://a.example:443/")
    assert isinstance(fault, MediaUnavailable)
    assert (fault.status, fault.code) == (502, "media_fetch_failed")


@pytest.mark.parametrize(
    ("said", "status"),
    [("404 Not Found", 400), ("403 Forbidden", 400), ("304 Not Modified", 400), ("206 Partial Content", 400),
     ("204 No Content", 400), ("500 Oops", 502), ("503 Busy", 502)],
)  # fmt: skip
async def test_what_is_no_200_is_an_error(net: Internet, said: str, status: int) -> None:
    net.serve(PUBLIC, ok(b"" if said[:3] in ("204", "304") else b"page", status=said))
    fault = await refused(net, "http://a.example/")
    assert fault.status == status
    assert f"HTTP {said[:3]} " in fault.message


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"", 502),
        (b"SSH-2.0-OpenSSH_9.6\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", 502),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort", 502),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 400),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Encoding: gzip\r\n\r\nxxxxx", 400),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_broken_answers_are_errors(net: Internet, said: bytes, status: int) -> None:
    net.serve(PUBLIC, raw(said))
    assert (await refused(net, "http://a.example/")).status == status


async def test_the_length_of_an_answer_is_not_believed(net: Internet) -> None:
    net.serve(PUBLIC, ok(PICTURE + b"more than it says", length=len(PICTURE)))
    assert await fetched(net, "http://a.example/") == PICTURE
    net.serve(PUBLIC, raw(b"HTTP/1.1 200 OK\r\n\r\n" + PICTURE))  # ends with the connection
    assert await fetched(net, "http://a.example/") == PICTURE
    net.serve(PUBLIC, raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"))
    assert await fetched(net, "http://a.example/") == b"hi"


@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1])
async def test_the_limit_is_exact(net: Internet, size: int) -> None:
    net.serve(PUBLIC, ok(bytes(size)))
    if size == LIMIT:
        assert await fetched(net, "http://a.example/") == bytes(size)
    else:
        assert isinstance(await refused(net, "http://a.example/"), MediaTooLarge)


@pytest.mark.parametrize("head", [b"", b"Content-Length: 100\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_a_file_without_end_is_left_at_the_limit(net: Internet, head: bytes) -> None:
    sent = 0

    async def forever(stream: Any, _: bytes) -> None:
        nonlocal sent
        await stream.send_all(b"HTTP/1.1 200 OK\r\n" + head.replace(b"100", b"99999999999") + b"\r\n")
        while True:
            piece = b"1000\r\n" + bytes(0x1000) + b"\r\n" if b"chunked" in head else bytes(0x1000)
            await stream.send_all(piece)
            sent += len(piece)

    net.serve(PUBLIC, forever)
    taken = 0

    async def take(size: int) -> None:
        nonlocal taken
        taken += size
        await trio.lowlevel.checkpoint()

    with pytest.raises(MediaTooLarge, match=f"larger than {LIMIT} bytes"):
        await net.fetcher().fetch(source("http://a.example/"), take)
    assert taken <= LIMIT


async def test_memory_is_taken_before_bytes_are_kept(net: Internet) -> None:
    class Full(Exception):
        pass

    async def take(_: int) -> None:
        raise Full

    with pytest.raises(Full):
        await net.fetcher().fetch(source("http://a.example/"), take)


async def test_https_shows_the_name_and_checks_the_certificate(net: Internet, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("a.example")
    context = server_context()
    context.load_cert_chain(authority.cert, authority.key)
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    net.serve(PUBLIC, ok(PICTURE), 443)
    net.certificates[PUBLIC, 443] = context
    trusting = authority.trusting()
    assert await fetched(net, "https://a.example/", context=trusting) == PICTURE
    assert names == ["a.example"]
    assert b"Host: a.example\r\n" in net.heads[-1]
    for url, trusted in (
        ("https://b.example/", trusting),
        ("https://a.example/", None),
        (f"https://{PUBLIC}/", trusting),
    ):
        net.names["b.example"] = [[PUBLIC]]
        fault = await refused(net, url, context=trusted)
        assert (fault.status, fault.message.rpartition(": ")[2]) == (
            502,
            "the certificate of the URL's server is not valid",
        )
    net.serve(PUBLIC, raw(b"no TLS\r\n\r\n"), 443)
    del net.certificates[PUBLIC, 443]
    assert (await refused(net, "https://a.example/", context=trusting)).status == 502


async def test_a_silent_server_is_a_504_after_five_seconds(slow: Internet, autojump_clock: MockClock) -> None:
    async def starts(stream: Any, _: bytes) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nstart")
        await trio.sleep_forever()

    for say in (stall, starts):
        slow.serve(PUBLIC, say)
        began = trio.current_time()
        fault = await refused(slow, "http://a.example/")
        assert isinstance(fault, MediaTimeout)
        assert (fault.status, fault.code, trio.current_time() - began) == (504, "media_fetch_timeout", pytest.approx(5))


async def test_a_slow_server_is_a_504_after_fifteen_seconds(slow: Internet, autojump_clock: MockClock) -> None:
    async def drips(stream: Any, _: bytes) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await trio.sleep(4)
            await stream.send_all(b"x")

    async def drips_redirects(stream: Any, head: bytes) -> None:
        await trio.sleep(4.5)
        await redirect("/")(stream, head)

    for say in (drips, drips_redirects):
        slow.serve(PUBLIC, say)
        began = trio.current_time()
        assert "took more than 15 s" in (await refused(slow, "http://a.example/")).message
        assert trio.current_time() - began == pytest.approx(15)


async def test_connecting_and_looking_up_are_bounded_too(
    slow: Internet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await trio.sleep_forever()

    began = trio.current_time()
    with monkeypatch.context() as patch:
        patch.setattr(trio, "open_tcp_stream", never)
        slow.names["a.example"] = [[PUBLIC, OTHER]]
        assert (await refused(slow, "http://a.example/")).status == 504
    assert trio.current_time() - began == pytest.approx(5)
    patient = MediaFetcher(FetchPolicy(True, HostPolicy(any_host=True)), LIMIT, resolve=never)
    with pytest.raises(MediaTimeout, match="took more than 15 s"):
        await patient.fetch(source("http://a.example/"), nothing)


async def test_an_address_that_leads_nowhere_leaves_time_for_the_next(
    slow: Internet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = trio.open_tcp_stream

    async def dead_or_alive(host: str, port: int, **options: Any) -> Any:
        if host == OTHER:
            await trio.sleep_forever()
        return await connect(host, port, **options)

    monkeypatch.setattr(trio, "open_tcp_stream", dead_or_alive)
    slow.names["a.example"] = [[OTHER, PUBLIC]]
    slow.serve(PUBLIC, ok(PICTURE))
    began = trio.current_time()
    assert await fetched(slow, "http://a.example/") == PICTURE
    assert trio.current_time() - began == pytest.approx(2)


async def test_who_leaves_closes_the_connection(slow: Internet, autojump_clock: MockClock) -> None:
    slow.serve(PUBLIC, stall)
    with trio.move_on_after(1):
        await fetched(slow, "http://a.example/")
    # `internet` sees to it that nothing is open at the end.
    assert slow.heads


async def test_without_the_extra_the_error_names_it(net: Internet, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    import smg_trio.media

    monkeypatch.setitem(sys.modules, "httpcore", None)
    monkeypatch.delitem(sys.modules, "smg_trio.media.http_client", raising=False)
    monkeypatch.delattr(smg_trio.media, "http_client", raising=False)
    fault = await refused(net, "http://a.example/")
    assert isinstance(fault, UnsupportedFeature)
    assert "pip install 'smg-trio[images]'" in fault.message


async def test_the_system_resolver_knows_this_host() -> None:
    resolve = SystemResolver()
    found = await resolve("localhost", 80)
    assert {ip_address("127.0.0.1"), ip_address("::1")} >= set(found) > set()
    with pytest.raises((OSError, UnicodeError)):
        await resolve("x" * 64 + ".invalid", 80)
