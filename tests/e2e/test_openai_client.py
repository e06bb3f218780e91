"""The official client, strict about what it gets, against both kinds of engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from .harness import HELLO, HI, MODEL, PATIENCE_S, TOKENSPEED, VLLM, Bench, open_gateway

both = pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])


async def collect(bench: Bench, **fields: Any) -> list[ChatCompletionChunk]:
    async with bench.openai() as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=HI, stream=True, timeout=PATIENCE_S, **fields
        )
        return [chunk async for chunk in stream]


@both
async def test_a_chat_is_answered_whole(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol) as bench:
        async with bench.openai() as client:
            answer = await client.chat.completions.create(model=MODEL, messages=HI)
        assert answer.object == "chat.completion"
        assert answer.model == MODEL
        assert answer.id.startswith("chatcmpl-")
        [choice] = answer.choices
        assert (choice.message.role, choice.message.content, choice.finish_reason) == (
            "assistant",
            "Hello world",
            "stop",
        )
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (13, 5, 18)
        assert len(bench.engine.received[-1].prompt_token_ids) == 13
        await bench.wait_idle()
        assert bench.engine.aborts == []


@both
async def test_a_chat_is_answered_in_a_stream(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol) as bench:
        chunks = await collect(bench)
        first, *rest = chunks
        assert first.choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in rest) == "Hello world"
        assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
        assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
        assert all(chunk.usage is None for chunk in chunks)
        await bench.wait_idle()
        assert bench.engine.aborts == []


@both
async def test_usage_comes_once_after_the_last_choice_if_asked(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol) as bench:
        chunks = await collect(bench, stream_options={"include_usage": True})
        assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (13, 5)


async def test_continuous_usage_counts_up(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"step_time_s": 0.01}) as bench:
        options: Any = {"include_usage": True, "continuous_usage_stats": True}
        chunks = await collect(bench, stream_options=options)
        counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
        assert len(counts) == len(chunks)
        assert counts == sorted(counts)
        assert counts[-1] == 5
        assert len(set(counts)) >= 3
        assert {chunk.usage.prompt_tokens for chunk in chunks if chunk.usage is not None} == {13}


@both
async def test_several_choices_are_several_requests_with_seeds_of_their_own(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol) as bench:
        async with bench.openai() as client:
            answer = await client.chat.completions.create(model=MODEL, messages=HI, n=3, seed=41)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert [choice.message.content for choice in answer.choices] == ["Hello world"] * 3
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (13, 15)
        received = bench.engine.received
        assert [request.seed for request in received] == [41, 42, 43]
        assert len({request.request_id for request in received}) == 3
        assert all(request.sampling.get("n", 1) == 1 for request in received)
        chunks = await collect(bench, n=3, stream_options={"include_usage": True})
        for index in range(3):
            parts = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
            assert "".join(part.delta.content or "" for part in parts) == "Hello world"
            assert [part.finish_reason for part in parts if part.finish_reason] == ["stop"]
        assert chunks[-1].usage is not None
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (13, 15)
        await bench.wait_idle()


async def test_choices_that_end_at_different_times_keep_to_themselves(tmp_path: Path) -> None:
    words = 'E["x"|"y"|"z"|"<EOS>"]'
    async with open_gateway(tmp_path, words=words, engine={"step_time_s": 0.005}) as bench:
        scripts = [bench.script(says) for says in ('E["x"|"<EOS>"]', 'E["y"|"y"|"y"|"y"|…]', 'E["z"|"z"|"<EOS>"]')]
        bench.say(lambda request: scripts[(request.seed or 0) - 1](request))
        chunks = await collect(bench, n=3, seed=1, max_tokens=6, stream_options={"include_usage": True})
        texts, finishes = ["", "", ""], ["", "", ""]
        for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                assert not finishes[choice.index]
                finishes[choice.index] = choice.finish_reason or ""
        assert texts == ["x", "y" * 6, "zz"]
        assert finishes == ["stop", "length", "stop"]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 2 + 6 + 3


@both
async def test_logprobs_come_with_every_token(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol) as bench:
        async with bench.openai() as client:
            answer = await client.chat.completions.create(model=MODEL, messages=HI, logprobs=True)
        entries = answer.choices[0].logprobs
        assert entries is not None
        assert entries.content is not None
        assert [entry.token for entry in entries.content] == ["Hel", "lo", " wor", "ld", "<|im_end|>"]
        assert [bytes(entry.bytes or ()) for entry in entries.content[:4]] == [b"Hel", b"lo", b" wor", b"ld"]
        assert all(entry.logprob <= 0 for entry in entries.content)
        assert bench.engine.received[-1].logprobs == 0
        chunks = await collect(bench, logprobs=True)
        streamed = [
            entry
            for chunk in chunks
            if chunk.choices and chunk.choices[0].logprobs
            for entry in chunk.choices[0].logprobs.content or []
        ]
        assert streamed == entries.content


async def test_top_logprobs_come_as_many_as_asked(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench, bench.openai() as client:
        for top in (0, 1, 5, 20):
            answer = await client.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=top)
            entries = answer.choices[0].logprobs
            assert entries is not None
            assert entries.content is not None
            assert {len(entry.top_logprobs) for entry in entries.content} == {top}
            if top:
                assert all(entry.token in {one.token for one in entry.top_logprobs} for entry in entries.content)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=21)
        assert refused.value.param == "top_logprobs"
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=HI, top_logprobs=2)
        assert len(bench.engine.received) == 4


async def test_prompt_logprobs_have_null_first_and_one_entry_per_token(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        body = (await bench.chat(prompt_logprobs=1)).json()
        positions = body["prompt_logprobs"]
        prompt = bench.engine.received[-1].prompt_token_ids
        assert len(positions) == len(prompt)
        assert positions[0] is None
        for token_id, position in zip(prompt[1:], positions[1:], strict=True):
            assert str(token_id) in position
            assert {"logprob", "rank", "decoded_token"} <= set(position[str(token_id)])


@both
async def test_completions_are_answered_whole_and_streamed(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol) as bench, bench.openai() as client:
        answer = await client.completions.create(model=MODEL, prompt="hi", max_tokens=9)
        assert answer.object == "text_completion"
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello world", "stop")
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 5)
        # The client's own types do not allow the null finish reason that OpenAI sends on all chunks but the last.
        lenient = bench.openai(_strict_response_validation=False)
        stream = await lenient.completions.create(
            model=MODEL, prompt="hi", stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "Hello world"
        assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 5


async def test_faults_reach_the_client_as_its_own_exceptions(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, api_key=("secret",)) as bench:
        async with bench.openai(api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model=MODEL, messages=HI)
        async with bench.openai(api_key="secret") as client:
            with pytest.raises(openai.NotFoundError) as missing:
                await client.chat.completions.create(model="other", messages=HI)
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model=MODEL, messages=HI, temperature=9)
            assert refused.value.param == "temperature"
            models = [model async for model in client.models.list()]
            assert [model.id for model in models] == [MODEL]
            assert (await client.models.retrieve(MODEL)).id == MODEL
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("other")


@both
async def test_a_fault_within_a_stream_is_raised_by_the_client(tmp_path: Path, protocol: Any) -> None:
    says = 'E["par"] fin=error' if protocol is VLLM else 'E["par"|"t"] fin=abort'
    async with open_gateway(tmp_path, says, protocol=protocol, engine={"step_time_s": 0.1}) as bench:
        with pytest.raises(openai.APIError):
            await collect(bench)
        await bench.wait_idle()
        bench.say('E["par"|"<EOS>"]')
        assert (await bench.chat_text())[0] == "par"
