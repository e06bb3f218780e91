"""Pictures through the whole gateway to a real engine, beside vLLM's own API server with one: the same prompts, tokens
and counts, for twelve odd images and in every form in which clients send them.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import shared_path
from tests.interop.cases import MODEL
from tests.interop.conftest import _handshake_port
from tests.interop.processes import Engine, start_api_server, start_gateway
from tests.ports import lasting_port

LIMITS = ("--limit-mm-per-prompt", '{"image": 4, "video": 1}')
MAX_TOKENS = 8
REQUESTS_AT_ONCE = 12


@pytest.fixture(scope="module")
def images() -> dict[str, str]:
    """File name → data URL."""
    files = sorted(shared_path("data", "tiny-vlm", "images").iterdir())
    return {file.name: "data:;base64," + base64.b64encode(file.read_bytes()).decode() for file in files}


@pytest.fixture(scope="module")
def servers(vllm_python: str, vision_packages: Path, logs: Path) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients of vLLM's own server and of the gateway, both ready."""
    model = shared_path("data", "tiny-vlm")
    with tempfile.TemporaryDirectory(prefix="smg-") as sockets:
        url = f"ipc://{sockets}/engine-0"
        ports = lasting_port(), lasting_port()
        theirs = start_api_server(
            vllm_python,
            model,
            ports[0],
            logs / "vision-api-server.log",
            chat_template=None,
            packages=vision_packages,
            flags=LIMITS,
        )
        ours = start_gateway(model, url, ports[1], lasting_port(), logs / "vision-gateway.log", chat_template=None)
        engine = Engine(
            vllm_python,
            model,
            _handshake_port(url),
            logs / "vision-engine-2.log",
            packages=vision_packages,
            flags=LIMITS,
        )
        bases = [f"http://127.0.0.1:{port}" for port in ports]
        theirs.until_answers(bases[0] + "/health")
        ours.until_answers(bases[1] + "/readiness")
        with httpx.Client(base_url=bases[0], timeout=60) as one, httpx.Client(base_url=bases[1], timeout=60) as other:
            yield one, other
        assert ours.stop() == 0
        engine.process.stop()
        theirs.stop()


def picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def chat(client: httpx.Client, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """An answer's ids, ending and counts. The model's tokens are no text: of an unfinished character at the end the two
    servers make different replacements (see test_answers.py)."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": list(parts)}], "temperature": 0}
    answer = client.post(
        "/v1/chat/completions", json=body | {"max_tokens": MAX_TOKENS, "return_token_ids": True} | fields
    )
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    choice = whole["choices"][0]
    return {
        "prompt": whole["prompt_token_ids"],
        "tokens": choice["token_ids"],
        "finish": choice["finish_reason"],
        "usage": [whole["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")],
    }


def test_the_tokens_are_those_that_were_captured(
    servers: tuple[httpx.Client, httpx.Client], images: dict[str, str]
) -> None:
    contents = {
        "v0320_one_image": [picture(images["plain_rgb.png"]), words("What is this?")],
        "v0320_two_images": [picture(images["plain_rgb.png"]), picture(images["exif_rot6.jpg"]), words("Compare.")],
        "v0320_interleaved": [
            words("First "),
            picture(images["palette_alpha.png"]),
            words(" then "),
            picture(images["cmyk.jpg"]),
            words(" end."),
        ],
    }
    for name, parts in contents.items():
        captured = json.loads(shared_path("vectors", "multimodal", f"{name}.json").read_text())
        for _ in range(2):
            answer = chat(servers[1], *parts, max_tokens=4)
            assert answer["prompt"] == captured["decoded_request"][1], name
            assert answer["tokens"] == captured["greedy_tokens_seen"], name


def test_every_image_is_answered_as_by_vllms_own_server(
    servers: tuple[httpx.Client, httpx.Client], images: dict[str, str]
) -> None:
    seen = set()
    for name, url in images.items():
        theirs, ours = (chat(server, picture(url), words("What is this?")) for server in servers)
        assert ours == theirs, name
        seen.add(tuple(ours["tokens"]))
    assert len(seen) > len(images) // 2, "what is answered depends on the picture"


def test_the_order_of_parts_is_kept_as_by_vllms_own_server(
    servers: tuple[httpx.Client, httpx.Client], images: dict[str, str]
) -> None:
    one, two = picture(images["webp.webp"]), picture(images["animated.gif"])
    for parts in ([words("a"), one, two], [one, words("a"), two], [two, one, words("a")], [one, one, one, two]):
        theirs, ours = (chat(server, *parts) for server in servers)
        assert ours == theirs


def test_many_at_once_are_answered_as_each_alone(
    servers: tuple[httpx.Client, httpx.Client], images: dict[str, str]
) -> None:
    asked = [[picture(url), words("Describe.")] for url in images.values()]
    alone = [chat(servers[0], *parts) for parts in asked]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        together = list(pool.map(lambda parts: chat(servers[1], *parts), asked))
    assert together == alone


def test_other_apis_give_the_engine_the_same_prompt(
    servers: tuple[httpx.Client, httpx.Client], images: dict[str, str]
) -> None:
    gateway, url = servers[1], images["rgba.png"]
    parts = [picture(url), words("What?")]
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": parts}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    chatted = gateway.post("/v1/chat/completions", json=body).json()
    text, tokens = chatted["choices"][0]["message"]["content"], chatted["usage"]["prompt_tokens"]
    part = {"type": "input_image", "image_url": url, "detail": "auto"}
    content = [part, {"type": "input_text", "text": "What?"}]
    body = {"model": MODEL, "input": [{"role": "user", "content": content}], "temperature": 0}
    answer = gateway.post("/v1/responses", json=body | {"max_output_tokens": MAX_TOKENS}).json()
    assert answer["usage"]["input_tokens"] == tokens
    [message] = [item for item in answer["output"] if item["type"] == "message"]
    assert message["content"][0]["text"] == text
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    content = [{"type": "image", "source": source}, words("What?")]
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0}
    answer = gateway.post("/v1/messages", json=body | {"max_tokens": MAX_TOKENS}).json()
    assert answer["content"][0]["text"] == text
    assert answer["usage"]["input_tokens"] == tokens
