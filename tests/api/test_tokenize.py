"""Tokenize and detokenize, in both dialects."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from smg_trio.api import tokenize as api
from smg_trio.core.errors import InvalidRequest

USER = {"role": "user", "content": "hi"}


def encode(**body: Any) -> bytes:
    return json.dumps(body).encode()


def test_a_prompt_gets_special_tokens_and_a_conversation_gets_them_from_its_template() -> None:
    prompt = api.parse_tokenize_request(encode(model="m", prompt="hi", return_token_strs=True))
    assert prompt == api.TokenizeRequest(model="m", prompt="hi", return_token_strs=True)
    assert prompt.add_special_tokens
    chat = api.parse_tokenize_request(encode(messages=[USER], tools=[{"function": {"name": "f"}}]))
    assert chat.messages == [USER]
    assert chat.tools[0]["function"]["name"] == "f"
    assert not chat.add_special_tokens
    assert api.parse_tokenize_request(encode(prompt="")).prompt == ""
    assert not api.parse_tokenize_request(encode(messages=[USER], continue_final_message=True)).add_generation_prompt


@pytest.mark.parametrize(
    ("parser", "body", "param"),
    [
        (api.parse_tokenize_request, {}, "prompt"),
        (api.parse_tokenize_request, {"prompt": "x", "messages": [USER]}, "prompt"),
        (api.parse_tokenize_request, {"prompt": ["x"]}, "prompt"),
        (api.parse_tokenize_request, {"messages": []}, "messages"),
        (api.parse_tokenize_request, {"messages": [USER], "chat_template": "x"}, "chat_template"),
        (
            api.parse_tokenize_request,
            {"messages": [USER], "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        (api.parse_detokenize_request, {}, "tokens"),
        (api.parse_detokenize_request, {"tokens": "x"}, "tokens"),
        (api.parse_detokenize_request, {"tokens": [1, -1]}, "tokens[1]"),
        (api.parse_detokenize_request, {"tokens": [[1]]}, "tokens[0]"),
        (api.parse_detokenize_request, {"tokens": [], "model": 1}, "model"),
        (api.parse_tokenize_texts_request, {}, "prompt"),
        (api.parse_tokenize_texts_request, {"prompt": []}, "prompt"),
        (api.parse_tokenize_texts_request, {"prompt": ["a", 1]}, "prompt[1]"),
        (api.parse_detokenize_batch_request, {"tokens": None}, "tokens"),
        (api.parse_detokenize_batch_request, {"tokens": [[1], ["x"]]}, "tokens[1][0]"),
        (api.parse_detokenize_batch_request, {"tokens": [[1], 2]}, "tokens[1]"),
    ],
)
def test_what_is_wrong_is_refused_by_name(parser: Callable[[bytes], object], body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parser(json.dumps(body).encode())
    assert caught.value.param == param


def test_vllms_answers() -> None:
    assert json.loads(api.tokenize_body((1, 2), 2048)) == {
        "count": 2,
        "max_model_len": 2048,
        "tokens": [1, 2],
        "token_strs": None,
    }
    assert json.loads(api.tokenize_body((1,), 8, ["é"]))["token_strs"] == ["é"]
    assert api.parse_detokenize_request(encode(tokens=[1, 2])).batch == [[1, 2]]
    assert json.loads(api.detokenize_body("é\ud800")) == {"prompt": "é?"}


def test_the_other_dialect_answers_in_the_form_of_the_question() -> None:
    one = api.parse_tokenize_texts_request(encode(model="m", prompt="héllo"))
    many = api.parse_tokenize_texts_request(encode(model="m", prompt=["a", "bc"]))
    assert json.loads(api.tokenize_texts_body(one, [[1, 2]])) == {"tokens": [1, 2], "count": 2, "char_count": 5}
    assert json.loads(api.tokenize_texts_body(many, [[1], [2, 3]])) == {
        "tokens": [[1], [2, 3]],
        "count": [1, 2],
        "char_count": [1, 2],
    }
    flat = api.parse_detokenize_batch_request(encode(model="m", tokens=[1, 2]))
    nested = api.parse_detokenize_batch_request(encode(model="m", tokens=[[1], []]))
    assert (flat.batch, nested.batch) == ([[1, 2]], [[1], []])
    assert json.loads(api.detokenize_batch_body(flat, ["x"])) == {"text": "x"}
    assert json.loads(api.detokenize_batch_body(nested, ["x", ""])) == {"text": ["x", ""]}
