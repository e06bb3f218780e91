"""The OpenAPI document is true: every route is in it, and what it gives as examples is accepted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smg_trio.gateway.routes import ROUTES

from .harness import HELLO, MODEL, Bench, open_gateway

ABLE = {"supported_tasks": ("generate", "embed", "classify"), "supports_lora": True, "profiler": True}


async def document(bench: Bench) -> Any:
    answer = await bench.http.get("/openapi.json")
    assert answer.status_code == 200
    return answer.json()


async def test_every_route_is_described_and_nothing_else(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, metrics_on_port=True) as bench:
        described = await document(bench)
        assert described["openapi"] == "3.1.0"
        found = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
        assert found == {(route.method, re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", route.path)) for route in ROUTES}
        ids = [operation["operationId"] for methods in described["paths"].values() for operation in methods.values()]
        assert len(set(ids)) == len(ids)
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                assert operation["summary"], (method, path)
                named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
                assert named == set(re.findall(r"{(\w+)}", path))
                assert_references_exist(described, operation)


def assert_references_exist(described: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        if isinstance(reference := value.get("$ref"), str):
            assert reference.removeprefix("#/components/schemas/") in described["components"]["schemas"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            assert_references_exist(described, one)


async def test_every_example_is_accepted(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=ABLE) as bench:
        await bench.worker.supported_tasks()
        described, tried = await document(bench), 0
        conversation = (await bench.http.post("/v1/conversations", json={})).json()["id"]
        for path, methods in described["paths"].items():
            body = methods.get("post", {}).get("requestBody")
            for example in (body or {}).get("content", {}).get("application/json", {}).get("examples", {}).values():
                value = {name: MODEL if one == "$model" else one for name, one in example["value"].items()}
                answer = await bench.http.post(path.replace("{conversation_id}", conversation), json=value)
                assert answer.status_code == 200, (path, value, answer.text)
                tried += 1
            if body is not None and not body["required"]:
                assert (await bench.http.post(path)).status_code == 200, path
        assert tried > 25
        await bench.wait_idle()


async def test_answers_have_a_described_status_and_type(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=ABLE) as bench:
        described = await document(bench)
        for path, methods in described["paths"].items():
            if "{" in path or path in ("/pause", "/sleep"):
                continue
            for method, operation in methods.items():
                answer = await bench.http.request(method, path)
                responses = operation["responses"]
                content = responses.get(str(answer.status_code), responses["default"])["content"]
                assert answer.headers["content-type"].partition(";")[0] in content, (method, path, answer.text)
                assert answer.status_code < 500, (method, path, answer.text)
                if answer.status_code >= 400:
                    schema = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
                    required = described["components"]["schemas"][schema]["required"]
                    assert set(required) <= set(answer.json()), (method, path)
