"""Anthropic's own client: Messages whole and through its streaming helper, tools there and back, token counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.media.vision import BLUE, BLUE_TOKENS, RED, RED_TOKENS, data_url, encoded

from .conftest import Served

anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed")
pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

TOOLS: Any = [
    {
        "name": "get_weather",
        "description": "The weather",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]
OSLO = 'Call: get_weather {"city": "Oslo"}'


def ask(text: str) -> Any:
    return [{"role": "user", "content": text}]


def client(served: Served, **options: Any) -> Any:
    return anthropic.AsyncAnthropic(
        base_url=served.url, api_key="none", max_retries=0, _strict_response_validation=True, **options
    )


async def test_a_message_is_answered_whole_and_streamed(served: Served) -> None:
    async with client(served) as api:
        fields: Any = {"model": served.model, "max_tokens": 64, "system": "Be kind.", "messages": ask("Say: Hello you")}
        answer = await api.messages.create(**fields)
        assert (answer.content[0].text, answer.stop_reason, answer.role) == ("Hello you", "end_turn", "assistant")
        async with api.messages.stream(**fields) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert text == final.content[0].text == "Hello you"
        assert final.usage.output_tokens == answer.usage.output_tokens
        assert final.usage.input_tokens == answer.usage.input_tokens
        raw = [event.type async for event in await api.messages.create(**fields, stream=True)]
        assert (raw[0], raw[-1]) == ("message_start", "message_stop")


def test_the_blocking_client_reads_the_same(served: Served) -> None:
    with anthropic.Anthropic(base_url=served.url, api_key="none", _strict_response_validation=True) as api:
        fields: Any = {"model": served.model, "max_tokens": 64, "messages": ask("Say: Hello you")}
        assert api.messages.create(**fields).content[0].text == "Hello you"
        with api.messages.stream(**fields) as stream:
            assert stream.get_final_text() == "Hello you"


async def test_a_tool_is_called_and_its_result_is_read(served: Served) -> None:
    async with client(served) as api:
        messages = ask(f"Say: I look.\n{OSLO}")
        async with api.messages.stream(model=served.model, max_tokens=200, tools=TOOLS, messages=messages) as stream:
            events = [event.type async for event in stream]
            answer = await stream.get_final_message()
        assert "input_json" in events
        text, use = answer.content
        assert (text.type, use.type, use.name, use.input) == ("text", "tool_use", "get_weather", {"city": "Oslo"})
        assert answer.stop_reason == "tool_use"
        messages += [
            {"role": "assistant", "content": answer.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "rain"}]},
        ]
        last = await api.messages.create(model=served.model, max_tokens=64, tools=TOOLS, messages=messages)
        assert last.content[0].text == "The tool says: rain"
        for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}, {"type": "auto"}):
            forced = await api.messages.create(
                model=served.model, max_tokens=200, tools=TOOLS, tool_choice=choice, messages=ask(OSLO)
            )
            assert forced.content[0].input == {"city": "Oslo"}


async def test_the_tool_runner_runs_the_round_trip(served: Served) -> None:
    @anthropic.beta_async_tool
    async def get_weather(city: str) -> str:
        """The weather.

        Args:
            city: where
        """
        return f"rain in {city}"

    async with client(served) as api:
        runner = api.beta.messages.tool_runner(
            model=served.model, max_tokens=200, tools=[get_weather], messages=ask(OSLO)
        )
        assert (await runner.until_done()).content[0].text == "The tool says: rain in Oslo"


async def test_thoughts_are_thinking_blocks(served: Served) -> None:
    async with client(served) as api:
        fields: Any = {
            "model": served.model,
            "max_tokens": 2048,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "messages": ask("Think: hm\nSay: yes"),
        }
        answer = await api.messages.create(**fields)
        assert [block.type for block in answer.content] == ["thinking", "text"]
        assert answer.content[0].thinking.strip() == "hm"
        async with api.messages.stream(**fields) as stream:
            streamed = await stream.get_final_message()
        assert [block.type for block in streamed.content] == ["thinking", "text"]
        assert streamed.content[0].thinking == answer.content[0].thinking
        following = [*fields["messages"], {"role": "assistant", "content": answer.content}, *ask("Say: more")]
        assert (await api.messages.create(**fields | {"messages": following})).content[0].text == "more"


async def test_structured_output_is_parsed(served: Served) -> None:
    class City(pydantic.BaseModel):
        name: str

    async with client(served) as api:
        answer = await api.messages.parse(
            model=served.model, max_tokens=64, messages=ask('Say: {"name": "Oslo"}'), output_format=City
        )
        assert answer.parsed_output == City(name="Oslo")


async def test_stops_are_reported_and_tokens_counted(served: Served) -> None:
    async with client(served) as api:
        answer = await api.messages.create(
            model=served.model, max_tokens=64, stop_sequences=["you"], messages=ask("Say: Hello you")
        )
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "you")
        counted = await api.messages.count_tokens(
            model=served.model, system="Be kind.", tools=TOOLS, messages=ask("Say: Hello you")
        )
        answer = await api.messages.create(
            model=served.model, max_tokens=8, system="Be kind.", tools=TOOLS, messages=ask("Say: Hello you")
        )
        assert counted.input_tokens == answer.usage.input_tokens
        assert [model.id async for model in api.models.list()] == [served.model]
        assert (await api.models.retrieve(served.model)).id == served.model


async def test_faults_are_its_own_exceptions(served: Served) -> None:
    async with client(served) as api:
        with pytest.raises(anthropic.NotFoundError):
            await api.messages.create(model="other", max_tokens=8, messages=ask("x"))
        with pytest.raises(anthropic.BadRequestError):
            await api.messages.create(
                model=served.model,
                max_tokens=8,
                tools=TOOLS,
                tool_choice={"type": "tool", "name": "other"},
                messages=ask("x"),
            )


async def test_pictures_are_sent_in_turns_and_in_results(seeing: Served) -> None:
    def picture(data: bytes) -> Any:
        source = {"type": "base64", "media_type": "image/png", "data": encoded(data)}
        return {"type": "image", "source": source}

    async with client(seeing) as api:

        async def said(*messages: Any) -> str:
            answer = await api.messages.create(model=seeing.model, max_tokens=64, messages=messages)
            assert answer.usage.input_tokens > 0
            return str(answer.content[0].text)

        both = [picture(RED), {"type": "text", "text": "and"}, picture(BLUE)]
        _, red, blue = (await said({"role": "user", "content": both})).split()
        assert red != blue
        linked: Any = {"type": "image", "source": {"type": "url", "url": data_url(BLUE)}}
        assert await said({"role": "user", "content": [linked]}) == f"Seen: {blue}"
        use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "t", "content": [picture(RED)]}
        turns = ask("Look."), {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}
        assert await said(*turns[0], *turns[1:]) == f"Seen: {red}"
        counted = await api.messages.count_tokens(model=seeing.model, messages=[{"role": "user", "content": both}])
        plain = await api.messages.count_tokens(model=seeing.model, messages=ask("and"))
        assert counted.input_tokens - plain.input_tokens == RED_TOKENS + BLUE_TOKENS + 4
