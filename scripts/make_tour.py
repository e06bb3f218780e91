"""Make the pictures of `docs/tour.md` from a real run: a gateway, two fake engines, clients, a browser, `top`.

``python scripts/make_tour.py``: needs httpx, rich, playwright and a Chromium (``apt-get install chromium``), and takes
half a minute. It writes `docs/tour/live-page.png` and `docs/tour/top.svg`, and fails if they are larger than 300 KB
together.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
import trio
from rich.console import Console

from smg_trio.terminal.feed_client import open_feed
from smg_trio.terminal.screen import Screen
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.wire.addresses import parse_worker_url

if TYPE_CHECKING:
    from smg_trio.terminal.overview import Snapshot

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "tour"
MOST_BYTES: Final = 300_000
MODEL: Final = "demo"
CLIENTS: Final = 12
START_WITHIN_S: Final = 30.0
LOOK_FOR_S: Final = 16.0
"""How long the page is open before it is photographed: percentiles, rates and graphs need something to tell of."""
COLUMNS, LINES = 132, 40
PAGE: Final = {"width": 1180, "height": 900}


async def main() -> None:
    """Run it all, then say how large the pictures are."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="smg-tour-") as directory:
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        async with _running(Path(directory), port), httpx.AsyncClient(base_url=url, timeout=60) as http:
            await _ready(http)
            async with trio.open_nursery() as clients:
                for number in range(CLIENTS):
                    clients.start_soon(_converse, http, number)
                clients.start_soon(_mistake, http)
                await trio.to_thread.run_sync(_photograph, f"{url}/dashboard", PICTURES / "live-page.png")
                async with open_feed(url, None) as feed:
                    await feed.next_snapshot()
                    snapshot = await feed.next_snapshot()
                clients.cancel_scope.cancel()
    _draw_top(url, snapshot, PICTURES / "top.svg")
    sizes = {path.name: path.stat().st_size for path in sorted(PICTURES.iterdir())}
    print(", ".join(f"{name}: {size:,} bytes" for name, size in sizes.items()))
    if sum(sizes.values()) > MOST_BYTES:
        raise SystemExit(f"the pictures are larger than {MOST_BYTES:,} bytes together")


@asynccontextmanager
async def _running(directory: Path, port: int) -> AsyncIterator[None]:
    """A gateway with two workers and their engines, ended afterwards."""
    workers = [f"ipc://{directory}/s/w{number}" for number in range(2)]
    commands = [
        ["launch", "--worker-urls", *workers, "--backend", "vllm", "--model-path", str(DEMO_MODEL),
         "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", "0",
         "--log-level", "warn"],
        *(["fake-engine", "--handshake", parse_worker_url(worker).handshake, "--step-ms", "25", "--prefill-ms", "60",
           "--max-num-seqs", "6"] for worker in workers),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    async with trio.open_nursery() as nursery:
        for words in commands:
            run = partial(
                trio.run_process, env=environment, stderr=subprocess.DEVNULL, check=False, deliver_cancel=_end
            )
            nursery.start_soon(run, [sys.executable, "-m", "smg_trio", *words])
        yield
        nursery.cancel_scope.cancel()


async def _end(process: trio.Process) -> None:
    process.send_signal(signal.SIGINT)
    with trio.move_on_after(5):
        await process.wait()
        return
    process.kill()


async def _ready(http: httpx.AsyncClient) -> None:
    with trio.fail_after(START_WITHIN_S):
        while True:
            try:
                body = (await http.get("/readiness")).json()
            except httpx.TransportError:
                body = {}
            if body.get("healthy_workers") == 2:
                return
            await trio.sleep(0.1)


async def _converse(http: httpx.AsyncClient, number: int) -> None:
    """Ask one question after the other, with answers of different lengths, until cancelled."""
    for turn in itertools.count():
        tokens = 40 + (number * 37 + turn * 53) % 160
        question = f"Tell me about the number {number * 100 + turn}. " * (1 + number % 4)
        body = {
            "model": MODEL, "stream": True, "max_tokens": tokens, "ignore_eos": True,
            "messages": [{"role": "user", "content": question}],
        }  # fmt: skip
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for _ in response.aiter_lines():
                pass


async def _mistake(http: httpx.AsyncClient) -> None:
    """Something for the list of recent errors."""
    message = [{"role": "user", "content": "Hi!"}]
    await http.post("/v1/chat/completions", json={"model": "no-such-model", "messages": message})
    await http.post("/v1/chat/completions", json={"model": MODEL, "messages": message, "temperature": -1})


def _draw_top(url: str, snapshot: Snapshot, picture: Path) -> None:
    """Draw a snapshot as `top` does, as a picture without fonts from elsewhere."""
    screen = Screen(url)
    screen.show(snapshot, "")
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, height=LINES, file=nowhere, force_terminal=True)
        console.print(screen)
    drawing = console.export_svg(title="smg-trio top")
    drawing = re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL)
    picture.write_text(drawing.replace("Fira Code", "DejaVu Sans Mono"), encoding="utf-8")


def _photograph(url: str, picture: Path) -> None:
    """The live page in a browser, once it shows requests. Blocking."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_context(viewport=PAGE, color_scheme="light").new_page()
        page.goto(url)
        page.locator("#request-rows tr").nth(CLIENTS // 2).wait_for()
        page.wait_for_timeout(LOOK_FOR_S * 1000)
        page.screenshot(path=picture)
        browser.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    trio.run(main)
