"""Instructor: models filled in through tools, JSON mode and schemas, whole, partially and as streams of several."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Served

instructor = pytest.importorskip("instructor", reason="instructor is not installed")
openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

OSLO = {"name": "Oslo", "inhabitants": 7}


class City(pydantic.BaseModel):
    name: str
    inhabitants: int


def client(served: Served, mode: str) -> Any:
    api = openai.OpenAI(base_url=served.v1, api_key="none", max_retries=0)
    return instructor.from_openai(api, mode=instructor.Mode[mode])


def says(mode: str, value: Any, name: str = "City") -> Any:
    text = json.dumps(value)
    content = f"Call: {name} {text}" if mode.startswith("TOOLS") else f"Say: {text}"
    return [{"role": "user", "content": content}]


MODES = ("TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA")


@pytest.mark.parametrize("mode", MODES)
def test_a_model_is_filled_in(served: Served, mode: str) -> None:
    city, raw = client(served, mode).chat.completions.create_with_completion(
        model=served.model, response_model=City, max_retries=1, messages=says(mode, OSLO)
    )
    assert city.model_dump() == OSLO
    assert raw.usage.completion_tokens > 5


@pytest.mark.parametrize("mode", ["TOOLS", "JSON", "JSON_SCHEMA"])
def test_a_model_fills_in_while_it_comes(served: Served, mode: str) -> None:
    parts = list(
        client(served, mode).chat.completions.create_partial(
            model=served.model, response_model=City, messages=says(mode, OSLO)
        )
    )
    assert len(parts) > 2
    assert parts[-1].model_dump() == OSLO


def test_several_models_come_one_by_one(served: Served) -> None:
    cities = client(served, "TOOLS").chat.completions.create_iterable(
        model=served.model, response_model=City, messages=says("TOOLS", {"tasks": [OSLO, OSLO]}, "IterableCity")
    )
    assert [city.model_dump() for city in cities] == [OSLO, OSLO]


@pytest.mark.parametrize("mode", ["RESPONSES_TOOLS"])
def test_the_responses_api_fills_in_too(served: Served, mode: str) -> None:
    text = f"Call: City {json.dumps(OSLO)}"
    city = client(served, mode).responses.create(model=served.model, input=text, response_model=City, max_retries=1)
    assert city.model_dump() == OSLO
