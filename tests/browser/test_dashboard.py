"""The live page in a real browser, as an operator uses it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from smg_trio.testing.commands import EngineRequest
from smg_trio.testing.script import Script
from tests.e2e.answers import TOOLS, spelt
from tests.e2e.harness import COUNTING, ENDLESS, HELLO, PATIENCE_S, Bench, chat_body, open_gateway
from tests.e2e.media.vision import BLUE, RED, encoded, open_vision_gateway
from tests.ports import lasting_port

from .conftest import Show, keep_picture

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

MARKUP = "<img src=x onerror=alert(1)>"
PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def in_loop(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call something that belongs to the gateway's loop, from a scene."""
    return trio.from_thread.run_sync(function, *arguments)


def row_of(page: Page, text: str) -> Locator:
    return page.locator("#worker-rows tr", has_text=text)


def button(page: Page, does: str, url: str) -> Locator:
    return page.get_by_role("button", name=f"{does} {url}", exact=True)


def wait_text(locator: Locator, text: str) -> None:
    from playwright.sync_api import expect

    expect(locator).to_contain_text(text, timeout=15_000)


def wait_count(locator: Locator, number: int) -> None:
    from playwright.sync_api import expect

    expect(locator).to_have_count(number, timeout=15_000)


def in_turn(bench: Bench, *texts: str) -> Callable[[EngineRequest], Script]:
    """Says one text after the other, one token each 10 ms."""
    scripts: Iterator[Script] = iter([spelt(bench, text) for text in texts])
    return lambda request: next(scripts)


async def test_it_shows_workers_requests_latencies_and_errors(tmp_path: Path, show: Show) -> None:
    def scene(page: Page) -> None:
        wait_text(page.locator("#status"), "Ready")
        wait_text(row_of(page, "w0-"), "ready")
        wait_count(page.locator("#request-rows tr"), 1)
        wait_text(page.locator("#request-rows tr"), "generating")
        wait_text(page.locator("#error-rows"), MARKUP)
        wait_count(page.locator("#error-rows img"), 0)
        in_loop(bench.kill, bench.engines[1])
        wait_text(row_of(page, "w1-"), "not ready")
        wait_text(row_of(page, "w1-"), "the engine closed its connection")
        wait_text(page.locator("#status"), "1 of 2 ready")
        keep_picture(page, "overview")

    async with (
        open_gateway(tmp_path, COUNTING, workers=2, engine={"step_time_s": 0.02}, disable_retries=True) as bench,
        bench.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)),
    ):
        assert (await bench.chat(max_tokens=10)).status_code == 200
        assert (await bench.chat(model=MARKUP)).status_code == 404
        await show(bench.base_url, scene)


async def test_a_chat_shows_text_thought_and_tool_calls_apart(tmp_path: Path, show: Show) -> None:
    def scene(page: Page) -> None:
        wait_count(page.locator("#chat-model option"), 1)
        page.fill("#chat-tools", "[{")
        page.fill("#chat-input", "What is the weather?")
        page.click("#chat-send")
        wait_text(page.locator("#chat-tools-problem"), "no JSON array")
        page.fill("#chat-tools", json.dumps(TOOLS))
        page.fill("#chat-temperature", "0.5")
        page.fill("#chat-max-tokens", "300")
        page.fill("#chat-system", "Be short.")
        page.press("#chat-input", "Enter")
        answer = page.locator(".message.assistant").nth(0)
        wait_text(answer.locator(".thought"), "I should look.")
        wait_text(answer.locator(".tool"), '"city": "Oslo"')
        wait_text(answer.locator(".tool h3"), "get_weather")
        wait_text(answer.locator(".facts-line"), "tool_calls")
        assert "think" not in (answer.locator(".text").nth(1).text_content() or "")
        keep_picture(page, "chat-tools")
        answer.locator(".tool textarea").fill('{"degrees": 3}')
        page.click("#chat-send")
        second = page.locator(".message.assistant").nth(1)
        wait_text(second.locator(".text").nth(1), f"Three degrees. {MARKUP}")
        wait_text(second.locator(".facts-line"), "stop")
        wait_count(page.locator("#transcript img"), 0)
        keep_picture(page, "chat")
        page.click("#chat-clear")
        wait_count(page.locator(".message"), 0)

    async with open_gateway(tmp_path, HELLO, engine={"step_time_s": 0.01}, **PARSERS) as bench:
        bench.say(
            in_turn(
                bench,
                f"<think>\nI should look.\n</think>\n\n{WEATHER}",
                f"<think>\n\n</think>\n\nThree degrees. {MARKUP}",
            )
        )
        await show(bench.base_url, scene)
        first, second = bench.engine.received[-2:]
        decoded = bench.gateway.catalog.find("").text.tokenizer.decode(
            second.prompt_token_ids, skip_special_tokens=False
        )
        assert '{"degrees": 3}' in decoded
        assert "Be short." in decoded
        assert first.max_tokens == 300


DROP = """([selector, encoded]) => {
  const bytes = Uint8Array.from(atob(encoded), (char) => char.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
  const target = document.querySelector(selector);
  const [name, field] = NAME === "paste" ? ["clipboardData", ClipboardEvent] : ["dataTransfer", DragEvent];
  target.dispatchEvent(new field(NAME, { bubbles: true, cancelable: true, [name]: transfer }));
}"""


async def test_a_chat_takes_pictures_by_choice_drop_and_paste(tmp_path: Path, show: Show) -> None:
    def scene(page: Page) -> None:
        wait_count(page.locator("#chat-model option"), 1)
        waiting = page.locator("#chat-pictures img")
        page.set_input_files("#chat-file", {"name": "red.png", "mimeType": "image/png", "buffer": RED})
        wait_count(waiting, 1)
        page.evaluate(DROP.replace("NAME", '"drop"'), ["#chat-form", encoded(BLUE)])
        wait_count(waiting, 2)
        page.evaluate(DROP.replace("NAME", '"paste"'), ["#chat-input", encoded(RED)])
        wait_count(waiting, 3)
        keep_picture(page, "chat-pictures")
        page.get_by_role("button", name="Remove picture 3").click()
        wait_count(waiting, 2)
        page.fill("#chat-input", "Which is red?")
        page.click("#chat-send")
        wait_count(waiting, 0)
        wait_count(page.locator(".message.user img"), 2)
        wait_text(page.locator(".message.assistant .text").nth(1), "Hello world")
        keep_picture(page, "chat-pictures-sent")
        # What is refused is given back, to be sent again.
        page.set_input_files("#chat-file", {"name": "none.png", "mimeType": "image/png", "buffer": b"none"})
        wait_count(waiting, 1)
        page.click("#chat-send")
        wait_text(page.locator(".message.assistant .problem").nth(1), "messages[2].content[0]")
        wait_count(waiting, 1)

    async with open_vision_gateway(tmp_path, HELLO) as bench:
        await show(bench.base_url, scene, allowed=("400 (Bad Request)",))
        [request] = bench.engine.received
        assert len(request.sight.pictures) == 2


async def test_an_answer_can_be_stopped_and_a_failure_is_said(tmp_path: Path, show: Show) -> None:
    def scene(page: Page) -> None:
        wait_count(page.locator("#chat-model option"), 1)
        page.fill("#chat-input", "Go on for ever")
        page.press("#chat-input", "Enter")
        wait_text(page.locator(".message.assistant .text").nth(1), "abb")
        page.click("#chat-stop")
        wait_text(page.locator(".message.assistant .facts-line"), "stopped")
        trio.from_thread.run(bench.wait_idle)
        in_loop(bench.kill, bench.engine)
        wait_text(page.locator("#status"), "Not ready")
        page.fill("#chat-input", "Still there?")
        page.press("#chat-input", "Enter")
        wait_text(page.locator(".message.assistant .problem").nth(1), "No worker")
        assert page.input_value("#chat-input") == "Still there?"

    async with open_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.01}) as bench:
        await show(bench.base_url, scene, allowed=("503",))


async def test_workers_are_added_drained_and_removed(tmp_path: Path, show: Show) -> None:
    url = f"ipc://{tmp_path}/s/added"

    def scene(page: Page) -> None:
        wait_count(page.locator("#worker-rows tr"), 2)
        page.click("#add-worker-button")
        page.fill("#add-url", url)
        keep_picture(page, "add-worker")
        page.click("#add-form button[type=submit]")
        wait_text(row_of(page, url), "waiting for HELLO")
        page.click("#add-worker-button")
        page.fill("#add-url", url)
        page.click("#add-form button[type=submit]")
        wait_text(page.locator("#add-problem"), "already exists")
        page.click("#add-form [data-close]")
        button(page, "Remove", url).click()
        page.click("#remove-form [data-close]")
        button(page, "Remove", url).click()
        page.click("#remove-confirm")
        wait_count(page.locator("#worker-rows tr"), 2)

        busy = row_of(page, bench.urls[0])
        wait_text(busy.locator("td").nth(2), "1")
        button(page, "Drain", bench.urls[0]).click()
        wait_text(page.locator("#remove-text"), "1 answer is in flight there")
        keep_picture(page, "drain")
        page.click("#remove-confirm")
        wait_text(busy, "draining")
        button(page, "Remove", bench.urls[0]).click()
        wait_text(page.locator("#remove-text"), "will fail")
        page.click("#remove-confirm")
        wait_count(page.locator("#worker-rows tr"), 1)
        button(page, "Drain", bench.urls[1]).click()
        page.click("#remove-confirm")
        wait_text(page.locator("#workers-empty"), "No workers")

    async with (
        open_gateway(tmp_path, ENDLESS, workers=2, engine={"step_time_s": 0.01}) as bench,
        bench.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)),
    ):
        await show(bench.base_url, scene, allowed=("409",))


async def test_the_key_is_asked_for_and_kept_for_the_tab_only(tmp_path: Path, show: Show) -> None:
    key = "s3cret-schlüssel"

    def scene(page: Page) -> None:
        wait_text(page.locator("#key-reason"), "wants an API key")
        wait_text(page.locator("#status"), "Key needed")
        wait_count(page.locator("#worker-rows tr"), 0)
        page.fill("#key-input", "wrong")
        page.press("#key-input", "Enter")
        wait_text(page.locator("#key-reason"), "not accepted")
        keep_picture(page, "key")
        page.fill("#key-input", key)
        page.press("#key-input", "Enter")
        wait_text(page.locator("#status"), "Ready")
        page.fill("#chat-input", "Hi")
        page.press("#chat-input", "Enter")
        wait_text(page.locator(".message.assistant"), "Hello world")
        page.reload()
        wait_text(page.locator("#status"), "Ready")
        assert key not in page.url
        assert page.evaluate("JSON.stringify(localStorage) + document.cookie") == "{}"
        page.click("#key-button")
        page.click("#key-forget")
        wait_text(page.locator("#status"), "Key needed")
        assert page.evaluate("sessionStorage.length") == 0

    async with open_gateway(tmp_path, HELLO, api_key=(key,)) as bench:
        await show(bench.base_url, scene)


async def test_the_page_finds_a_restarted_gateway(tmp_path: Path, show: Show) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    went, lost, came, seen = (trio.Event() for _ in range(4))

    def scene(page: Page) -> None:
        wait_text(page.locator("#status"), "Ready")
        in_loop(went.set)
        wait_text(page.locator("#status"), "No connection")
        in_loop(lost.set)
        trio.from_thread.run(came.wait)
        wait_text(page.locator("#status"), "Ready")
        in_loop(seen.set)

    with trio.fail_after(6 * PATIENCE_S):
        async with trio.open_nursery() as nursery:
            port = lasting_port()
            async with open_gateway(tmp_path / "first", HELLO, port=port) as first:
                complaints = ("ERR_CONNECTION_REFUSED", "WebSocket connection to")

                async def play() -> None:
                    await show(first.base_url, scene, allowed=complaints)

                nursery.start_soon(play)
                await went.wait()
            await lost.wait()
            async with open_gateway(tmp_path / "second", HELLO, port=port):
                came.set()
                await seen.wait()


WIDTHS = [(375, 800), (768, 1000), (1400, 1000), (2200, 1200)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_nothing_overflows_and_text_is_readable_at_any_width(tmp_path: Path, show: Show, scheme: str) -> None:
    def scene(page: Page) -> None:
        wait_count(page.locator("#request-rows tr"), 1)
        for width, height in WIDTHS:
            page.set_viewport_size({"width": width, "height": height})
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.evaluate(OVERFLOWING) == []
            keep_picture(page, f"{scheme}-{width}")
        assert page.evaluate(FAINT) == []
        page.click("#theme-button")
        page.click("#theme-button")
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
        assert page.evaluate(FAINT) == []

    async with (
        open_gateway(tmp_path, COUNTING, engine={"step_time_s": 0.02}) as bench,
        bench.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)),
    ):
        assert (await bench.chat(model="x" * 300)).status_code == 404
        assert (await bench.http.post("/workers", json={"url": f"ipc://{tmp_path}/s/group", "dp_size": 3})).is_success
        await show(bench.base_url, scene, color_scheme=scheme)


OVERFLOWING = """() => [...document.querySelectorAll("body *")]
  .filter((e) => e.checkVisibility() && !e.closest(".sr-only, .scroll, svg, .skip, thead, nav"))
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1)
  .map((e) => e.outerHTML.slice(0, 100))"""
"""What sticks out of the window."""
FAINT = """() => {
  const channel = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const [r, g, b, a = 1] = rgb(getComputedStyle(e).backgroundColor);
      if (a > 0.99) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  return [...document.querySelectorAll("body *")]
    .filter((e) => e.checkVisibility() && own(e) && !e.closest("noscript, script, style") && !e.disabled)
    .map((e) => {
      const [one, other] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((a, b) => b - a);
      return [e.outerHTML.slice(0, 90), (one + 0.05) / (other + 0.05)];
    })
    .filter(([, ratio]) => ratio < 4.5);
}"""
"""Texts whose contrast is below what WCAG 2 asks of small text (AA)."""


async def test_it_can_be_used_by_keyboard_and_its_parts_have_names(tmp_path: Path, show: Show) -> None:
    def scene(page: Page) -> None:
        wait_text(page.locator("#status"), "Ready")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        drain = button(page, "Drain", bench.urls[0])
        drain.focus()
        before = int(page.locator("body").get_attribute("data-sequence") or 0)
        page.locator(f'body[data-sequence="{before + 2}"]').wait_for(state="attached")
        assert page.evaluate("document.activeElement.textContent") == "Drain", "updates do not take the focus away"
        page.keyboard.press("Enter")
        assert page.get_by_role("dialog", name="Drain and remove this worker?").is_visible()
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.textContent") == "Drain"
        assert page.get_by_role("table", name="Workers").is_visible()
        assert page.evaluate(NAMELESS) == []

    async with open_gateway(tmp_path, HELLO) as bench:
        await show(bench.base_url, scene)


NAMELESS = """() => [...document.querySelectorAll("button, input, select, textarea, a, [role=meter], table, section")]
  .filter((e) => !(e.textContent.trim() || e.ariaLabel || e.getAttribute("aria-labelledby") || e.labels?.length))
  .map((e) => e.outerHTML.slice(0, 100))"""
