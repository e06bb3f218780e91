"""``/generate``: SGLang's form of request and answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .harness import ENDLESS, HELLO, MODEL, TOKENSPEED, VLLM, Bench, error_of, events, open_gateway

both = pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])


async def generate(bench: Bench, **fields: Any) -> Any:
    answer = await bench.http.post("/generate", json={"text": "hi"} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def streamed(bench: Bench, **fields: Any) -> list[Any]:
    answer = await bench.http.post("/generate", json={"text": "hi", "stream": True} | fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *found, done = events(answer.text)
    assert done == "[DONE]"
    return found


@both
async def test_a_text_is_continued_and_the_stream_says_the_same(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol) as bench:
        [whole] = await generate(bench)
        assert whole["text"] == "Hello world"
        assert whole["meta_info"]["finish_reason"] == {"type": "stop"}
        assert whole["meta_info"]["prompt_tokens"] == 2
        assert whole["meta_info"]["completion_tokens"] == len(whole["output_ids"]) == 5
        pieces = await streamed(bench)
        assert pieces[-1]["text"] == whole["text"]
        assert [token for piece in pieces for token in piece["output_ids"]] == whole["output_ids"]
        assert pieces[-1]["meta_info"]["finish_reason"] == {"type": "stop"}
        assert all(piece["meta_info"]["finish_reason"] is None for piece in pieces[:-1])
        await bench.wait_idle()


async def test_token_ids_reach_the_engine_as_they_are(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        [one] = await generate(bench, text=None, input_ids=[5, 6, 7])
        assert one["meta_info"]["prompt_tokens"] == 3
        assert bench.engine.received[-1].prompt_token_ids == [5, 6, 7]


async def test_several_prompts_and_choices_come_in_order(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        prompts = [[5], [6, 7]]
        found = await generate(bench, text=None, input_ids=prompts, sampling_params={"n": 2, "sampling_seed": 3})
        assert [one["meta_info"]["prompt_tokens"] for one in found] == [1, 1, 2, 2]
        seeds = sorted((one.prompt_token_ids, one.seed) for one in bench.engine.received)
        assert seeds == [([5], 3), ([5], 4), ([6, 7], 3), ([6, 7], 4)]
        pieces = await streamed(bench, text=None, input_ids=prompts)
        last = {piece["index"]: piece for piece in pieces}
        assert {index: piece["text"] for index, piece in last.items()} == {0: "Hello world", 1: "Hello world"}


async def test_sampling_goes_by_its_own_names_and_the_request_by_its_own_id(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS) as bench:
        params = {"max_new_tokens": 3, "temperature": 0.5, "stop": ["zz"], "no_stop_trim": True}
        [one] = await generate(bench, rid="mine", sampling_params=params)
        assert one["meta_info"]["id"] == "mine"
        assert one["meta_info"]["finish_reason"] == {"type": "length", "length": 3}
        asked = bench.engine.received[-1]
        assert asked.sampling["temperature"] == 0.5
        assert asked.request_id.startswith("mine-")
        [other] = await generate(bench, rid="mine", sampling_params={"max_new_tokens": 1})
        assert other["meta_info"]["id"] == "mine"
        [stopped] = await generate(bench, sampling_params={"stop": "bb"})
        assert stopped["text"] == "a"
        assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": "bb"}
        await bench.wait_idle()


async def test_log_probabilities_come_for_tokens_and_prompt(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        [one] = await generate(bench, return_logprob=True, top_logprobs_num=2, logprob_start_len=0)
        meta = one["meta_info"]
        assert [entry[1] for entry in meta["output_token_logprobs"]] == one["output_ids"]
        assert all(len(rivals) == 2 for rivals in meta["output_top_logprobs"])
        assert [entry[1] for entry in meta["input_token_logprobs"]] == bench.engine.received[-1].prompt_token_ids
        assert meta["input_token_logprobs"][0][0] is None
        pieces = await streamed(bench, return_logprob=True)
        logprobs = [entry for piece in pieces for entry in piece["meta_info"].get("output_token_logprobs", ())]
        assert logprobs == meta["output_token_logprobs"]


async def test_refusals_name_the_field(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:

        async def refused(status: int, **body: Any) -> dict[str, Any]:
            return error_of(await bench.http.post("/generate", json=body), status)

        assert (await refused(400, text="hi", input_ids=[1]))["param"] == "text"
        assert (await refused(400, text="hi", sampling_params={"max_new_tokens": 0}))["param"] == (
            "sampling_params.max_new_tokens"
        )
        assert (await refused(400, input_ids=[bench.model.vocab_size]))["param"] == "prompt"
        assert (await refused(404, text="hi", model="x"))["code"] == "model_not_found"
        assert (await generate(bench, model=MODEL))[0]["text"] == "Hello world"


@pytest.mark.parametrize(("route", "key"), [("/generate", "text"), ("/v1/completions", "prompt")])
async def test_text_that_cannot_fit_is_refused_before_it_is_tokenized(tmp_path: Path, route: str, key: str) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        answer = await bench.http.post(route, json={"model": MODEL, key: "x" * 8_000_000})
        error = error_of(answer, 400)
        assert error["code"] == "context_length_exceeded"
        assert "8000000 characters" in error["message"]
        assert bench.engine.received == []
