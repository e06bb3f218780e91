"""LiteLLM: OpenAI's and Anthropic's APIs through one interface."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from .conftest import Served

litellm = pytest.importorskip("litellm", reason="litellm is not installed")
pydantic = pytest.importorskip("pydantic")

PROVIDERS = ("openai", "hosted_vllm", "anthropic")
OSLO = 'Say: I look.\nCall: get_weather {"city": "Oslo"}'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


class City(pydantic.BaseModel):
    name: str


def fields(served: Served, provider: str, text: str, **more: Any) -> dict[str, Any]:
    base = served.url if provider == "anthropic" else served.v1
    messages = [{"role": "user", "content": text}]
    return {
        "model": f"{provider}/{served.model}",
        "api_base": base,
        "api_key": "none",
        "messages": messages,
        "max_tokens": 256,
        "num_retries": 0,
    } | more


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_answer_is_the_same_whole_and_streamed(served: Served, provider: str) -> None:
    asked = fields(served, provider, "Say: Hello you")
    whole = litellm.completion(**asked)
    assert whole.choices[0].message.content == "Hello you"
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks, messages=asked["messages"])
    assert built.choices[0].message.content == "Hello you"
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert built.usage.completion_tokens == whole.usage.completion_tokens
    assert built.usage.prompt_tokens == whole.usage.prompt_tokens


@pytest.mark.parametrize("provider", PROVIDERS)
def test_tools_go_there_and_back(served: Served, provider: str) -> None:
    asked = fields(served, provider, OSLO, tools=TOOLS)
    whole = litellm.completion(**asked)
    built = litellm.stream_chunk_builder(list(litellm.completion(**asked, stream=True)))
    for answer in (whole, built):
        message = answer.choices[0].message
        [call] = message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
        assert answer.choices[0].finish_reason == "tool_calls"
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        following = asked | {"messages": [*asked["messages"], message, result]}
        assert litellm.completion(**following).choices[0].message.content == "The tool says: rain"


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_structured_output_and_reasoning_are_read(served: Served, provider: str) -> None:
    asked = fields(served, provider, 'Think: hm\nSay: {"name": "Oslo"}', response_format=City)
    message = litellm.completion(**asked).choices[0].message
    assert City.model_validate_json(message.content) == City(name="Oslo")
    assert message.reasoning_content.strip() == "hm"


def test_the_other_endpoints_work(served: Served, embedding: Served) -> None:
    base: dict[str, Any] = {"api_key": "none", "num_retries": 0}
    text = litellm.text_completion(
        model=f"text-completion-openai/{served.model}", prompt="hi", api_base=served.v1, max_tokens=64, **base
    )
    assert text.choices[0].text == "You said: hi"
    response = litellm.responses(model=f"openai/{served.model}", input="Say: Hello", api_base=served.v1, **base)
    assert response.output[0].content[0].text == "Hello"
    vectors = litellm.embedding(
        model=f"openai/{embedding.model}", input=["hi"], api_base=embedding.v1, encoding_format="float", **base
    )
    assert len(vectors.data[0]["embedding"]) == 16


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_asyncio_program_streams_too(served: Served, provider: str) -> None:
    async def run() -> str:
        stream = await litellm.acompletion(**fields(served, provider, "Say: Hello you", stream=True))
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert anyio.run(run, backend="asyncio") == "Hello you"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_faults_are_its_own_exceptions(served: Served, provider: str) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**fields(served, provider, "x", model=f"{provider}/other"))
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**fields(served, provider, "x", tools=TOOLS, tool_choice=7))
