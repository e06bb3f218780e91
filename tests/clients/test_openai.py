"""OpenAI's own client on trio and in threads, strict about every answer where its own types allow it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import anyio
import pytest
import trio

from tests.e2e.media.vision import BLUE, RED, data_url

from .conftest import Served

openai = pytest.importorskip("openai", reason="the openai client is not installed")
pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS: Any = [{"type": "function", "function": TOOL}]
OSLO = 'Call: get_weather {"city": "Oslo"}'


class City(pydantic.BaseModel):
    name: str
    inhabitants: int


OSLO_JSON = 'Say: {"name": "Oslo", "inhabitants": 7}'
OSLO_READ = City(name="Oslo", inhabitants=7)


def ask(text: str) -> Any:
    return [{"role": "user", "content": text}]


def client(served: Served, **options: Any) -> Any:
    strict = {"_strict_response_validation": True} | options
    return openai.AsyncOpenAI(base_url=served.v1, api_key="none", max_retries=0, **strict)


def sync_client(served: Served) -> Any:
    return openai.OpenAI(base_url=served.v1, api_key="none", max_retries=0, _strict_response_validation=True)


async def test_models_are_listed_and_found(served: Served) -> None:
    async with client(served) as api:
        assert [model.id async for model in api.models.list()] == [served.model]
        assert (await api.models.retrieve(served.model)).id == served.model
        with pytest.raises(openai.NotFoundError):
            await api.models.retrieve("other")


async def test_chat_is_the_same_on_trio_and_in_a_thread(served: Served) -> None:
    async with client(served) as api:
        answer = await api.chat.completions.create(model=served.model, messages=ask("Say: Hello world"))
    with sync_client(served) as blocking:
        create = partial(blocking.chat.completions.create, model=served.model, messages=ask("Say: Hello world"))
        other = await trio.to_thread.run_sync(create)
        stream = await trio.to_thread.run_sync(partial(create, stream=True))
        chunks = await trio.to_thread.run_sync(list, stream)
    assert answer.choices[0].message.content == other.choices[0].message.content == "Hello world"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello world"
    assert answer.usage == other.usage


async def test_the_stream_helper_collects_a_chat_with_a_tool_round_trip(served: Served) -> None:
    async with client(served) as api:
        messages = ask(f"Say: I look.\n{OSLO}")
        async with api.chat.completions.stream(
            model=served.model, messages=messages, tools=TOOLS, stream_options={"include_usage": True}
        ) as stream:
            kinds = [event.type async for event in stream]
            answer = await stream.get_final_completion()
        assert {"content.delta", "content.done", "tool_calls.function.arguments.done"} <= set(kinds)
        [choice] = answer.choices
        [call] = choice.message.tool_calls
        assert (choice.finish_reason, call.function.name) == ("tool_calls", "get_weather")
        assert json.loads(call.function.arguments) == {"city": "Oslo"}
        assert answer.usage.completion_tokens > 5
        messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        last = await api.chat.completions.create(model=served.model, messages=messages, tools=TOOLS)
        assert last.choices[0].message.content == "The tool says: rain"


async def test_structured_output_is_parsed_whole_and_streamed(served: Served) -> None:
    async with client(served) as api:
        fields: Any = {"model": served.model, "messages": ask(OSLO_JSON), "response_format": City}
        answer = await api.chat.completions.parse(**fields)
        assert answer.choices[0].message.parsed == OSLO_READ
        async with api.chat.completions.stream(**fields) as stream:
            assert (await stream.get_final_completion()).choices[0].message.parsed == OSLO_READ
        tool = openai.pydantic_function_tool(City)
        answer = await api.chat.completions.parse(
            model=served.model, messages=ask('Call: City {"name": "Oslo", "inhabitants": 7}'), tools=[tool]
        )
        assert answer.choices[0].message.tool_calls[0].function.parsed_arguments == OSLO_READ


async def test_completions_take_texts_and_ids_and_give_logprobs(served: Served) -> None:
    async with client(served) as api:
        create = partial(api.completions.create, model=served.model, max_tokens=64, logprobs=2)
        answer = await create(prompt=["hi", "you there"])
        assert [choice.text for choice in answer.choices] == ["You said: hi", "You said: you there"]
        first = answer.choices[0].logprobs
        assert len(first.tokens) == len(first.token_logprobs) == len(first.top_logprobs) == len(first.text_offset)
        assert first.text_offset[0] == 0
    # Its own types do not allow the nulls that OpenAI sends: the first log probability, unfinished chunks' reasons.
    async with client(served, _strict_response_validation=False) as api:
        echoed = await api.completions.create(model=served.model, prompt=[5, 6], max_tokens=2, logprobs=2, echo=True)
        assert echoed.choices[0].logprobs.token_logprobs[0] is None
        assert len(echoed.choices[0].logprobs.tokens) == 4
        stream = await api.completions.create(model=served.model, prompt="hi", max_tokens=64, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "You said: hi"


async def test_responses_are_created_streamed_kept_and_deleted(served: Served) -> None:
    async with client(served) as api:
        answer = await api.responses.create(model=served.model, input="Say: Hello", instructions="Be kind.")
        assert (answer.output_text, answer.status) == ("Hello", "completed")
        again = await api.responses.retrieve(answer.id)
        assert again.output_text == "Hello"
        items = [item async for item in api.responses.input_items.list(answer.id)]
        assert items[0].content[0].text == "Say: Hello"
        following = await api.responses.create(
            model=served.model, input="Say: Again", previous_response_id=answer.id, metadata={"a": "b"}
        )
        assert following.previous_response_id == answer.id
        assert following.usage.input_tokens > answer.usage.input_tokens
        await api.responses.delete(answer.id)
        with pytest.raises(openai.NotFoundError):
            await api.responses.retrieve(answer.id)
        async with api.responses.stream(model=served.model, input="Think: hm\nSay: Hello") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert "response.reasoning_text.delta" in kinds
        assert [item.type for item in final.output] == ["reasoning", "message"]
        assert final.output_text == "Hello"


async def test_responses_call_functions_and_parse_formats(served: Served) -> None:
    tools: Any = [{"type": "function", "strict": None, **TOOL}]
    async with client(served) as api:
        answer = await api.responses.create(model=served.model, input=OSLO, tools=tools)
        [call] = answer.output
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Oslo"})
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        stateless = await api.responses.create(
            model=served.model, input=[*ask(OSLO), call.to_dict(), result], tools=tools, store=False
        )
        assert stateless.output_text == "The tool says: rain"
        kept = await api.responses.create(
            model=served.model, input=[result], previous_response_id=answer.id, tools=tools
        )
        assert kept.output_text == "The tool says: rain"
        parsed = await api.responses.parse(model=served.model, input=OSLO_JSON, text_format=City)
        assert parsed.output_parsed == OSLO_READ
        assert await api.responses.input_items.list(kept.id)


async def test_background_responses_are_polled_and_cancelled(served: Served) -> None:
    async with client(served) as api:
        answer = await api.responses.create(model=served.model, input="Say: later", background=True)
        with trio.fail_after(10):
            while answer.status in ("queued", "in_progress"):
                answer = await api.responses.retrieve(answer.id)
        assert answer.output_text == "later"
        assert (await api.responses.cancel(answer.id)).status in ("completed", "cancelled")


async def test_conversations_remember(served: Served) -> None:
    async with client(served) as api:
        conversation = await api.conversations.create(metadata={"topic": "demo"})
        await api.responses.create(model=served.model, input="Say: one", conversation=conversation.id)
        items = [item async for item in api.conversations.items.list(conversation.id, order="asc")]
        assert [item.type for item in items] == ["message", "message"]
        assert (await api.conversations.retrieve(conversation.id)).metadata == {"topic": "demo"}
        assert (await api.conversations.delete(conversation.id)).deleted


def test_turns_follow_each_other_on_a_websocket(served: Served) -> None:
    pytest.importorskip("websockets", reason="openai[realtime] is not installed")
    with sync_client(served) as api, api.responses.connect() as connection:
        previous = None
        for text in ("one", "two"):
            more = {"previous_response_id": previous} if previous else {}
            connection.response.create(model=served.model, input=f"Say: {text}", **more)
            kinds = []
            for event in connection:
                kinds.append(event.type)
                if event.type in ("response.completed", "error"):
                    break
            assert kinds[0] == "response.created"
            assert event.type == "response.completed"
            assert event.response.output_text == text
            previous = event.response.id
        connection.response.create(model="other", input="x")
        assert connection.recv().type == "error"


def test_an_asyncio_program_has_turns_on_a_websocket(served: Served) -> None:
    pytest.importorskip("websockets", reason="openai[realtime] is not installed")

    async def run() -> list[str]:
        kinds = []
        async with client(served) as api, api.responses.connect() as connection:
            await connection.response.create(model=served.model, input=OSLO, tools=[{"type": "function", **TOOL}])
            async for event in connection:
                kinds.append(event.type)
                if event.type in ("response.completed", "error"):
                    break
            assert event.response.output[0].name == "get_weather"
        return kinds

    kinds = anyio.run(run, backend="asyncio")
    assert "response.function_call_arguments.delta" in kinds


async def test_embeddings_are_read_as_numbers_and_base64(embedding: Served) -> None:
    async with client(embedding) as strict:
        plain = await strict.embeddings.create(model=embedding.model, input=["hi", "ho"], encoding_format="float")
    async with client(embedding, _strict_response_validation=False) as api:  # its strict mode cannot read base64
        packed = await api.embeddings.create(model=embedding.model, input=["hi", "ho"])
    for one, other in zip(plain.data, packed.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)


async def test_pictures_are_sent_with_chats_and_responses(seeing: Served) -> None:
    red, blue = data_url(RED), data_url(BLUE)
    async with client(seeing) as api:
        parts: Any = [
            {"type": "text", "text": "Which is red?"},
            {"type": "image_url", "image_url": {"url": red, "detail": "low"}},
            {"type": "image_url", "image_url": {"url": blue}},
        ]
        answer = await api.chat.completions.create(model=seeing.model, messages=[{"role": "user", "content": parts}])
        said = answer.choices[0].message.content
        _, first, second = said.split()
        assert first != second
        stream = await api.chat.completions.create(
            model=seeing.model, messages=[{"role": "user", "content": parts}], stream=True
        )
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == said
        content: Any = [{"type": "input_image", "detail": "auto", "image_url": blue}]
        response = await api.responses.create(model=seeing.model, input=[{"role": "user", "content": content}])
        assert response.output_text == f"Seen: {second}"
        later = await api.responses.create(model=seeing.model, input="?", previous_response_id=response.id)
        assert later.output_text == f"Seen: {second}"
        output: Any = [
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": red}]},
        ]
        response = await api.responses.create(model=seeing.model, input=output)
        assert response.output_text == f"Seen: {first}"
