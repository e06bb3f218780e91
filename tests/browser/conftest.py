"""A real browser, headless; run by ``nox -s browser``.

Without `SMG_TRIO_BROWSER` set everything here is skipped. Screenshots are left in the directory that
`SMG_TRIO_SCREENSHOTS` names, if it names one. Playwright's calls block, so a scene runs in a thread of its own, and
asks the gateway's loop for what it needs of that.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.directories import mark_directory

if TYPE_CHECKING:
    from playwright.sync_api import Page

SWITCH = "SMG_TRIO_BROWSER"
PATIENCE_MS = 15_000
Scene = Callable[["Page"], None]
Show = Callable[..., Awaitable[None]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this directory needs playwright and a Chromium."""
    needs = f"needs a browser: nox -s browser, or {SWITCH}=1"
    mark_directory(items, __file__, "browser", switch=SWITCH, needs=needs)


@contextmanager
def _page(**context: Any) -> Iterator[Page]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        try:
            page = browser.new_context(**context).new_page()
            page.set_default_timeout(PATIENCE_MS)
            yield page
        finally:
            browser.close()


def _run(scene: Scene, url: str, allowed: tuple[str, ...], context: dict[str, Any]) -> None:
    complaints: list[str] = []
    elsewhere: list[str] = []
    with _page(**context) as page:
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda request: elsewhere.append(request.url) if not request.url.startswith(url) else None)
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => console.error('policy', e.violatedDirective))"
        )
        page.goto(url + "/dashboard")
        scene(page)
    assert [one for one in complaints if not any(part in one for part in allowed)] == []
    assert [one for one in elsewhere if not one.startswith("data:")] == []


@pytest.fixture
def show() -> Show:
    """``await show(url, scene, allowed=…, **context)``: play a scene on the page of a gateway.

    Fails if the browser's console says anything (except what holds one of the `allowed` texts), if the page's security
    policy was violated, or if anything was asked of another server. `context`: options of the browser's context.
    """

    async def show(url: str, scene: Scene, *, allowed: tuple[str, ...] = (), **context: Any) -> None:
        chosen = {"viewport": {"width": 1400, "height": 1000}} | context
        await trio.to_thread.run_sync(partial(_run, scene, url, allowed, chosen))

    return show


def keep_picture(page: Page, name: str) -> None:
    """A picture of the whole page, if somebody wants to look at it."""
    directory = os.environ.get("SMG_TRIO_SCREENSHOTS")
    if directory:
        page.screenshot(path=f"{directory}/{name}.png", full_page=True)
