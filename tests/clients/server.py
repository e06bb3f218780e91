"""A gateway in a process of its own for clients to talk to: ``python -m tests.clients.server [embed]``.

It prints its URL and runs until its stdin closes. Behind it is a fake engine without weights that does what the last
user turn of its prompt tells it to, line by line:

    Think: what it thinks            a thought in front of the answer
    Say: what it answers             text, until the end of the line
    Call: get_weather {"city": "X"}  a tool call

A tool's result it answers with ``The tool says: …``, everything else with ``You said: …``. With ``embed`` it is an
engine that was started for embeddings.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from smg_trio.testing.commands import EngineRequest
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.testing.script import Script, text_script
from smg_trio.text.model_files import ModelText, load_model_text
from tests.e2e.harness import open_gateway

WINDOW = 65536
_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
_ORDER = re.compile(r"^(Think|Say|Call): ?(.*)$", re.MULTILINE)
_CALL = re.compile(r"(\S+) (.*)")


def answer_to(prompt: str) -> str:
    """What the engine says to a rendered prompt."""
    turns = _TURN.findall(prompt)
    role, content = turns[-1] if turns else ("user", prompt)
    if role == "tool":
        return f"The tool says: {content.strip()}"
    orders = _ORDER.findall(content)
    if not orders:
        return f"You said: {content.strip()}"
    return "".join(_spoken(*order) for order in orders)


def _spoken(order: str, text: str) -> str:
    if order == "Think":
        return f"<think>\n{text}\n</think>"
    if order == "Say":
        return text
    call = _CALL.fullmatch(text)
    assert call is not None, f"not of the form NAME ARGUMENTS: {text}"
    name, arguments = call.groups()
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>\n'


def obedient(text: ModelText) -> Callable[[EngineRequest], Script]:
    """The script of every request."""
    tokenizer, eos = text.tokenizer, text.eos_token_ids[0]

    def choose(request: EngineRequest) -> Script:
        said = answer_to(tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False))
        return text_script(tokenizer.encode(said), eos_token_id=eos)

    return choose


async def serve(*tasks: str) -> None:
    """Run until stdin closes."""
    text = await trio.to_thread.run_sync(load_model_text, DEMO_MODEL)
    engine: dict[str, Any] = {"step_time_s": 0.0005, "max_model_len": WINDOW}
    if tasks:
        engine["supported_tasks"] = tasks
    with tempfile.TemporaryDirectory(prefix="smg-clients-") as directory:
        async with open_gateway(
            Path(directory),
            obedient(text),
            engine=engine,
            model_config={"max_position_embeddings": WINDOW},
            tool_call_parser="hermes",
            reasoning_parser="qwen3",
        ) as bench:
            print(bench.base_url, bench.model.directory, flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    trio.run(serve, *sys.argv[1:])
