"""A gateway in a process of its own for clients to talk to: ``python -m tests.clients.server [OPTION]``.

It prints its URL and runs until its stdin closes. Behind it is a fake engine without weights that does what the last
user turn of its prompt tells it to, line by line:

    Think: what it thinks            a thought in front of the answer
    Say: what it answers             text, until the end of the line
    Call: get_weather {"city": "X"}  a tool call

A tool's result it answers with ``The tool says: …``, everything else with ``You said: …``. OPTION may be ``embed``: an
engine that was started for embeddings; ``see``: one that takes pictures, and says of each what it saw; or a file with a
chat template, with which prompts are made then, and a result is answered with the last words of the prompt, since the
engine knows no turns of other templates.
"""

from __future__ import annotations

import json
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
from tests.e2e.media.vision import open_vision_gateway

WINDOW = 131072
_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
_ORDER = re.compile(r"^(Think|Say|Call): ?(.*)$", re.MULTILINE)
_CALL = re.compile(r"(\S+) (.*)")
_WORD = re.compile(r"[\w-]+")
_CALL_ORDER = re.compile(r"Call: (\S+) (?=\{)")


def answer_to(prompt: str) -> str:
    """What the engine says to a rendered prompt."""
    turns = [turn for turn in _TURN.findall(prompt) if turn[0] in ("user", "tool")]
    role, content = turns[-1] if turns else ("user", prompt)
    if role == "tool":
        return f"The tool says: {content.strip()}"
    orders = _ORDER.findall(content)
    if not orders:
        return f"You said: {content.strip()}"
    return "".join(_spoken(*order) for order in orders)


def answer_on_other_template(prompt: str) -> str:
    """The last call that the prompt orders; once it is in the prompt as well, what came of it stands at the end."""
    thought = "</think>\n" if prompt.rstrip().endswith("<think>") else ""
    *_, order = _CALL_ORDER.finditer(prompt)
    arguments, end = json.JSONDecoder().raw_decode(prompt, order.end())
    if any(json.dumps(value)[1:-1] in prompt[end:] for value in arguments.values()):
        return f"{thought}The tool says: {' '.join(_WORD.findall(prompt[-300:]))}"
    return thought + _spoken("Call", f"{order[1]} {json.dumps(arguments)}")


def _spoken(order: str, text: str) -> str:
    if order == "Think":
        return f"<think>\n{text}\n</think>"
    if order == "Say":
        return text
    call = _CALL.fullmatch(text)
    assert call is not None, f"not of the form NAME ARGUMENTS: {text}"
    name, arguments = call.groups()
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>\n'


def obedient(text: ModelText, answer: Callable[[str], str]) -> Callable[[EngineRequest], Script]:
    """The script of every request; `answer`: what is said to a prompt."""
    tokenizer, eos = text.tokenizer, text.eos_token_ids[0]

    def choose(request: EngineRequest) -> Script:
        said = answer(tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False))
        return text_script(tokenizer.encode(said), eos_token_id=eos)

    return choose


async def serve_pictures() -> None:
    """Run until stdin closes, with a model that takes pictures."""
    with tempfile.TemporaryDirectory(prefix="smg-clients-") as directory:
        async with open_vision_gateway(Path(directory)) as bench:
            text = bench.gateway.catalog.find("").text

            def see(request: EngineRequest) -> Script:
                said = "Seen: " + " ".join([picture.digest for picture in request.sight.pictures])
                return text_script(text.tokenizer.encode(said), eos_token_id=text.eos_token_ids[0])

            bench.say(see)
            print(bench.base_url, bench.model.directory, flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)


async def serve(option: str = "") -> None:
    """Run until stdin closes."""
    if option == "see":
        await serve_pictures()
        return
    text = await trio.to_thread.run_sync(load_model_text, DEMO_MODEL)
    engine: dict[str, Any] = {"step_time_s": 0.0005, "max_model_len": WINDOW}
    template = option if option.endswith(".jinja") else None
    if option and template is None:
        engine["supported_tasks"] = (option,)
    with tempfile.TemporaryDirectory(prefix="smg-clients-") as directory:
        async with open_gateway(
            Path(directory),
            obedient(text, answer_to if template is None else answer_on_other_template),
            engine=engine,
            model_config={"max_position_embeddings": WINDOW},
            tool_call_parser="hermes",
            reasoning_parser="qwen3",
            chat_template=template,
        ) as bench:
            print(bench.base_url, bench.model.directory, flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    trio.run(serve, *sys.argv[1:])
