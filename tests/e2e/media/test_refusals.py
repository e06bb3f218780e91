"""Pictures that are refused: each error names the part, nothing reaches an engine, and no answer is a fault of ours."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from tests.e2e.harness import HELLO, MODEL, Bench, error_of, open_gateway

from .vision import BLUE, RED, data_url, encoded, image, open_vision_gateway, png, text, turn, user

WHERE = "messages[0].content[1]"


def url(location: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": location}}


PARTS = [
    (url(data_url(RED)[:-400]), 400, "invalid_media"),
    (url("data:image/png;base64,&&&&"), 400, "invalid_media"),
    (url("data:image/png;base64,aGVsbG8="), 400, "invalid_media"),
    (url("data:image/png;base64,"), 400, "invalid_media"),
    (url("data:text/plain,hello"), 400, "invalid_media"),
    (url("file:///etc/passwd"), 400, None),
    (url("ftp://example.com/x.png"), 400, None),
    (url(""), 400, None),
    (url("https://example.com/x.png"), 400, "media_url_not_allowed"),
    (url("http://169.254.169.254/latest"), 400, "media_url_not_allowed"),
    (url(None), 400, "invalid_value"),
    (url(7), 400, "invalid_value"),
    ({"type": "image_url"}, 400, "invalid_value"),
    ({"type": "image_url", "uuid": "known"}, 400, "unsupported_content"),
    ({"type": "input_image", "file_id": "file-1"}, 400, "unsupported_content"),
    ({"type": "image_url", "image_url": {"url": data_url(RED), "detail": "huge"}}, 400, "invalid_value"),
    ({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, 400, "unsupported_content"),
    ({"type": "audio_url", "audio_url": {"url": "data:,"}}, 400, "unsupported_content"),
    ({"type": "image_embeds", "image_embeds": "AA=="}, 400, "unsupported_content"),
    ({"type": "file", "file": {"file_id": "x"}}, 400, "unsupported_content"),
]


async def refused(bench: Bench, messages: Any, status: int = 400) -> dict[str, Any]:
    return error_of(await bench.chat(messages=messages), status)


async def test_each_refusal_names_the_part_and_none_reaches_an_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_vision_gateway(tmp_path, access_log=True) as bench:
        for part, status, code in PARTS:
            error = await refused(bench, user(image(BLUE), part), status)
            assert error["param"].startswith(WHERE), (part, error)
            assert code is None or error["code"] == code, (part, error)
            assert WHERE in error["message"], error
        audio = await refused(bench, user(image(BLUE), PARTS[16][0]))
        assert "audio" in audio["message"]
        assert bench.engine.received == []
        await bench.wait_idle()
        metrics = (await bench.http.get(bench.metrics_url)).text
        assert 'smg_media_refused_total{modality="image",reason="media_url_not_allowed"} 2.0' in metrics
        assert "smg_media_in_flight_bytes 0.0" in metrics
        answer = await bench.chat(messages=user(image(RED)), max_tokens=2)
        assert answer.status_code == 200
    assert encoded(RED)[:60] not in caplog.text
    assert encoded(BLUE)[:60] not in caplog.text


async def test_the_other_apis_name_their_parts_too(tmp_path: Path) -> None:
    broken = "data:image/png;base64,aGVsbG8="
    async with open_vision_gateway(tmp_path) as bench:
        items = [
            {"role": "user", "content": "hi"},
            {"role": "user", "content": [{"type": "input_image", "image_url": broken}]},
        ]
        answer = await bench.http.post("/v1/responses", json={"model": MODEL, "input": items})
        assert error_of(answer, 400)["param"] == "input[1].content[0]"
        output = [{"type": "input_image", "image_url": broken}]
        items = [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": output},
        ]
        answer = await bench.http.post("/v1/responses", json={"model": MODEL, "input": items})
        assert error_of(answer, 400)["param"] == "input[1].output[0]"
        file = {"type": "image", "source": {"type": "file", "file_id": "x"}}
        base64 = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
        for block, status in ((file, 400), (base64, 400), ({"type": "image"}, 400)):
            body = {"model": MODEL, "max_tokens": 4, "messages": user(text("x"), block)}
            answer = await bench.http.post("/v1/messages", json=body)
            assert answer.status_code == status
            assert answer.json()["error"]["type"] == "invalid_request_error"
            assert WHERE in answer.json()["error"]["message"]
        answer = await bench.http.post("/generate", json={"text": "<|image_pad|>", "image_data": ["aGVsbG8="]})
        assert error_of(answer, 400)["param"] == "image_data[0]"
        for name in ("audio_data", "video_data"):
            answer = await bench.http.post("/generate", json={"text": "x", name: "AA=="})
            assert error_of(answer, 400)["param"] == name
        batch = [user(text("fine")), user(text("x"), url(broken))]
        answer = await bench.http.post("/v1/chat/completions/batch", json={"model": MODEL, "messages": batch})
        assert error_of(answer, 400)["param"] == "messages[1][0].content[1]"
        assistant = [*user(text("x")), {"role": "assistant", "content": [image(RED)]}, *user(text("y"))]
        error = await refused(bench, assistant)
        assert error["param"] == "messages[1].content[0]"
        assert bench.engine.received == []


async def test_a_typed_placeholder_is_text_alone_and_refused_beside_a_picture(tmp_path: Path) -> None:
    typed = text("what is <|image_pad|>?")
    async with open_vision_gateway(tmp_path) as bench:
        answer = await bench.chat(messages=user(typed), max_tokens=2)
        assert answer.status_code == 200
        assert turn(bench) == "what is [1]?"
        assert bench.engine.received[-1].sight.pictures == ()
        error = await refused(bench, [*user(typed), {"role": "assistant", "content": "?"}, *user(image(RED))])
        assert error["code"] == "multimodal_prompt_contract_mismatch"
        assert error["param"] == "messages[0]"
        assert "<|image_pad|>" in error["message"]


async def test_limits_hold_and_say_what_they_are(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"limit_mm": ("image=2",), "mm_max_pixels": 10_000, "mm_max_item_bytes": 4_000}
    async with open_vision_gateway(tmp_path, **limits) as bench:
        error = await refused(bench, user(*[image(RED)] * 3))
        assert "2" in error["message"]
        assert "3" in error["message"]
        error = await refused(bench, user(text("x"), image(png(200, 200))))
        assert error["param"] == WHERE
        assert "10000" in error["message"]
        error = await refused(bench, user(text("x"), url("data:image/png;base64," + "A" * 8_000)), 413)
        assert error["param"] == WHERE
        assert error["code"] == "media_too_large"
        error = await refused(bench, user(text("x"), image(png(2, 500))))
        assert "aspect ratio" in error["message"]


async def test_a_prompt_with_pictures_is_never_cut(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path) as bench:
        answer = await bench.chat(messages=user(image(RED)), truncate_prompt_tokens=5)
        assert error_of(answer, 400)["param"] == "truncate_prompt_tokens"
        answer = await bench.chat(messages=user(image(RED)), truncate_prompt_tokens=500, max_tokens=2)
        assert answer.status_code == 200


async def test_a_model_without_vision_says_so(tmp_path: Path) -> None:
    async with open_gateway(tmp_path) as bench:
        error = await refused(bench, user(text("x"), image(RED)))
        assert (error["code"], error["param"]) == ("unsupported_content", WHERE)
        assert "does not accept images" in error["message"]
        counted = await bench.http.post("/tokenize", json={"model": MODEL, "messages": user(text("x"), image(RED))})
        assert error_of(counted, 400)["code"] == "unsupported_content"


async def test_a_template_that_drops_pictures_is_an_error(tmp_path: Path) -> None:
    template = (
        "{% for message in messages %}{% if message.role == 'user' %}{{ message.content[:3] }}{% endif %}{% endfor %}"
    )
    async with open_vision_gateway(tmp_path, chat_template=template) as bench:
        error = await refused(bench, user(text("x"), image(RED)))
        assert error["code"] == "multimodal_prompt_contract_mismatch"
        assert bench.engine.received == []


def broken(data: bytes, random: Random) -> bytes:
    """The file cut, or with bytes changed."""
    if random.random() < 0.3:
        return data[: random.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(random.randrange(1, 6)):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


async def test_broken_files_end_nothing(tmp_path: Path) -> None:
    """A few of those that the decoding process is fuzzed with (`nox -s fuzz`), all the way through."""
    random, statuses = Random(7), Counter[int]()
    async with open_vision_gateway(tmp_path) as bench:

        async def send(data: bytes) -> None:
            answer = await bench.chat(messages=user(text("x"), image(data)), max_tokens=1)
            statuses[answer.status_code] += 1
            if answer.status_code != 200:
                assert error_of(answer, 400)["param"] == WHERE

        for _ in range(5):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(send, broken(random.choice((RED, BLUE)), random))
        assert set(statuses) == {200, 400}
        assert (await bench.chat(messages=user(image(RED)), max_tokens=1)).status_code == 200
        await bench.wait_idle()
        assert "smg_media_in_flight_bytes 0.0" in (await bench.http.get(bench.metrics_url)).text


async def test_a_client_that_leaves_holds_nothing(tmp_path: Path) -> None:
    """While its image is processed, and while the engine is silent: the next one finds room, where there is for one."""
    large = png(1_500, 1_500)
    async with open_vision_gateway(tmp_path, "E[] fin=hang", words=HELLO, mm_max_inflight_bytes=400_000) as bench:
        for _ in range(2):
            with trio.move_on_after(0.02):
                await bench.chat(messages=user(image(large)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(bench.chat, messages=user(image(large))))
            await bench.engine.wait_until(lambda: bool(bench.engine.received))
            assert bench.gateway.media.budget.used > 200_000
            nursery.cancel_scope.cancel()
        bench.say(HELLO)
        answer = await bench.chat(messages=user(image(large)))
        assert answer.status_code == 200, answer.text
        assert bench.gateway.media.budget.used == 0
        await bench.wait_idle()
