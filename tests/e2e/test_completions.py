"""``/v1/completions``: prompt lists, token ids, echo, logprobs in the old shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .harness import HELLO, TOKENSPEED, VLLM, events, open_gateway

both = pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])


def joined(text: str, count: int) -> list[str]:
    texts = [""] * count
    for chunk in events(text)[:-1]:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    return texts


@both
async def test_token_id_prompts_go_to_the_engine_as_they_are(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol) as bench:
        answer = (await bench.completion(prompt=[1, 2, 3])).json()
        assert bench.engine.received[-1].prompt_token_ids == [1, 2, 3]
        assert answer["choices"][0]["text"] == "Hello world"
        assert answer["usage"]["prompt_tokens"] == 3


@both
async def test_prompts_times_n_are_in_order(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, words='E["p"|"q"|"r"|"0"|"1"|"<EOS>"]', protocol=protocol) as bench:
        scripts = {
            (prompt, seed): bench.script(f'E["{name}"|"{seed}"|"<EOS>"]')
            for prompt, name in ((1, "p"), (2, "q"), (3, "r"))
            for seed in (0, 1)
        }
        bench.say(lambda request: scripts[request.prompt_token_ids[0], request.seed or 0](request))
        fields: dict[str, Any] = {"prompt": [[1], [2, 2], [3]], "n": 2, "seed": 0}
        answer = (await bench.completion(**fields)).json()
        assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
            (0, "p0"), (1, "p1"), (2, "q0"), (3, "q1"), (4, "r0"), (5, "r1"),
        ]  # fmt: skip
        assert answer["usage"]["prompt_tokens"] == 4
        assert answer["usage"]["completion_tokens"] == 18
        stream = await bench.completion(**fields, stream=True, stream_options={"include_usage": True})
        assert joined(stream.text, 6) == ["p0", "p1", "q0", "q1", "r0", "r1"]
        assert events(stream.text)[-2]["usage"]["prompt_tokens"] == 4
        assert events(stream.text)[-2]["usage"]["completion_tokens"] == 18
        await bench.wait_idle()


async def test_echo_puts_the_prompt_first(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        assert (await bench.completion(prompt="well, ", echo=True)).json()["choices"][0]["text"] == "well, Hello world"
        stream = await bench.completion(prompt=["well, ", "so "], echo=True, stream=True)
        assert joined(stream.text, 2) == ["well, Hello world", "so Hello world"]
        ids = bench.gateway.catalog.find("").text.tokenizer.encode("well, ")
        answer = (await bench.completion(prompt=ids, echo=True)).json()
        assert answer["choices"][0]["text"] == "well, Hello world"


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_without_generation_shows_the_prompt_only(tmp_path: Path, stream: bool) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        answer = await bench.completion(prompt=["so ", "be it"], echo=True, max_tokens=0, stream=stream)
        assert answer.status_code == 200, answer.text
        if stream:
            assert joined(answer.text, 2) == ["so ", "be it"]
            finishes = [
                c["finish_reason"] for e in events(answer.text)[:-1] for c in e["choices"] if c["finish_reason"]
            ]
        else:
            body = answer.json()
            assert [choice["text"] for choice in body["choices"]] == ["so ", "be it"]
            assert body["usage"]["completion_tokens"] == 0
            finishes = [choice["finish_reason"] for choice in body["choices"]]
        assert finishes == ["length", "length"]
        await bench.wait_idle()


async def test_echo_with_logprobs_without_generation_scores_the_prompt(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        answer = (await bench.completion(prompt="hi there", echo=True, max_tokens=0, logprobs=1)).json()
        logprobs = answer["choices"][0]["logprobs"]
        assert "".join(logprobs["tokens"]) == "hi there"
        assert logprobs["token_logprobs"][0] is None
        assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
        assert logprobs["text_offset"][0] == 0
        assert len({len(column) for column in logprobs.values()}) == 1


@both
async def test_logprobs_have_the_old_shape(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol) as bench:
        top = 2 if protocol is VLLM else 0
        answer = await bench.completion(logprobs=top)
        assert answer.status_code == 200, answer.text
        logprobs = answer.json()["choices"][0]["logprobs"]
        assert logprobs["tokens"] == ["Hel", "lo", " wor", "ld", "<|im_end|>"]
        assert logprobs["text_offset"] == [0, 3, 5, 9, 11]
        assert len(logprobs["token_logprobs"]) == 5
        assert len(logprobs["top_logprobs"]) == 5
        if top:
            assert all(len(entry) >= 2 for entry in logprobs["top_logprobs"])


async def test_sixteen_tokens_are_the_default(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["a"|…]') as bench:
        answer = (await bench.completion()).json()
        assert answer["usage"]["completion_tokens"] == 16
        assert answer["choices"][0]["finish_reason"] == "length"


async def test_continuous_usage_is_honoured_here_too(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"step_time_s": 0.01}) as bench:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = events((await bench.completion(stream=True, stream_options=options)).text)[:-1]
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == 5


async def test_cached_tokens_are_reported_as_the_engine_counts_them(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"prefix_caching": True}) as bench:
        prompt = list(range(40))
        for cached in (0, 32):
            usage = (await bench.completion(prompt=prompt)).json()["usage"]
            assert usage["prompt_tokens"] == 40
            assert usage["prompt_tokens_details"]["cached_tokens"] == cached


async def test_a_long_prompt_is_tokenized_off_the_loop(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"max_model_len": 10**6, "num_gpu_blocks": 10**6}) as bench:
        text = "the quick brown fox " * 5000
        answer = await bench.completion(prompt=text)
        assert answer.status_code == 200, answer.text
        tokenizer = bench.gateway.catalog.find("").text.tokenizer
        assert bench.engine.received[-1].prompt_token_ids == tokenizer.encode(text, add_special_tokens=True)
