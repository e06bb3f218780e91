"""A task of Inspect: one answer after a tool call, one straight away."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool


@tool
def get_weather():
    async def execute(city: str) -> str:
        """The weather of a city.

        Args:
            city: where
        """
        return f"rain in {city}"

    return execute


@task
def weather() -> Task:
    samples = [
        Sample(input='Say: I look.\nCall: get_weather {"city": "Oslo"}', target="The tool says: rain in Oslo"),
        Sample(input="Think: hm\nSay: forty two", target="forty two"),
    ]
    return Task(dataset=samples, solver=[use_tools(get_weather()), generate()], scorer=includes())
