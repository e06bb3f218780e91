"""Every form in which clients send pictures: what the engine is asked, and where in the prompt it sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from smg_trio.testing.demo import DEMO_MODEL
from tests.e2e.harness import COUNTING, MODEL, TOKENSPEED, Bench, error_of

from .vision import (
    BLUE,
    BLUE_TOKENS,
    RED,
    RED_TOKENS,
    data_url,
    digests,
    encoded,
    image,
    open_vision_gateway,
    png,
    prompt,
    text,
    turn,
    user,
)

RED_SEEN, BLUE_SEEN = f"<|vision_start|>[{RED_TOKENS}]<|vision_end|>", f"<|vision_start|>[{BLUE_TOKENS}]<|vision_end|>"


async def answered(bench: Bench, path: str, body: dict[str, Any]) -> Any:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    answer = await bench.http.post(path, json={"model": MODEL, limit: 4} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_chat_keeps_text_and_pictures_in_their_order(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path) as bench:
        parts = [text("First"), image(RED), text("then"), image(BLUE), text("which?")]
        body = await answered(bench, "/v1/chat/completions", {"messages": user(*parts)})
        assert turn(bench) == f"First{RED_SEEN}then{BLUE_SEEN}which?"
        request = bench.engine.received[-1]
        assert body["usage"]["prompt_tokens"] == len(request.prompt_token_ids)
        red, blue = request.sight.pictures
        assert (len(red.positions), len(blue.positions)) == (RED_TOKENS, BLUE_TOKENS)
        assert red.positions[-1] < blue.positions[0]
        assert red.digest != blue.digest
        await answered(bench, "/v1/chat/completions", {"messages": user(image(BLUE), text("?"), image(RED))})
        assert digests(bench.engine.received[-1]) == [blue.digest, red.digest]
        await bench.wait_idle()


URL_PARTS = [
    {"type": "image_url", "image_url": {"url": data_url(RED), "detail": "high"}, "uuid": "mine"},
    {"type": "image_url", "image_url": data_url(RED)},
    {"type": "input_image", "image_url": data_url(RED), "detail": "low"},
    {"type": "image_url", "image_url": {"url": f"DATA:text/plain;charset=x;BASE64,{encoded(RED).rstrip('=')}"}},
]


async def test_all_spellings_of_a_picture_are_one_picture(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path) as bench:
        for part in URL_PARTS:
            await answered(bench, "/v1/chat/completions", {"messages": user(part)})
        responses = [{"role": "user", "content": [{"type": "input_image", "image_url": data_url(RED)}]}]
        await answered(bench, "/v1/responses", {"input": responses})
        source = {"type": "base64", "media_type": "image/png", "data": encoded(RED)}
        await answered(bench, "/v1/messages", {"messages": user({"type": "image", "source": source})})
        source = {"type": "url", "url": data_url(RED)}
        await answered(bench, "/v1/messages", {"messages": user({"type": "image", "source": source})})
        seen = [digests(request) for request in bench.engine.received]
        assert len(seen) == len(URL_PARTS) + 3
        assert len(seen[0]) == 1
        assert all(digest == seen[0] for digest in seen)
        assert [turn(bench, request) for request in bench.engine.received] == [RED_SEEN] * len(seen)
        identifiers = {request.sight.pictures[0].identifier for request in bench.engine.received}
        assert len(identifiers) == 1, "engines and the gateway have it cached"


async def test_tools_answer_with_pictures(tmp_path: Path) -> None:
    """In each API; a template that has no place for them in tool messages is given them as text."""
    function = {"name": "look", "arguments": "{}"}
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    parts = [text("seen:"), image(RED)]
    async with open_vision_gateway(tmp_path) as bench:
        chat = [*user(text("look")), call, {"role": "tool", "tool_call_id": "c1", "content": parts}]
        await answered(bench, "/v1/chat/completions", {"messages": chat, "tools": tools})
        output = [{"type": "input_text", "text": "seen:"}, {"type": "input_image", "image_url": data_url(RED)}]
        items = [
            {"role": "user", "content": "look"},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": output},
        ]
        await answered(bench, "/v1/responses", {"input": items})
        source = {"type": "base64", "media_type": "image/png", "data": encoded(RED)}
        result = {
            "type": "tool_result",
            "tool_use_id": "c1",
            "content": [text("seen:"), {"type": "image", "source": source}],
        }
        turns = [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]},
            {"role": "user", "content": [result]},
        ]
        await answered(bench, "/v1/messages", {"messages": turns})
        for request in bench.engine.received:
            assert f"<|im_start|>tool\nseen:{RED_SEEN}<|im_end|>" in prompt(bench, request)
            assert len(request.sight.pictures) == 1


async def test_a_template_of_texts_gets_pictures_at_their_places(tmp_path: Path) -> None:
    template = (DEMO_MODEL / "chat_template.jinja").read_text()
    async with open_vision_gateway(tmp_path, chat_template=template) as bench:
        system = {"role": "system", "content": [image(BLUE), text("is the logo")]}
        parts = [text("First"), image(RED), text("then"), image(BLUE)]
        await answered(bench, "/v1/chat/completions", {"messages": [system, *user(*parts)]})
        assert turn(bench) == f"First\n{RED_SEEN}\nthen\n{BLUE_SEEN}"
        assert f"<|im_start|>system\n{BLUE_SEEN}\nis the logo<|im_end|>" in prompt(bench)
        blue, red, same = digests(bench.engine.received[-1])
        assert blue == same != red


async def test_generate_takes_pictures_for_the_placeholders_of_its_text(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path) as bench:
        body: dict[str, Any] = {"sampling_params": {"max_new_tokens": 3}}
        one = "<|vision_start|><|image_pad|><|vision_end|>"
        for data in (encoded(RED), data_url(RED), [encoded(RED)], [[data_url(RED)]], [{"url": data_url(RED)}]):
            await answered(bench, "/generate", body | {"text": f"Look: {one}?", "image_data": data})
            assert prompt(bench) == f"Look: {RED_SEEN}?"
        ids = [bench.model.id_of(token) for token in ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")]
        [answer] = await answered(bench, "/generate", body | {"input_ids": ids, "image_data": encoded(RED)})
        assert prompt(bench) == RED_SEEN
        assert answer["meta_info"]["prompt_tokens"] == RED_TOKENS + 2
        texts = [f"{one}{one}", "none", one]
        pictures = [[encoded(RED), encoded(BLUE)], None, encoded(BLUE)]
        await answered(bench, "/generate", body | {"text": texts, "image_data": pictures})
        assert [prompt(bench, request) for request in bench.engine.received[-3:]] == [
            RED_SEEN + BLUE_SEEN, "none", BLUE_SEEN,
        ]  # fmt: skip
        for wrong in ({"text": one}, {"text": one * 2, "image_data": [encoded(RED)]}):
            refused = await bench.http.post("/generate", json=body | wrong)
            if "image_data" in wrong:
                assert error_of(refused, 400)["code"] == "multimodal_prompt_contract_mismatch"
            else:
                assert refused.status_code == 200, "without a picture a placeholder is text"


async def test_choices_share_one_processing(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path) as bench:
        await answered(bench, "/v1/chat/completions", {"messages": user(image(RED)), "n": 3, "seed": 1})
        requests = bench.engine.received
        assert len(requests) == 3
        assert len({tuple(digests(request)) for request in requests}) == 1
        metrics = (await bench.http.get(bench.metrics_url)).text
        assert 'smg_media_items_total{modality="image",origin="inline"} 1.0' in metrics
        assert f'smg_media_bytes_total{{modality="image",origin="inline"}} {float(len(RED))}' in metrics
        assert 'smg_media_stage_seconds_count{modality="image",stage="process"} 1.0' in metrics
        assert "smg_media_in_flight_bytes 0.0" in metrics
        await bench.wait_idle()


async def test_tokens_are_counted_as_engines_get_them_and_without_one(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path, connect=False) as bench:
        messages = user(text("Look"), image(RED), image(BLUE))
        counted = (await bench.http.post("/tokenize", json={"model": MODEL, "messages": messages})).json()
        tokens = counted["tokens"]
        assert counted["count"] == len(tokens)
        assert tokens.count(bench.model.id_of("<|image_pad|>")) == RED_TOKENS + BLUE_TOKENS
        pictures = [{"type": "image", "source": {"type": "url", "url": data_url(data)}} for data in (RED, BLUE)]
        asked = {"model": MODEL, "messages": user(text("Look"), *pictures)}
        counts = (await bench.http.post("/v1/messages/count_tokens", json=asked)).json()
        assert counts == {"input_tokens": counted["count"]}
        bench.start_engine(COUNTING)
        await bench.wait_ready()
        body = await answered(bench, "/v1/chat/completions", {"messages": messages})
        assert body["usage"]["prompt_tokens"] == counted["count"]
        assert list(bench.engine.received[-1].prompt_token_ids) == tokens


async def test_a_conversation_that_is_kept_keeps_its_pictures(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path) as bench:
        picture = {"type": "input_image", "image_url": data_url(RED)}
        first = await answered(bench, "/v1/responses", {"input": [{"role": "user", "content": [picture]}]})
        await answered(bench, "/v1/responses", {"input": "and now?", "previous_response_id": first["id"]})
        before, after = bench.engine.received
        assert digests(before) == digests(after)
        assert prompt(bench, after).startswith(prompt(bench, before))
        items = (await bench.http.get(f"/v1/responses/{first['id']}/input_items")).json()["data"]
        assert items[0]["content"] == [{"detail": "auto", **picture}]
        made = (
            await bench.http.post("/v1/conversations", json={"items": [{"role": "user", "content": [picture]}]})
        ).json()
        await answered(bench, "/v1/responses", {"input": "what is it?", "conversation": made["id"]})
        assert digests(bench.engine.received[-1]) == digests(before)


async def test_streams_and_batches_see_pictures_too(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path) as bench:
        content, choice = await bench.chat_text(messages=user(image(RED), text("?")), max_tokens=6)
        assert content
        assert choice["usage"]["prompt_tokens"] == len(bench.engine.received[-1].prompt_token_ids)
        plain, _ = await bench.chat_text(messages=user(image(BLUE), text("?")), max_tokens=6)
        assert plain != content, "what the model says depends on the picture"
        batch = [user(image(RED)), user(text("none")), user(image(BLUE))]
        answer = await bench.http.post("/v1/chat/completions/batch", json={"model": MODEL, "messages": batch})
        assert answer.status_code == 200, answer.text
        seen = {turn(bench, request) for request in bench.engine.received[-3:]}
        assert seen == {RED_SEEN, "none", BLUE_SEEN}


async def test_pictures_are_embedded_too(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path, engine={"supported_tasks": ("embed",)}) as bench:
        for data in (RED, BLUE):
            body = {"model": MODEL, "messages": user(image(data), text("a"))}
            answer = await bench.http.post("/v1/embeddings", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["prompt_tokens"] == len(bench.engine.received[-1].prompt_token_ids)
        red, blue = (digests(request) for request in bench.engine.received)
        assert len(red) == len(blue) == 1
        assert red != blue
        answer = await bench.http.post("/v1/embeddings", json=body | {"truncate_prompt_tokens": 5})
        assert error_of(answer, 400)["param"] == "truncate_prompt_tokens"
        await bench.wait_idle()
        assert "smg_media_in_flight_bytes 0.0" in (await bench.http.get(bench.metrics_url)).text


async def test_engines_get_pixels_in_the_form_that_they_want(tmp_path: Path) -> None:
    """0.32 normalises itself; 0.27 does not. The fake engine's digest tells whether a picture was normalised twice."""
    seen = {}
    for version in ("0.32.0", "0.27.1"):
        (tmp_path / version).mkdir()
        async with open_vision_gateway(tmp_path / version, engine={"version": version}) as bench:
            await answered(bench, "/v1/chat/completions", {"messages": user(image(RED))})
            [item] = bench.engine.received[-1].media
            seen[version] = item.data["pixel_values"].array
    assert seen["0.32.0"].dtype == "uint8"
    assert seen["0.27.1"].dtype == "bfloat16"
    assert seen["0.32.0"].shape == seen["0.27.1"].shape


async def test_the_context_window_is_that_of_the_expanded_prompt(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path, engine={"max_model_len": 80}) as bench:
        large = png(28 * 8, 28 * 8)
        refused = await bench.chat(messages=user(image(large), image(large)))
        error = error_of(refused, 400)
        assert error["code"] == "context_length_exceeded"
        assert "80 tokens" in error["message"]
        answered_ = await bench.chat(messages=user(image(RED)), max_tokens=3)
        assert answered_.status_code == 200, answered_.text


async def test_what_a_server_says_of_itself_names_modalities(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path) as bench:
        info = (await bench.http.get("/server_info")).json()
        assert info["models"][0]["modalities"] == ["text", "image"]
        [card] = (await bench.http.get("/v1/models")).json()["data"]
        assert card["architecture"] == {"input_modalities": ["text", "image"], "output_modalities": ["text"]}
        about = (await bench.http.get("/get_model_info")).json()
        assert (about["has_image_understanding"], about["has_audio_understanding"]) == (True, False)


@pytest.mark.parametrize("protocol", [TOKENSPEED])
async def test_an_engine_that_takes_no_pictures_is_sent_none(tmp_path: Path, protocol: Any) -> None:
    async with open_vision_gateway(tmp_path, protocol=protocol, engine={"vision": None}) as bench:
        error = error_of(await bench.chat(messages=user(image(RED))), 400)
        assert "image" in error["message"] or "media" in error["message"]
        answer: httpx.Response = await bench.chat()
        assert answer.status_code == 200
