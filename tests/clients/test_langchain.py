"""LangChain's models for OpenAI and Anthropic: answers, streams, tools there and back, structured output."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.e2e.media.vision import BLUE, RED, data_url, encoded

from .conftest import Served

langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
langchain_anthropic = pytest.importorskip("langchain_anthropic", reason="langchain-anthropic is not installed")
messages = pytest.importorskip("langchain_core.messages")
langchain_tools = pytest.importorskip("langchain_core.tools")
pydantic = pytest.importorskip("pydantic")

OSLO = 'Say: I look.\nCall: get_weather {"city": "Oslo"}'
FAMILIES = ("chat", "responses", "messages")


class City(pydantic.BaseModel):
    """A city."""

    name: str
    inhabitants: int


@langchain_tools.tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def model(served: Served, family: str) -> Any:
    if family == "messages":
        return langchain_anthropic.ChatAnthropic(
            model=served.model, base_url=served.url, api_key="none", max_tokens=256, max_retries=0
        )
    return langchain_openai.ChatOpenAI(
        model=served.model,
        base_url=served.v1,
        api_key="none",
        max_retries=0,
        stream_usage=True,
        use_responses_api=family == "responses",
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_is_the_same_whole_and_streamed(served: Served, family: str) -> None:
    chat = model(served, family)
    whole = chat.invoke([messages.SystemMessage("Be kind."), messages.HumanMessage("Say: Hello you")])
    assert whole.text == "Hello you"
    joined = None
    for chunk in chat.stream([messages.SystemMessage("Be kind."), messages.HumanMessage("Say: Hello you")]):
        joined = chunk if joined is None else joined + chunk
    assert joined is not None
    assert joined.text == "Hello you"
    assert joined.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"] > 1
    assert joined.usage_metadata["input_tokens"] == whole.usage_metadata["input_tokens"]


@pytest.mark.parametrize("family", FAMILIES)
def test_tools_go_there_and_back(served: Served, family: str) -> None:
    chat = model(served, family).bind_tools([get_weather])
    asked = messages.HumanMessage(OSLO)
    whole = chat.invoke([asked])
    joined = None
    for chunk in chat.stream([asked]):
        joined = chunk if joined is None else joined + chunk
    assert joined is not None
    for answer in (whole, joined):
        [call] = answer.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"})
        assert answer.text.strip() == "I look."
        result = get_weather.invoke(call)
        assert chat.invoke([asked, answer, result]).text == "The tool says: rain in Oslo"


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("chat", "json_schema"),
        ("chat", "json_mode"),
        ("chat", "function_calling"),
        ("responses", "json_schema"),
        ("messages", "json_schema"),
        ("messages", "function_calling"),
    ],
)
def test_structured_output_is_read(served: Served, family: str, method: str) -> None:
    fields = '{"name": "Oslo", "inhabitants": 7}'
    says = f"Call: City {fields}" if method == "function_calling" else f"Say: {fields}"
    chat = model(served, family).with_structured_output(City, method=method)
    assert chat.invoke(says) == City(name="Oslo", inhabitants=7)


def test_an_asyncio_program_streams_too(served: Served) -> None:
    async def run() -> list[str]:  # in one event loop: LangChain shares connections between its models
        return [
            "".join([chunk.text async for chunk in model(served, family).astream("Say: Hi")]) for family in FAMILIES
        ]

    assert anyio.run(run, backend="asyncio") == ["Hi"] * 3


def test_embeddings_of_ids_are_read(embedding: Served) -> None:
    embeddings = langchain_openai.OpenAIEmbeddings(
        model=embedding.model, base_url=embedding.v1, api_key="none", check_embedding_ctx_length=False
    )
    first, second = embeddings.embed_documents(["hi", "there"])
    assert len(first) == len(second) == 16
    assert embeddings.embed_query("hi") == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_are_sent(seeing: Served, family: str) -> None:
    """In LangChain's own form of parts, which it turns into each API's; and in OpenAI's, as most programs have it."""
    chat = model(seeing, family)
    red, blue = ({"type": "image", "base64": encoded(data), "mime_type": "image/png"} for data in (RED, BLUE))
    text = {"type": "text", "text": "Which is red?"}
    _, first, second = chat.invoke([messages.HumanMessage([text, red, blue])]).text.split()
    assert first != second
    linked = {"type": "image_url", "image_url": {"url": data_url(BLUE)}}
    assert chat.invoke([messages.HumanMessage([linked, text])]).text == f"Seen: {second}"
