"""What the server says of itself, and text from elsewhere through its parsers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from smg_trio import __version__

from .harness import ENDLESS, HELLO, PATIENCE_S, TOKENSPEED, VLLM, error_of, open_gateway

both = pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])


async def test_the_version_is_the_packages(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        assert (await bench.http.get("/version")).json() == {"version": __version__}


async def test_ping_follows_readiness_without_a_key(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, api_key=("secret",)) as bench:
        assert (await bench.http.get("/ping")).status_code == 503
        bench.start_engine(HELLO)
        await bench.wait_ready()
        for method in ("GET", "POST"):
            answer = await bench.http.request(method, "/ping")
            assert (answer.status_code, answer.text) == (200, "")


@both
async def test_loads_are_the_engines_own_words(tmp_path: Path, protocol: Any) -> None:
    engine = {"step_time_s": 0.005, "max_num_seqs": 4}
    async with open_gateway(tmp_path, ENDLESS, protocol=protocol, workers=2, engine=engine) as bench:
        idle = (await bench.http.get("/v1/loads")).json()
        assert idle["dp_rank_count"] == 2
        assert idle["aggregate"]["total_reqs"] == 0
        assert (await bench.http.get("/load")).json() == {"server_load": 0}
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                await bench.completion(max_tokens=5000)

            nursery.start_soon(ask)
            with trio.fail_after(PATIENCE_S):
                while not (busy := (await bench.http.get("/get_loads")).json())["aggregate"]["total_running_reqs"]:
                    await trio.lowlevel.checkpoint()
            assert sorted(load["num_running_reqs"] for load in busy["loads"]) == [0, 1]
            assert {load["worker"] for load in busy["loads"]} == set(bench.urls)
            assert (await bench.http.get("/load")).json() == {"server_load": 1}
            nursery.cancel_scope.cancel()


async def test_without_engines_there_are_no_loads(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        body = (await bench.http.get("/v1/loads")).json()
        assert (body["dp_rank_count"], body["loads"]) == (0, [])
        assert "aggregate" not in body
        info = (await bench.http.get("/get_model_info")).json()
        assert info["is_generation"] is None


async def test_model_and_server_describe_themselves_without_secrets(tmp_path: Path) -> None:
    engine = {"supported_tasks": ("embed",), "max_model_len": 512}
    async with open_gateway(tmp_path, HELLO, engine=engine, api_key=("s3cret",)) as bench:
        key = {"authorization": "Bearer s3cret"}
        model = (await bench.http.get("/get_model_info", headers=key)).json()
        assert model["model_path"] == str(bench.model.directory)
        assert (model["is_generation"], model["context_length"]) == (False, 512)
        for path in ("/get_server_info", "/server_info"):
            answer = await bench.http.get(path, headers=key)
            assert "s3cret" not in answer.text
            body = answer.json()
            assert [one["id"] for one in body["models"]] == ["m"]
            assert [one["url"] for one in body["workers"]] == bench.urls
        error_of(await bench.http.get("/get_model_info", params={"model": "x"}, headers=key), 404)


# ---- parsing -------------------------------------------------------------------------------------------------

CALL = 'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


async def test_calls_are_found_in_a_text(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        for path in ("/parse/function_call", "/v1/parse/function_call"):
            for text in (CALL, "x" * 5000 + CALL):  # the second one is read in a thread
                body = {"text": text, "tool_call_parser": "hermes"}
                answer = (await bench.http.post(path, json=body)).json()
                assert answer["success"] is True
                assert answer["remaining_text"].strip() == text.partition("<tool_call>")[0].strip()
                [call] = answer["tool_calls"]
                assert call["function"]["name"] == "f"
                assert json.loads(call["function"]["arguments"]) == {"a": 1}


async def test_a_thought_is_found_in_a_text(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        for path in ("/parse/reasoning", "/v1/parse/reasoning"):
            body = {"text": "<think>hm</think>Yes.", "reasoning_parser": "qwen3"}
            answer = (await bench.http.post(path, json=body)).json()
            assert answer == {"normal_text": "Yes.", "reasoning_text": "hm", "success": True}
            untouched = (await bench.http.post(path, json=body | {"reasoning_parser": "passthrough"})).json()
            assert (untouched["normal_text"], untouched["reasoning_text"]) == (body["text"], "")


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("/parse/function_call", {"text": "x", "tool_call_parser": "nope"}, "Unknown tool parser: nope"),
        ("/parse/reasoning", {"text": "x", "reasoning_parser": "nope"}, "Unknown reasoning parser: nope"),
        ("/parse/reasoning", {"reasoning_parser": "qwen3"}, "text"),
        ("/parse/function_call", {"text": "x"}, "tool_call_parser"),
    ],
)
async def test_parsing_fails_in_its_own_shape(tmp_path: Path, path: str, body: dict[str, Any], problem: str) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        answer = await bench.http.post(path, json=body)
        assert answer.status_code == 400
        assert answer.json()["success"] is False
        assert problem in answer.json()["error"]
