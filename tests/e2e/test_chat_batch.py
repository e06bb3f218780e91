"""``/v1/chat/completions/batch``: many conversations in one request, each answered on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openai.types.chat import ChatCompletion

from smg_trio.testing.script import Script

from .answers import ok, spelt
from .harness import ENDLESS, MODEL, connect, error_of, hang_up, open_gateway, post

PATH = "/v1/chat/completions/batch"


def conversation(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_each_conversation_gets_its_choice_in_order(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["x"]') as bench:
        tokenizer = bench.gateway.catalog.find("").text.tokenizer

        def echo(request: Any) -> Script:
            prompt = tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
            return spelt(bench, prompt.rpartition("user\n")[2].partition("<")[0].upper())

        bench.say(echo)
        words = ["one", "two", "three"]
        body = {"model": MODEL, "messages": [conversation(word) for word in words], "logprobs": True, "max_tokens": 50}
        answer = ok(await bench.http.post(PATH, json=body)).json()
        ChatCompletion.model_validate(answer)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert [choice["message"]["content"] for choice in answer["choices"]] == ["ONE", "TWO", "THREE"]
        assert all(choice["logprobs"]["content"] for choice in answer["choices"])
        single = [ok(await bench.chat(messages=conversation(word))).json()["usage"] for word in words]
        assert answer["usage"]["total_tokens"] == sum(usage["total_tokens"] for usage in single)
        assert len({request.request_id for request in bench.engine.received}) == len(bench.engine.received)


async def test_every_answer_begins_with_its_own_turn_if_that_is_echoed(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["x"]') as bench:
        bench.say(spelt(bench, " and on"))
        turns = [[*conversation("hi"), {"role": "assistant", "content": text}] for text in ("On", "Off")]
        fields = {"echo": True, "continue_final_message": True, "add_generation_prompt": False}
        answer = ok(await bench.http.post(PATH, json={"messages": turns} | fields)).json()
        assert [choice["message"]["content"] for choice in answer["choices"]] == ["On and on", "Off and on"]


async def test_a_conversation_that_cannot_be_answered_is_named(tmp_path: Path) -> None:
    async with open_gateway(tmp_path) as bench:
        long = conversation("word " * 9000)
        refused = error_of(await bench.http.post(PATH, json={"messages": [conversation("hi"), long]}), 400)
        assert refused["param"] == "messages[1]"
        assert not bench.engine.received
        refused = error_of(await bench.http.post(PATH, json={"messages": [conversation("hi")], "model": "no"}), 404)
        await bench.wait_idle()


async def test_a_client_that_leaves_aborts_all_of_them(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.005}) as bench:
        stream = await connect(bench.port)
        await stream.send_all(post(PATH, {"messages": [conversation("a"), conversation("b")]}))
        await bench.engine.wait_received(2)
        await hang_up(stream, reset=False)
        await bench.wait_idle()
