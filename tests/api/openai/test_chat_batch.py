"""Batch bodies: a chat request for each conversation, or a refusal that names the parameter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smg_trio.api.openai.chat.request import ChatRequest
from smg_trio.api.openai.chat_batch import parse_chat_batch_request
from smg_trio.api.parameters.limits import RequestLimits
from smg_trio.core.errors import ClientFault

ONE = [{"role": "user", "content": "one"}]
TWO = [{"role": "system", "content": "be"}, {"role": "user", "content": "two"}]


def parse(**fields: Any) -> list[ChatRequest]:
    body = {"messages": [ONE, TWO]} | fields
    return parse_chat_batch_request(json.dumps(body).encode(), RequestLimits(max_prompts=3))


def test_every_conversation_is_a_request_of_its_own() -> None:
    one, two = parse(model="m", temperature=0.5, max_tokens=7, stream=False, n=1, tools=None, tool_choice="none")
    assert (one.messages, two.messages) == (ONE, TWO)
    for chat in (one, two):
        assert (chat.model, chat.sampling.temperature, chat.sampling.max_tokens) == ("m", 0.5, 7)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [ONE] * 4}, "messages"),
        ({"messages": ONE}, "messages[0]"),
        ({"messages": [ONE, []]}, "messages[1]"),
        ({"messages": [ONE, [{"content": "x"}]]}, "messages[1][0].role"),
        ({"messages": [ONE, [{"role": "user", "content": 3}]]}, "messages[1][0].content"),
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"temperature": -1}, "temperature"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
    ],
)
def test_refusals_name_the_parameter(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ClientFault) as caught:
        parse(**fields)
    assert caught.value.param == param
