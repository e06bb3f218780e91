"""Agent frameworks: Pydantic AI and OpenAI's Agents, each over every API of ours that it speaks."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from .conftest import Served

pydantic = pytest.importorskip("pydantic")

OSLO = 'Say: I look.\nCall: get_weather {"city": "Oslo"}'
RAIN = "The tool says: rain in Oslo"
FIELDS = '{"name": "Oslo", "inhabitants": 7}'


class City(pydantic.BaseModel):
    name: str
    inhabitants: int


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def run(program: Any) -> Any:
    return anyio.run(program, backend="asyncio")


# ---- Pydantic AI -------------------------------------------------------------------------------------------


def pydantic_model(served: Served, family: str) -> Any:
    pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")
    if family == "messages":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicModel(served.model, provider=AnthropicProvider(base_url=served.url, api_key="none"))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIResponsesModel if family == "responses" else OpenAIChatModel
    return kind(served.model, provider=OpenAIProvider(base_url=served.v1, api_key="none"))


FAMILIES = ("chat", "responses", "messages")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pydantic_agent_uses_tools_whole_and_streamed(served: Served, family: str) -> None:
    model = pydantic_model(served, family)
    from pydantic_ai import Agent

    async def program() -> tuple[str, str]:
        agent = Agent(model, tools=[get_weather], instructions="Be kind.")
        whole = await agent.run(OSLO)
        assert whole.usage.requests == 2
        # A streamed run ends at the first text, so the call comes without any here.
        async with agent.run_stream('Call: get_weather {"city": "Oslo"}') as stream:
            pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
        return whole.output, "".join(pieces)

    assert run(program) == (RAIN, RAIN)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["tool", "native", "prompted"])
def test_a_pydantic_agent_reads_structured_output(served: Served, family: str, way: str) -> None:
    model = pydantic_model(served, family)
    from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput

    if (family, way) == ("messages", "native"):
        pytest.skip("pydantic-ai asks only Anthropic's own models, known by name, for native output")
    kinds = {"tool": ToolOutput, "native": NativeOutput, "prompted": PromptedOutput}
    says = f"Call: final_result {FIELDS}" if way == "tool" else f"Say: {FIELDS}"

    async def program() -> Any:
        return (await Agent(model, output_type=kinds[way](City), retries=0).run(says)).output

    assert run(program) == City(name="Oslo", inhabitants=7)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pydantic_agent_sees_thoughts(served: Served, family: str) -> None:
    model = pydantic_model(served, family)
    from pydantic_ai import Agent

    async def program() -> Any:
        agent = Agent(model)
        first = await agent.run("Think: hm\nSay: yes")
        again = await agent.run("Say: more", message_history=first.all_messages())
        return first, again.output

    first, again = run(program)
    parts = first.all_messages()[-1].parts
    assert [part.part_kind for part in parts] == ["thinking", "text"]
    # Of the Responses API it shows a thought's summary, which open models have none of, and keeps the thought itself.
    thought = parts[0].provider_details["raw_content"][0] if family == "responses" else parts[0].content
    assert (thought.strip(), first.output, again) == ("hm", "yes", "more")


# ---- OpenAI Agents -----------------------------------------------------------------------------------------


def openai_agent(served: Served, family: str, **options: Any) -> Any:
    agents = pytest.importorskip("agents", reason="openai-agents is not installed")
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    kind = agents.OpenAIResponsesModel if family == "responses" else agents.OpenAIChatCompletionsModel
    api = AsyncOpenAI(base_url=served.v1, api_key="none", max_retries=0)
    model = kind(model=served.model, openai_client=api)
    return agents, agents.Agent(name="a", instructions="Be kind.", model=model, **options)


@pytest.mark.parametrize("family", ["chat", "responses"])
def test_an_openai_agent_uses_tools_whole_and_streamed(served: Served, family: str) -> None:
    async def program() -> tuple[str, str, list[str]]:
        agents, agent = openai_agent(served, family)
        agent.tools = [agents.function_tool(get_weather)]
        whole = await agents.Runner.run(agent, OSLO)
        stream = agents.Runner.run_streamed(agent, OSLO)
        kinds = [event.type async for event in stream.stream_events()]
        return whole.final_output, stream.final_output, kinds

    whole, streamed, kinds = run(program)
    assert whole == streamed == RAIN
    assert "run_item_stream_event" in kinds


@pytest.mark.parametrize("family", ["chat", "responses"])
def test_an_openai_agent_reads_structured_output_and_hands_off(served: Served, family: str) -> None:
    async def program() -> Any:
        agents, agent = openai_agent(served, family, output_type=City)
        read = (await agents.Runner.run(agent, f"Say: {FIELDS}")).final_output
        _, other = openai_agent(served, family)
        other.name = "other"
        _, first = openai_agent(served, family, handoffs=[other])
        handed = await agents.Runner.run(first, "Call: transfer_to_other {}")
        return read, handed.last_agent.name

    assert run(program) == (City(name="Oslo", inhabitants=7), "other")


def test_an_openai_agent_goes_on_from_a_stored_response(served: Served) -> None:
    async def program() -> Any:
        agents, agent = openai_agent(served, "responses")
        first = await agents.Runner.run(agent, "Say: one")
        return (await agents.Runner.run(agent, "Say: two", previous_response_id=first.last_response_id)).final_output

    assert run(program) == "two"
