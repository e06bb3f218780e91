"""Models without tokenizer.json through the whole gateway: what the engine is sent, and what its answer becomes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from smg_trio.testing.script import FixedScript

from .harness import HI, MODEL, Bench, error_of, events, join_chat, open_gateway

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizers"


def ids_of(bench: Bench, text: str) -> list[int]:
    tokenizer = bench.gateway.catalog.find(MODEL).text.tokenizer
    return tokenizer.encode(text)


def say_ids(bench: Bench, *ticks: Sequence[int]) -> None:
    bench.say(lambda _: FixedScript(ticks))


async def test_a_mistral_model_is_sent_its_official_encoding(tmp_path: Path) -> None:
    pytest.importorskip("mistral_common", reason="mistral_common is not installed (smg-trio[mistral])")
    folder = GOLDEN / "tekken-v13"
    conversations = json.loads((GOLDEN / "conversations.json").read_text("utf-8"))
    expected = json.loads((folder / "chats.json").read_text("utf-8"))
    engine = {"vocab_size": 835, "eos_token_id": 2}
    async with open_gateway(tmp_path, model_path=str(folder), engine=engine) as bench:
        say_ids(bench, ids_of(bench, "Hello"), [2])
        for conversation, ids in zip(conversations, expected, strict=True):
            extra = {"add_generation_prompt": False} if conversation.get("continue_final_message") else {}
            response = await bench.chat(**conversation, **extra)
            assert response.json()["choices"][0]["message"]["content"] == "Hello"
            assert bench.engine.received[-1].prompt_token_ids == ids
        await answers_become_calls(bench, conversations[4])
        await refusals_name_the_field(bench)
        info = (await bench.http.get("/tokenizer_info")).json()
        assert info.get("chat_template") is None
        counted = await bench.http.post("/tokenize", json={"model": MODEL, "messages": HI})
        assert counted.json()["tokens"][:2] == [1, 3]
        await bench.wait_idle()


async def answers_become_calls(bench: Bench, asked: dict[str, Any]) -> None:
    said = ids_of(bench, '[TOOL_CALLS]get_weather[ARGS]{"city": "Orléans"}')
    say_ids(bench, *([token_id] for token_id in said), [2])
    (call,) = (await bench.chat(**asked)).json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Orléans"}'}
    assert len(call["id"]) == 9
    said = ids_of(bench, "[THINK]6 times 7[/THINK]It is 42.")
    say_ids(bench, *([token_id] for token_id in said), [2])
    streamed = join_chat((await bench.chat(stream=True)).text)
    assert streamed["content"] == "It is 42."
    assert (await bench.chat()).json()["choices"][0]["message"]["reasoning"] == "6 times 7"


async def refusals_name_the_field(bench: Bench) -> None:
    picture = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}
    for messages in (
        [*HI, {"role": "assistant", "content": "Yes"}],
        [*HI, {"role": "assistant", "content": "Yes"}, {"role": "system", "content": "x"}],
        [{"role": "user", "content": [picture]}],
    ):
        error = error_of(await bench.chat(messages=messages), 400)
        assert str(error["param"]).startswith("messages")
    error_of(await bench.chat(tools=[{"type": "function", "function": {"name": "a b"}}]), 400)


async def test_other_vocabularies_stream_whole_characters(tmp_path: Path) -> None:
    text = "naïve 日本語 😀\n\n  слова <0x0A>"
    for name, size, end in (("tiktoken-kimi", 1156, 901), ("sentencepiece-bpe-symbols", 700, 2)):
        folder = GOLDEN / name
        (tmp_path / str(size)).mkdir()
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        engine = {"vocab_size": size, "eos_token_id": end}
        async with open_gateway(
            tmp_path / str(size), model_path=str(folder), chat_template=template, engine=engine
        ) as bench:
            ids = ids_of(bench, text)
            say_ids(bench, *([token_id] for token_id in ids), [end])
            response = await bench.chat(messages=[{"role": "user", "content": text}], stream=True)
            # Behind a prompt, a first word keeps the space that sentencepiece writes in front of it.
            expected = f" {text}" if name.startswith("sentencepiece") else text
            assert join_chat(response.text)["content"] == expected
            assert bench.engine.received[-1].prompt_token_ids == ids
            assert not any("\ufffd" in str(event) for event in events(response.text))
