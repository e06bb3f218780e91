"""Embeddings, scores, ranks and classes, where the engine was started for them."""

from __future__ import annotations

import struct
from base64 import b64decode
from math import isclose
from pathlib import Path
from typing import Any

import pytest
import trio

from smg_trio.api.pooling import cosine_similarity
from smg_trio.core.workers import WorkerState
from smg_trio.testing.vllm_output import embedding

from .harness import HELLO, HI, MODEL, PATIENCE_S, TOKENSPEED, VLLM, Bench, error_of, open_gateway

EMBEDS = {"supported_tasks": ("embed",)}


async def post(bench: Bench, path: str, **body: Any) -> Any:
    answer = await bench.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def close(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(isclose(a, b, abs_tol=1e-6) for a, b in zip(one, other, strict=True))


async def test_every_input_gets_its_engines_vector_in_order(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=EMBEDS) as bench:
        body = await post(bench, "/v1/embeddings", model=MODEL, input=["hi", "a", "hi"])
        assert body["object"] == "list"
        assert body["model"] == MODEL
        assert [entry["index"] for entry in body["data"]] == [0, 1, 2]
        prompts = [request.prompt_token_ids for request in bench.engine.received]
        assert [len(prompt) for prompt in prompts] == [2, 1, 2]
        for entry, prompt in zip(body["data"], prompts, strict=True):
            assert close(entry["embedding"], list(embedding(prompt, 16)))
        assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == 5
        pooling = bench.engine.received[0].pooling
        assert pooling is not None
        assert (pooling["task"], pooling["use_activation"]) == ("embed", True)
        await bench.wait_idle()


async def test_the_official_client_reads_base64_and_numbers(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=EMBEDS) as bench:
        async with bench.openai() as strict:
            plain = await strict.embeddings.create(model=MODEL, input="hi", encoding_format="float")
        # It asks for base64 by itself, and its own strict mode cannot read that.
        async with bench.openai(_strict_response_validation=False) as client:
            packed = await client.embeddings.create(model=MODEL, input="hi")
        assert close(packed.data[0].embedding, plain.data[0].embedding)
        raw = await post(bench, "/v1/embeddings", input=[5, 6], encoding_format="base64", endianness="little")
        assert close(struct.unpack("<16f", b64decode(raw["data"][0]["embedding"])), list(embedding([5, 6], 16)))


async def test_a_conversation_goes_through_the_chat_template(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=EMBEDS) as bench:
        await post(bench, "/v1/embeddings", messages=HI)
        tokens = await post(bench, "/tokenize", messages=HI, add_generation_prompt=False)
        assert bench.engine.received[-1].prompt_token_ids == tokens["tokens"]


async def test_inputs_are_cut_from_the_right_unless_told_otherwise(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=EMBEDS | {"max_model_len": 6}) as bench:

        async def sent(**body: Any) -> list[int]:
            await post(bench, "/v1/embeddings", **body)
            return bench.engine.received[-1].prompt_token_ids

        assert await sent(input=[1, 2, 3, 4, 5, 6]) == [1, 2, 3, 4, 5, 6]
        assert await sent(input=[1, 2, 3], truncate_prompt_tokens=2) == [1, 2]
        assert await sent(input=[1, 2, 3], truncate_prompt_tokens=2, truncation_side="left") == [2, 3]
        assert await sent(input=[1, 2, 3, 4, 5, 6, 7, 8], truncate_prompt_tokens=-1) == [1, 2, 3, 4, 5, 6]
        text = await post(bench, "/tokenize", prompt="a long text, longer than that")
        assert await sent(input="a long text, longer than that", truncate_prompt_tokens=3) == text["tokens"][:3]
        too_long = await bench.http.post("/v1/embeddings", json={"input": [1] * 7})
        assert error_of(too_long, 400)["code"] == "context_length_exceeded"
        for body, param in (
            ({"input": [1], "truncate_prompt_tokens": 7}, "truncate_prompt_tokens"),
            ({"input": [1], "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
            ({"input": [bench.model.vocab_size]}, "prompt"),
            ({"input": "a", "dimensions": 8}, "dimensions"),
            ({}, "input"),
        ):
            assert error_of(await bench.http.post("/v1/embeddings", json=body), 400)["param"] == param
        assert await sent(input=[1]) == [1]


async def test_dimensions_of_a_matryoshka_model_reach_the_engine(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, model_config={"matryoshka_dimensions": [4, 8]}, engine=EMBEDS) as bench:
        body = await post(bench, "/v1/embeddings", input="a", dimensions=4)
        assert len(body["data"][0]["embedding"]) == 4
        refused = await bench.http.post("/v1/embeddings", json={"input": "a", "dimensions": 5})
        assert "4, 8" in error_of(refused, 400)["message"]


async def test_an_embedding_model_scores_by_the_cosine(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=EMBEDS) as bench:
        for path in ("/v1/score", "/score"):
            body = await post(bench, path, queries="hi", documents=["a", "hi"])
            sent = [request.prompt_token_ids for request in bench.engine.received[-3:]]
            expected = cosine_similarity(embedding(sent[0], 16), embedding(sent[1], 16))
            assert close([entry["score"] for entry in body["data"]], [expected, 1.0])
            assert body["usage"]["prompt_tokens"] == 5  # the query is embedded once
        pairs = await post(bench, "/score", queries=["a", "hi"], documents=["a", "hi"])
        assert close([entry["score"] for entry in pairs["data"]], [1.0, 1.0])
        for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
            body = await post(bench, path, query="hi", documents=["a", "hi"], top_n=1)
            [best] = body["results"]
            assert (best["index"], best["document"]) == (1, {"text": "hi"})
            assert isclose(best["relevance_score"], 1.0, abs_tol=1e-6)


async def test_a_classifier_scores_both_texts_as_one_prompt(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"supported_tasks": ("classify",)}) as bench:
        body = await post(bench, "/score", queries="hi", documents=["a", "hi"])
        sent = [request.prompt_token_ids for request in bench.engine.received]
        assert len(sent) == 2
        assert sent[0][:2] == sent[1][:2] == sent[1][2:]
        assert close([entry["score"] for entry in body["data"]], [embedding(prompt, 1)[0] for prompt in sent])
        pooling = bench.engine.received[0].pooling
        assert pooling is not None
        assert "extra_kwargs" not in pooling


async def test_a_model_that_tells_two_texts_apart_is_told_where_the_second_begins(tmp_path: Path) -> None:
    config = {"type_vocab_size": 2}
    async with open_gateway(tmp_path, HELLO, model_config=config, engine={"supported_tasks": ("classify",)}) as bench:
        await post(bench, "/score", queries="hi", documents=["a"])
        pooling = bench.engine.received[0].pooling
        assert pooling is not None
        # This tokenizer marks the second text; where one does not, the whole prompt counts as the first.
        assert pooling["extra_kwargs"] == {"compressed_token_type_ids": 2}


async def test_a_model_with_a_vector_per_token_scores_by_best_matches(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"supported_tasks": ("token_embed",)}) as bench:
        body = await post(bench, "/score", queries="hi", documents=["hi", "a"])
        first, second = (entry["score"] for entry in body["data"])
        assert isclose(first, 2.0, abs_tol=1e-5)  # each of the query's two tokens finds itself
        assert second < first
        assert all(
            request.pooling and request.pooling["skip_reading_prefix_cache"] for request in bench.engine.received
        )


async def test_classes_have_names_and_probabilities(tmp_path: Path) -> None:
    engine = {"supported_tasks": ("classify",), "class_count": 3}
    labels = {"id2label": {"0": "bad", "1": "so-so", "2": "good"}}
    async with open_gateway(tmp_path, HELLO, model_config=labels, engine=engine) as bench:
        for path in ("/classify", "/v1/classify"):
            body = await post(bench, path, input=["hi", "a"])
            for entry in body["data"]:
                assert entry["num_classes"] == len(entry["probs"]) == 3
                assert entry["label"] == ["bad", "so-so", "good"][entry["probs"].index(max(entry["probs"]))]
        refused = await bench.http.post("/score", json={"queries": "a", "documents": "b"})
        assert "3 classes" in error_of(refused, 400)["message"]


POOLING_REQUESTS = [
    ("/v1/embeddings", {"input": "hi"}, "embed"),
    ("/classify", {"input": "hi"}, "classify"),
    ("/score", {"queries": "a", "documents": "b"}, "score"),
    ("/rerank", {"query": "a", "documents": ["b"]}, "score"),
]


@pytest.mark.parametrize(("path", "body", "task"), POOLING_REQUESTS)
@pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])
async def test_an_engine_that_only_generates_is_never_asked_to_pool(
    tmp_path: Path, protocol: Any, path: str, body: dict[str, Any], task: str
) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol) as bench:
        status, code = (400, "unsupported_feature") if protocol is VLLM else (501, "not_implemented")
        error = error_of(await bench.http.post(path, json=body), status)
        assert error["code"] == code
        assert f"'{task}'" in error["message"]
        assert not bench.engine.received
        assert (await bench.chat_text())[0] == "Hello world"


async def test_an_engine_that_only_pools_is_never_asked_to_generate(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=EMBEDS) as bench:
        await bench.worker.supported_tasks()
        assert "'generate'" in error_of(await bench.chat(), 400)["message"]
        assert not bench.engine.received


async def test_an_engine_that_comes_back_is_asked_anew(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=EMBEDS) as bench:
        await post(bench, "/v1/embeddings", input="a")
        bench.kill(bench.engine)
        with trio.fail_after(PATIENCE_S):
            await bench.worker.wait_state(WorkerState.NOT_READY)
        error_of(await bench.http.post("/v1/embeddings", json={"input": "a"}), 503)
        bench.start_engine(HELLO, supported_tasks=("generate",))
        await bench.wait_ready()
        error_of(await bench.http.post("/v1/embeddings", json={"input": "a"}), 400)
        assert (await bench.chat_text())[0] == "Hello world"


async def test_leaving_or_failing_leaves_nothing_at_the_engine(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=EMBEDS | {"step_time_s": 30.0}) as bench:
        await bench.worker.supported_tasks()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                await bench.http.post("/v1/embeddings", json={"input": ["a", "hi"]})

            nursery.start_soon(ask)
            with trio.fail_after(PATIENCE_S):
                await bench.engine.wait_until(lambda: len(bench.engine.received) == 2)
            nursery.cancel_scope.cancel()
        with trio.fail_after(PATIENCE_S):
            await bench.engine.wait_until(lambda: len(bench.engine.aborts) == 2)
        await bench.wait_idle()


async def test_a_death_moves_a_request_with_all_its_inputs_to_another_worker(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"policy": "round_robin", "retry_initial_backoff_ms": 1.0}
    async with open_gateway(tmp_path, HELLO, workers=2, connect=False, **settings) as bench:
        victim = bench.start_engine(HELLO, step_time_s=30.0, **EMBEDS)
        other = bench.start_engine(HELLO, worker=1, **EMBEDS)
        for worker in (0, 1):
            await bench.wait_ready(worker)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await post(bench, "/v1/embeddings", input=["a", "hi"]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.fail_after(PATIENCE_S):
                # Each has one of the two inputs; that of the other one has its vector already.
                await victim.wait_received(1)
                await other.wait_received(1)
            bench.kill(victim)
        [body] = answers
        prompts = [request.prompt_token_ids for request in other.received[-2:]]
        assert [len(prompt) for prompt in prompts] == [1, 2]
        for entry, prompt in zip(body["data"], prompts, strict=True):
            assert close(entry["embedding"], list(embedding(prompt, 16)))
        await bench.wait_idle()
        text = (await bench.http.get(bench.metrics_url)).text
        assert 'smg_worker_retries_total{endpoint="embeddings",worker_type="regular"} 1.0' in text
        assert "smg_router_request_errors_total{" not in text
        # There is no first token to wait for, and no token after it.
        [ttft] = [line for line in text.splitlines() if line.startswith("smg_router_ttft_seconds_count{")]
        assert ttft.endswith(" 0.0")


async def test_the_request_timeout_ends_pooling_too(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=EMBEDS | {"step_time_s": 30.0}, request_timeout_secs=0.3) as bench:
        answer = await bench.http.post("/v1/embeddings", json={"input": ["a", "hi"]})
        assert error_of(answer, 504)["code"] == "request_timeout"
        with trio.fail_after(PATIENCE_S):
            await bench.engine.wait_until(lambda: len(bench.engine.aborts) == 2)
        await bench.wait_idle()
        [seen] = bench.gateway.errors.all()
        assert (seen.code, seen.endpoint, seen.model, seen.worker_urls) == (
            "request_timeout", "embeddings", MODEL, (bench.urls[0],)
        )  # fmt: skip
        assert seen.request_id == answer.headers["x-request-id"]


LATE = {"version": "0.33.0", "supported_tasks": ("token_embed",)}


async def test_a_text_is_embedded_as_a_whole_and_answered_in_chunks(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=LATE) as bench:
        texts = ["the sea and the wind", "hi"]
        body = await post(bench, "/v1/embeddings", input=texts, late_chunking_params={"chunk_size": 4})
        for entry, text, request in zip(body["data"], texts, bench.engine.received, strict=True):
            ids = request.prompt_token_ids
            chunks = [ids[start : start + 4] for start in range(0, len(ids), 4)]
            assert len(entry["embedding"]) == len(chunks)
            for vector, chunk in zip(entry["embedding"], chunks, strict=True):
                assert close(vector, list(embedding(chunk, 16)))
            said = entry["late_chunking"]
            assert (said["chunk_size"], said["input_tokens"], said["strategy"]) == (4, len(ids), "fixed_tokens")
            assert "".join(text[slice(*chunk["char_range"])] for chunk in said["chunks"]) == text
            pooling = request.pooling
            assert pooling is not None
            assert (pooling["task"], pooling["late_chunking_params"]) == ("token_embed", [4])
            assert pooling["skip_reading_prefix_cache"] is True
        assert body["usage"]["prompt_tokens"] == sum(len(one.prompt_token_ids) for one in bench.engine.received)
        error_of(await bench.http.post("/v1/embeddings", json={"input": "hi"}), 400)
        await bench.wait_idle()


async def test_an_engine_that_does_not_know_late_chunking_is_not_asked(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=LATE | {"version": "0.32.0"}) as bench:
        asked = {"input": "hi", "late_chunking_params": {"chunk_size": 4}}
        error = error_of(await bench.http.post("/v1/embeddings", json=asked), 400)
        assert error["param"] == "late_chunking_params"
        assert "0.33" in error["message"]
        assert bench.engine.received == []
