"""Reading all media of a request: together, within memory, and all or nothing."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from smg_trio.core.media import MediaSource
from smg_trio.media.errors import InvalidMedia, MediaNotAllowed, MediaTooLarge
from smg_trio.media.hooks import MediaHooks
from smg_trio.media.reader import MediaReader
from smg_trio.settings.settings import Settings
from tests.media.network import LIMIT, PUBLIC, Internet, internet, ok, source, stall


@pytest.fixture
async def net(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Internet]:
    async with internet(monkeypatch, in_memory=True) as made:
        made.names["a.example"] = [[PUBLIC]]
        yield made


def reader(net: Internet, hooks: MediaHooks | None = None, **settings: Any) -> MediaReader:
    values = {"mm_fetch": "public", "mm_max_item_bytes": LIMIT, "mm_max_inflight_bytes": 4 * LIMIT} | settings
    return MediaReader(Settings(**values), hooks, fetcher=net.fetcher())


def inline(payload: bytes, where: str = "messages[0].content[0]") -> MediaSource:
    return source("data:;base64," + base64.b64encode(payload).decode(), where)


async def test_items_come_in_their_order_and_are_held(net: Internet) -> None:
    async def by_path(stream: Any, head: bytes) -> None:
        await trio.sleep(0 if b"/last" in head else 0.01)
        await ok(head.split()[1])(stream, head)

    net.serve(PUBLIC, by_path)
    made = reader(net)
    parts = [
        source("http://a.example/first"),
        inline(b"second"),
        inline(bytes(90_001)),
        source(base64.b64encode(b"fourth").decode(), bare=True),
        source("http://a.example/last"),
    ]
    with made.budget.hold() as hold:
        read = await made.read_all(parts, hold)
        assert read == [b"/first", b"second", bytes(90_001), b"fourth", b"/last"]
        assert hold.held == sum(map(len, read)) == made.budget.used
        assert await made.read(inline(b"more"), hold) == b"more"
        assert await made.read_all([], hold) == []
    assert made.budget.used == 0


async def test_the_first_failure_ends_the_others_at_once(net: Internet, autojump_clock: MockClock) -> None:
    net.serve(PUBLIC, stall)
    made = reader(net)
    parts = [source("http://a.example/"), inline(b"fine"), source("data:;base64,!", "messages[7].content[2]")]
    with (
        made.budget.hold() as hold,
        pytest.raises(InvalidMedia, match=r"^messages\[7\]\.content\[2\]: data is not valid"),
    ):
        await made.read_all(parts, hold)
    assert made.budget.used == 0
    assert trio.current_time() == 0


async def test_nothing_is_fetched_for_a_request_that_is_refused_anyway(net: Internet) -> None:
    made = reader(net, limit_mm=("image=2",))
    web = source("http://a.example/")
    for parts in ([web, web, inline(b"x")], [web, inline(bytes(LIMIT + 3))], [web, source("data:,x")]):
        with made.budget.hold() as hold, pytest.raises((InvalidMedia, MediaTooLarge)):
            await made.read_all(parts, hold)
    assert net.asked == []


async def test_what_is_too_large_together_is_a_413_that_names_the_part(net: Internet) -> None:
    made = reader(net)
    parts = [inline(bytes(LIMIT - 9), f"part {place}") for place in range(6)]
    with made.budget.hold() as hold, pytest.raises(MediaTooLarge, match=r"^part 4: the media of one request"):
        await made.read_all(parts, hold)
    net.serve(PUBLIC, ok(bytes(LIMIT)))
    with made.budget.hold() as hold, pytest.raises(MediaTooLarge, match=r"content\[1\]: the media of one request"):
        await made.read_all([*parts[:3], source("http://a.example/"), source("http://a.example/")], hold)
    assert made.budget.used == 0


async def test_a_request_that_is_cancelled_gives_all_back(net: Internet, mock_clock: MockClock) -> None:
    async def half(stream: Any, _: bytes) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n" + bytes(1000))
        await trio.sleep_forever()

    net.serve(PUBLIC, half)
    made = reader(net)

    async def request() -> None:
        with made.budget.hold() as hold:
            await made.read_all([inline(bytes(50_000)), source("http://a.example/")], hold)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(request)
        await wait_all_tasks_blocked(0.01)
        assert made.budget.used > 51_000
        nursery.cancel_scope.cancel()
    assert made.budget.used == 0


async def test_hooks_hear_of_it(net: Internet, autojump_clock: MockClock) -> None:
    async def after_a_second(stream: Any, head: bytes) -> None:
        await trio.sleep(1)
        await ok(b"web")(stream, head)

    net.serve(PUBLIC, after_a_second)
    heard: list[tuple[Any, ...]] = []
    in_flight: list[int] = []
    hooks = MediaHooks(
        read=lambda *told: heard.append(("read", *told)),
        refused=lambda *told: heard.append(("refused", *told)),
        bytes_in_flight=in_flight.append,
    )
    made = reader(net, hooks)
    with made.budget.hold() as hold:
        await made.read_all([inline(b"here"), source("http://a.example/")], hold)
        assert heard == [("read", "image", "inline", 4, 0.0), ("read", "image", "fetched", 3, pytest.approx(1.0))]
        heard.clear()
        for part in (
            source("data:,x"),
            source("data:;base64,!"),
            source("http://127.0.0.1/"),
            inline(bytes(LIMIT + 3)),
        ):
            with pytest.raises((InvalidMedia, MediaTooLarge)):
                await made.read(part, hold)
    codes = ["invalid_media", "invalid_media", "media_url_not_allowed", "media_too_large"]
    assert heard == [("refused", "image", code) for code in codes]
    assert in_flight[-1] == 0


async def test_the_settings_are_what_counts() -> None:
    off = MediaReader(Settings())
    with off.budget.hold() as hold:
        with pytest.raises(MediaNotAllowed, match="--mm-fetch is off"):
            await off.read(source("https://a.example/"), hold)
        assert await off.read(inline(bytes(1 << 20)), hold) == bytes(1 << 20)
    assert (off.budget.limit, off.limits["image"]) == (256 << 20, 16)
    public = MediaReader(Settings(mm_fetch="public"))
    with public.budget.hold() as hold, pytest.raises(MediaNotAllowed, match="host not allowed"):
        await public.read(source("http://localhost/"), hold)


async def test_a_server_of_ones_own_is_read_over_real_sockets() -> None:
    """Nothing is in between here: the system's resolver, its sockets, and a server on this host."""

    async def serve(stream: trio.SocketStream) -> None:
        assert (await stream.receive_some()).startswith(b"GET /cat.png HTTP/1.1\r\n")
        await ok(bytes(300_000))(stream, b"")

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        made = MediaReader(Settings(mm_fetch="allowlist", mm_fetch_allow=(f"localhost:{port}",), mm_fetch_private=True))
        with made.budget.hold() as hold:
            assert await made.read(source(f"http://localhost:{port}/cat.png"), hold) == bytes(300_000)
            assert hold.held == 300_000
            with pytest.raises(MediaNotAllowed, match="host not allowed"):
                await made.read(source(f"http://127.0.0.1:{port}/cat.png"), hold)
        nursery.cancel_scope.cancel()
