"""``python -m smg_trio top``: a gateway's live figures in a terminal, or one snapshot of them."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

import trio

from smg_trio.core.errors import ConfigError
from smg_trio.terminal.feed_client import FeedRefused, feed_url, follow, open_feed
from smg_trio.terminal.keyboard import Keys, open_keys
from smg_trio.terminal.overview import Snapshot, text

NOT_READY = 3
"""The exit code of ``--once`` when the gateway answers and would refuse requests."""
RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """What to watch. `once`: one snapshot, as text or as JSON; otherwise until the user has enough."""

    url: str
    api_key: str | None = None
    once: bool = False
    as_json: bool = False


async def run_top(options: TopOptions, output: TextIO = sys.stdout, keyboard: TextIO = sys.stdin) -> int:
    """Run it; the exit code: 0, or 3 with `once` if the gateway is not ready.

    Raises ConfigError, FeedRefused; FeedUnreachable with `once` only.
    """
    feed_url(options.url)
    if options.once or options.as_json:
        return await _show_once(options, output)
    await _show_live(options, output, keyboard)
    return 0


async def _show_once(options: TopOptions, output: TextIO) -> int:
    async with open_feed(options.url, options.api_key) as feed:
        await feed.next_snapshot()
        # Rates are differences: the first snapshot that has them is the second.
        snapshot = await feed.next_snapshot()
    output.write(json.dumps(snapshot) + "\n" if options.as_json else text(snapshot, options.url))
    output.flush()
    return 0 if snapshot["gateway"]["ready"] else NOT_READY


async def _show_live(options: TopOptions, output: TextIO, keyboard: TextIO) -> None:
    try:
        from rich.console import Console
        from rich.live import Live

        from smg_trio.terminal.screen import Screen
    except ImportError:
        raise ConfigError(
            "top", "the package rich is not installed.", "Install smg-trio[top], or use --once or --json."
        ) from None
    if not output.isatty():
        raise ConfigError("top", "stdout is not a terminal.", "Use --once or --json.")
    screen = Screen(options.url)
    console = Console(file=output)
    async with open_keys(keyboard) as keys:
        with Live(screen, console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:

            def show(snapshot: Snapshot | None, problem: str) -> None:
                screen.show(snapshot, problem)
                live.refresh()

            await _until_quit(options, show, live.refresh, keys)


async def _until_quit(
    options: TopOptions,
    show: Callable[[Snapshot | None, str], None],
    refresh: Callable[[], None],
    keys: Keys | None,
) -> None:
    refused: FeedRefused | None = None

    async def pause() -> None:
        await trio.sleep(RETRY_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_quit_by_signal, nursery.cancel_scope)
        if keys is not None:
            nursery.start_soon(_quit_by_key, keys, refresh, nursery.cancel_scope)
        try:
            await follow(options.url, options.api_key, show, pause)
        except FeedRefused as error:
            refused = error
        nursery.cancel_scope.cancel()
    if refused is not None:
        raise refused


async def _quit_by_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


async def _quit_by_key(keys: Keys, refresh: Callable[[], None], scope: trio.CancelScope) -> None:
    while (pressed := await keys.next_keys()) and not set(pressed) & {"q", "Q", "\x03", "\x04"}:
        refresh()
    scope.cancel()
