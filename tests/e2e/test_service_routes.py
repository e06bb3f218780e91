"""Everything beside answers: models, probes, workers, tokenizing, metrics, request ids, CORS."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from smg_trio.core.workers import WorkerState

from .harness import ENDLESS, HELLO, HI, MODEL, PATIENCE_S, TOKENSPEED, VLLM, Bench, error_of, events, open_gateway

both = pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])


async def families(bench: Bench) -> dict[str, Any]:
    answer = await bench.http.get(bench.metrics_url)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def value(family: Any, **labels: str) -> float:
    found = [
        sample.value
        for sample in family.samples
        if labels.items() <= sample.labels.items() and not sample.name.endswith(("_created", "_bucket", "_sum"))
    ]
    assert found, (family.name, labels, family.samples)
    return float(sum(found))


# ---- models, probes, workers -------------------------------------------------------------------------------


async def test_models_are_listed_under_all_their_names_without_any_engine(tmp_path: Path) -> None:
    names: dict[str, Any] = {"served_model_name": ("a", "b/c"), "model_alias": ("gpt=a",)}
    async with open_gateway(tmp_path, HELLO, connect=False, **names) as bench:
        listed = (await bench.http.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["a", "b/c", "gpt"]
        assert listed["object"] == "list"
        assert (await bench.http.get("/v1/models/b/c")).json()["id"] == "b/c"
        assert error_of(await bench.http.get("/v1/models/d"), 404)["code"] == "model_not_found"
        anthropic = {"anthropic-version": "2023-06-01"}
        page = (await bench.http.get("/v1/models", headers=anthropic)).json()
        assert [(model["type"], model["id"]) for model in page["data"]] == [
            ("model", name) for name in ("a", "b/c", "gpt")
        ]
        assert (await bench.http.get("/v1/models/b/c", headers=anthropic)).json()["display_name"] == "b/c"
        bench.start_engine(HELLO, max_model_len=512)
        await bench.wait_ready()
        assert (await bench.http.get("/v1/models/gpt")).json()["max_model_len"] == 512
        for name in ("a", "b/c", "gpt"):
            answer = await bench.chat(model=name)
            assert answer.json()["model"] == name


@both
async def test_readiness_follows_the_engine_and_says_why(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol, connect=False) as bench:
        for path in ("/health", "/liveness"):
            assert (await bench.http.get(path)).status_code == 200
        answer = await bench.http.get("/readiness")
        assert answer.status_code == 503
        assert answer.json() == {
            "status": "not ready", "reason": "insufficient healthy workers", "healthy_workers": 0, "total_workers": 1,
        }  # fmt: skip
        engine = bench.start_engine(HELLO)
        await bench.wait_ready()
        answer = await bench.http.get("/readiness")
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
        bench.kill(engine)
        with trio.fail_after(PATIENCE_S):
            await bench.worker.wait_state(WorkerState.NOT_READY)
        assert (await bench.http.get("/readiness")).status_code == 503
        assert (await bench.http.get("/health")).status_code == 200
        assert error_of(await bench.chat(), 503)["code"] == "no_available_workers"
        [listed] = (await bench.http.get("/workers")).json()["workers"]
        assert listed["is_healthy"] is False
        assert listed["status_reason"]
        assert listed["connection_mode"] == "zmq"
        assert listed["runtime_type"] == protocol.value
        one = await bench.http.get(f"/workers/{listed['id']}")
        assert one.json() == listed
        for worker_id, status, code in ((str(UUID(int=7)), 404, "WORKER_NOT_FOUND"), ("nobody", 400, "BAD_REQUEST")):
            answer = await bench.http.get(f"/workers/{worker_id}")
            assert (answer.status_code, answer.json()["code"]) == (status, code)
        bench.start_engine(HELLO)
        await bench.wait_ready()
        assert (await bench.chat_text())[0] == "Hello world"


async def test_workers_can_be_asked_for_by_model(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, workers=2) as bench:
        body = (await bench.http.get("/workers")).json()
        assert body["total"] == 2
        assert body["stats"] == {"prefill_count": 0, "decode_count": 0, "regular_count": 2}
        assert {worker["url"] for worker in body["workers"]} == set(bench.urls)
        assert (await bench.http.get("/workers", params={"model": MODEL})).json()["total"] == 2
        assert (await bench.http.get("/workers", params={"model": "x"})).json()["total"] == 0


# ---- tokenizing ------------------------------------------------------------------------------------------------


async def test_the_tokenizer_tells_its_special_tokens_and_template(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        info = (await bench.http.get("/tokenizer_info")).json()
        assert (info["bos_token"], info["eos_token"], info["pad_token"]) == (None, "<|im_end|>", "<|endoftext|>")
        assert info["model_max_length"] == 8192
        assert "<|im_start|>" in info["chat_template"]
        error_of(await bench.http.get("/tokenizer_info", params={"model": "other"}), 404)


async def test_texts_and_conversations_are_tokenized_and_back(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        text = "Grüße, 北京 😀 <|im_end|>"
        tokens = (await bench.http.post("/tokenize", json={"model": MODEL, "prompt": text})).json()
        assert tokens["count"] == len(tokens["tokens"])
        assert tokens["max_model_len"] == 8192
        back = (await bench.http.post("/detokenize", json={"model": MODEL, "tokens": tokens["tokens"]})).json()
        assert back == {"prompt": text}
        chat = (await bench.http.post("/tokenize", json={"model": MODEL, "messages": HI})).json()
        await bench.chat()
        assert chat["tokens"] == bench.engine.received[-1].prompt_token_ids
        named = (await bench.http.post("/tokenize", json={"prompt": "hi", "return_token_strs": True})).json()
        assert named["token_strs"] == ["h", "i"]
        batch = (await bench.http.post("/v1/tokenize", json={"model": MODEL, "prompt": ["hi", "a"]})).json()
        assert batch == {"tokens": [named["tokens"], batch["tokens"][1]], "count": [2, 1], "char_count": [2, 1]}
        assert (await bench.http.post("/v1/detokenize", json={"tokens": batch["tokens"]})).json() == {
            "text": ["hi", "a"]
        }
        error_of(await bench.http.post("/tokenize", json={"model": "x", "prompt": "hi"}), 404)
        error_of(await bench.http.post("/tokenize", json={"prompt": "hi", "messages": HI}), 400)
        assert (await bench.http.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []
        assert (await bench.http.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


# ---- metrics -----------------------------------------------------------------------------------------------------


@both
async def test_metrics_tell_of_requests_tokens_and_workers(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol) as bench:
        await bench.chat()
        await bench.chat(stream=True)
        await bench.completion(prompt=["hi", "hi"])
        await bench.chat(model="other")
        await bench.chat(temperature=-1)
        found = await families(bench)
        for name, family in found.items():
            assert family.documentation, name
            assert family.type != "unknown", name
        mode: dict[str, str] = {"connection_mode": "zmq", "model": MODEL}
        assert value(found["smg_worker_pool_size"], worker_type="regular", **mode) == 1
        assert value(found["smg_worker_selection"], worker=bench.urls[0], **mode) == 4
        assert value(found["smg_worker_health"], worker=bench.urls[0]) == 1
        assert value(found["smg_worker_requests_active"], worker=bench.urls[0]) == 0
        assert value(found["smg_router_requests"], endpoint="chat", streaming="true", **mode) == 1
        assert value(found["smg_router_requests"], endpoint="chat", streaming="false", **mode) == 1
        assert value(found["smg_router_requests"], endpoint="completions", **mode) == 1
        assert value(found["smg_router_tokens"], endpoint="chat", token_type="input", **mode) == 26
        assert value(found["smg_router_tokens"], endpoint="chat", token_type="output", **mode) == 10
        assert value(found["smg_router_ttft_seconds"], endpoint="chat", **mode) == 2
        assert value(found["smg_router_tpot_seconds"], endpoint="chat", **mode) == 2
        assert value(found["smg_router_request_duration_seconds"], endpoint="chat", **mode) == 2
        assert value(found["smg_engine_running_requests"], dp_rank="0") == 0
        assert value(found["smg_engine_inflight_requests"], dp_rank="0") == 0
        chat = {"path": "/v1/chat/completions"}
        assert value(found["smg_http_responses"], status_code="200", error_code="", **chat) == 2
        assert value(found["smg_http_responses"], status_code="404", error_code="model_not_found", **chat) == 1
        assert value(found["smg_http_responses"], status_code="400", error_code="invalid_value", **chat) == 1


async def test_what_is_in_flight_shows_in_the_metrics_and_goes(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.005}) as bench:
        async with bench.http.stream("POST", "/v1/chat/completions", json={"messages": HI, "stream": True}) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            found = await families(bench)
            assert value(found["smg_worker_requests_active"]) == 1
            assert value(found["smg_engine_inflight_requests"]) == 1
        await bench.wait_idle()
        found = await families(bench)
        assert value(found["smg_worker_requests_active"]) == 0
        assert value(found["smg_engine_inflight_requests"]) == 0
        assert value(found["smg_router_request_duration_seconds"]) == 1


async def test_errors_of_engines_are_counted(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["a"] fin=error') as bench:
        await bench.chat()
        await bench.chat(stream=True)
        found = await families(bench)
        assert value(found["smg_router_request_errors"], endpoint="chat", error_type="engine_rejected") == 2


@pytest.mark.parametrize("room", [0, 10**8])
async def test_long_prompts_that_begin_alike_share_their_tokens(tmp_path: Path, room: int) -> None:
    system = {"role": "system", "content": "Be brief. " * 300}
    async with open_gateway(tmp_path, HELLO, tokenizer_cache_l1_max_memory=room) as bench:
        counts = set()
        for _ in range(3):
            answer = await bench.chat(messages=[system, *HI])
            counts.add(answer.json()["usage"]["prompt_tokens"])
        assert len(counts) == 1
        found = await families(bench)
        lookups = found["smg_tokenizer_cache_lookups"]
        assert (value(lookups, result="miss"), value(lookups, result="hit")) == ((1, 2) if room else (0, 0))
        assert (value(found["smg_tokenizer_cache_reused_bytes"]) > 2 * 3_000) is bool(room)


async def test_labels_of_metrics_stay_bounded(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        for number in range(5):
            await bench.http.get(f"/nope/{number}")
            await bench.http.get(f"/workers/{uuid4()}")
            await bench.chat(model=f"model-{number}")
        found = await families(bench)
        paths = {sample.labels["path"] for sample in found["smg_http_responses"].samples if "path" in sample.labels}
        assert paths == {"unmatched", "/workers/{worker_id}", "/v1/chat/completions"}
        assert "model-3" not in (await bench.http.get(bench.metrics_url)).text


async def test_the_metrics_listener_serves_nothing_else(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        base = bench.metrics_url.removesuffix("/metrics")
        error_of(await bench.http.get(base + "/v1/models"), 404)
        error_of(await bench.http.post(base + "/v1/chat/completions", json={}), 404)
        assert (await bench.http.head(bench.metrics_url)).status_code == 200


# ---- request ids, CORS ---------------------------------------------------------------------------------------


async def test_request_ids_are_taken_from_the_usual_headers_and_echoed(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        for path, body in (("/v1/chat/completions", {"messages": HI}), ("/tokenize", {"prompt": "x"}), ("/nope", {})):
            for header in ("x-request-id", "x-correlation-id", "x-trace-id", "request-id"):
                answer = await bench.http.post(path, json=body, headers={header: "id-7"})
                assert answer.headers["x-request-id"] == "id-7"
            generated = {(await bench.http.post(path, json=body)).headers["x-request-id"] for _ in range(3)}
            assert len(generated) == 3
            both_given = {"x-trace-id": "second", "x-request-id": "first"}
            assert (await bench.http.post(path, json=body, headers=both_given)).headers["x-request-id"] == "first"
            for bad in ("x" * 1000, "", "caf\xe9"):
                raw: Any = [("x-request-id", bad.encode("latin-1"))]
                assert (await bench.http.post(path, json=body, headers=raw)).headers["x-request-id"].startswith("req-")
        streamed = await bench.http.post(
            "/v1/chat/completions", json={"messages": HI, "stream": True}, headers={"x-request-id": "id-8"}
        )
        assert streamed.headers["x-request-id"] == "id-8"
        assert events(streamed.text)[0]["id"] == "chatcmpl-id-8"
        odd = await bench.http.post(
            "/v1/chat/completions", json={"messages": HI, "stream": True}, headers={"x-request-id": 'a"b\\c</>'}
        )
        assert events(odd.text)[0]["id"] == 'chatcmpl-a"b\\c</>'
        assert odd.headers["x-request-id"] == 'a"b\\c</>'
        refused = await bench.chat(temperature=-1)
        assert refused.headers["x-request-id"]


async def test_a_request_id_cannot_smuggle_a_header(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        answer = await bench.chat(request_id="a\r\nx-evil: 1")
        assert error_of(answer, 400)["param"] == "request_id"
        assert "x-evil" not in answer.headers


async def test_browsers_may_not_read_answers_unless_told_so(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        answer = await bench.http.post(
            "/v1/chat/completions", json={"messages": HI}, headers={"origin": "http://a.test"}
        )
        assert "access-control-allow-origin" not in answer.headers
        preflight = await bench.http.options("/v1/chat/completions", headers={"origin": "http://a.test"})
        assert "access-control-allow-origin" not in preflight.headers


@pytest.mark.parametrize("allowed", ["http://a.test", "*"])
async def test_named_origins_may_read_every_answer(tmp_path: Path, allowed: str) -> None:
    async with open_gateway(tmp_path, HELLO, cors_allowed_origins=(allowed,), api_key=("k",)) as bench:
        origin = {"origin": "http://a.test"}
        keyed = origin | {"authorization": "Bearer k"}
        preflight = await bench.http.options(
            "/v1/chat/completions", headers=origin | {"access-control-request-method": "POST"}
        )
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == allowed
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        asked = {"access-control-request-headers": "authorization,x-stainless-lang"}
        preflight = await bench.http.options("/v1/models", headers=origin | asked)
        assert preflight.headers["access-control-allow-headers"] == "authorization,x-stainless-lang"
        answers = [
            await bench.http.post("/v1/chat/completions", json={"messages": HI}, headers=keyed),
            await bench.http.post("/v1/chat/completions", json={"messages": HI, "stream": True}, headers=keyed),
            await bench.http.post("/v1/chat/completions", json={"messages": 1}, headers=keyed),
            await bench.http.post("/v1/chat/completions", json={"messages": HI}, headers=origin),
            await bench.http.get("/v1/models", headers=keyed),
            await bench.http.get("/nope", headers=keyed),
            await bench.http.delete("/v1/models", headers=keyed),
        ]
        for answer in answers:
            assert answer.headers.get("access-control-allow-origin") == allowed, answer.request.url
        if allowed != "*":
            other = await bench.http.get("/v1/models", headers=keyed | {"origin": "http://b.test"})
            assert "access-control-allow-origin" not in other.headers
