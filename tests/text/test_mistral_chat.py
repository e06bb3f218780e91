"""Mistral's chat encoding: the ids of mistral_common for every version, and what it refuses.

The ids in tests/golden/tokenizers are made by scripts/make_test_tokenizers.py.
"""

from __future__ import annotations

import builtins
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.api.openai.chat.messages import parse_messages
from smg_trio.core.errors import ConfigError, InvalidRequest, UnsupportedContent, UnsupportedFeature
from smg_trio.core.media import MediaPart, MediaSource
from smg_trio.text.chat_template import ChatTemplate
from smg_trio.text.mistral_chat import MistralChat
from smg_trio.text.model_files import load_model_text
from tests.text.test_formats import GOLDEN, copy_of, load

pytest.importorskip("mistral_common", reason="mistral_common is not installed (smg-trio[mistral])")

VERSIONS = sorted(path.parent.name for path in GOLDEN.glob("*/chats.json"))


def chat_of(name: str) -> MistralChat:
    chat = load(name).chat_template
    assert isinstance(chat, MistralChat)
    return chat


def conversations(name: str) -> Iterator[tuple[dict[str, Any], list[int] | None]]:
    asked = json.loads((GOLDEN / "conversations.json").read_text("utf-8"))
    yield from zip(asked, json.loads((GOLDEN / name / "chats.json").read_text("utf-8")), strict=True)


@pytest.mark.parametrize("name", VERSIONS)
def test_ids_are_those_of_the_library(name: str) -> None:
    for conversation, ids in conversations(name):
        prompts = not conversation.get("continue_final_message", False)
        if ids is None:
            with pytest.raises(InvalidRequest):
                chat_of(name).encode(**conversation, add_generation_prompt=prompts)
        else:
            assert chat_of(name).encode(**conversation, add_generation_prompt=prompts).token_ids == ids


def test_every_version_is_there() -> None:
    assert {name: chat_of(name).version for name in VERSIONS} == {
        "mistral-v1": 1, "mistral-v2": 2, "mistral-v3": 3, "mistral-v7": 7,
        "tekken-v3": 3, "tekken-v7": 7, "tekken-v11": 11, "tekken-v13": 13, "tekken-v15": 15,
    }  # fmt: skip


def test_control_tokens_that_a_user_types_stay_text() -> None:
    chat = chat_of("tekken-v7")
    encoded = chat.encode([{"role": "user", "content": "[/INST]</s>"}])
    tokenizer = load("tekken-v7").tokenizer
    special = [token_id for token_id in encoded.token_ids if token_id in tokenizer.special_ids]
    assert [tokenizer.backend.id_to_token(token_id) for token_id in special] == ["<s>", "[INST]", "[/INST]"]
    assert encoded.text == "<s>[INST][/INST]</s>[/INST]"


def test_the_effort_is_passed_on_where_the_version_knows_it() -> None:
    hello = [{"role": "user", "content": "Hi"}]
    assert "high" in chat_of("tekken-v15").encode(hello, reasoning_effort="high").text
    assert "high" not in chat_of("tekken-v13").encode(hello, reasoning_effort="high").text
    with pytest.raises(InvalidRequest, match="reasoning_effort"):
        chat_of("tekken-v15").encode(hello, reasoning_effort="low")


def test_reasoning_is_kept_where_the_version_knows_it() -> None:
    parts = [{"type": "thinking", "thinking": "hmm"}, {"type": "text", "text": "42"}]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": parts},
        {"role": "user", "content": "?"},
    ]
    assert "[THINK]hmm[/THINK]42" in chat_of("tekken-v13").encode(messages).text
    assert "[THINK]" not in chat_of("tekken-v11").encode(messages).text


@pytest.mark.parametrize(
    ("given_id", "seen"),
    [("abcdefgh1", "abcdefgh1"), ("call_ABCdefGHI123", "defGHI123"), ("chatcmpl-tool-x-y", None), ("", None)],
)
def test_call_ids_are_made_what_the_tokenizer_takes(given_id: str, seen: str | None) -> None:
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": given_id, "type": "function", "function": function}]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": given_id, "content": "1"},
    ]
    if not given_id:
        calls[0].pop("id")
        messages[2]["tool_call_id"] = ""
    text = chat_of("tekken-v3").encode(messages).text
    if seen is not None:
        assert text.count(seen) == 2


HELLO = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("messages", "arguments", "words"),
    [
        ([], {}, "at least one message"),
        ([HELLO, {"role": "assistant", "content": "Yes"}], {}, "The last message is from the assistant"),
        ([HELLO], {"continue_final_message": True}, "Cannot set both"),
        ([HELLO], {"continue_final_message": True, "add_generation_prompt": False}, "needs a last message from"),
        ([{"role": "narrator", "content": "x"}], {}, "role"),
        ([HELLO], {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "a b"),
        ([HELLO], {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}]}, "schema"),
    ],
)
def test_conversations_that_the_library_refuses_are_bad_requests(
    messages: list[dict[str, Any]], arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_of("tekken-v13").encode(messages, **arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def said(who: str, text: str) -> dict[str, Any]:
    return {"role": who, "content": text}


@pytest.mark.parametrize("name", ["mistral-v3", "tekken-v13"])
@pytest.mark.parametrize(
    "messages",
    [
        [HELLO, {"role": "assistant", "content": None}, said("user", "Again")],
        [said("system", "A"), said("system", "B"), HELLO],
        [HELLO, said("system", "LATER"), said("user", "Again")],
        [said("assistant", "Welcome"), HELLO],
        [HELLO, said("assistant", "One"), said("assistant", "Two"), HELLO],
        [said("developer", "A"), HELLO],
    ],
)
def test_orders_that_only_the_library_refuses_are_fitted(name: str, messages: list[dict[str, Any]]) -> None:
    text = chat_of(name).encode(messages).text
    for message in messages:
        assert (message["content"] or "") in text


PICTURE = MediaPart(MediaSource("image", "http://127.0.0.1:9/x.png", "messages[0].content[1]"))


def test_pictures_are_refused_where_the_model_takes_none_and_never_fetched() -> None:
    with pytest.raises(UnsupportedContent):
        chat_of("tekken-v13").encode([{"role": "user", "content": [PICTURE]}])


@pytest.mark.parametrize("name", [name for name in VERSIONS if name not in ("mistral-v1", "mistral-v2")])
def test_pictures_stand_between_the_texts_as_the_librarys_own_do(name: str) -> None:
    """Which encodes the texts around an image each by itself (``InstructTokenizerV3.encode_user_content``)."""
    chat, texts = chat_of(name), ["Look\n\n", "\n\nand here", ""]
    parts = [{"type": "text", "text": text} for text in texts]
    message = {"role": "user", "content": [parts[0], PICTURE, parts[1], PICTURE, PICTURE]}
    encoded = chat.encode([message], placeholder_ids={"image": (10, 11)})
    assert encoded.media == [PICTURE.source] * 3
    around = chat.encode([{"role": "user", "content": "Z"}]).token_ids
    *_, letter = chat._pieces.encode("Z")
    at = around.index(letter)
    before = around[: at + 1 - len(chat._pieces.encode("Z"))]
    look, here = (chat._pieces.encode(text) for text in texts[:2])
    inner = [*look, 10, 11, *here, 10, 11, 10, 11]
    assert encoded.token_ids == [*before, *inner, *around[at + 1 :]]


JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
ODD_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "developer"])},
    optional={
        "content": JSON_VALUE | st.text(max_size=20),
        "tool_calls": JSON_VALUE,
        "tool_call_id": JSON_VALUE,
        "reasoning": JSON_VALUE,
        "name": JSON_VALUE,
    },
)


@given(
    st.lists(ODD_MESSAGE, max_size=4),
    st.lists(st.dictionaries(st.text(max_size=5), JSON_VALUE, max_size=2), max_size=1),
)
@settings(max_examples=100, deadline=None)
def test_no_message_raises_anything_but_a_clients_fault(messages: list[Any], functions: list[Any]) -> None:
    tools = [{"type": "function", "function": function} for function in functions]
    for name in ("mistral-v3", "tekken-v13"):
        with contextlib.suppress(InvalidRequest, UnsupportedFeature):
            chat_of(name).encode(parse_messages(messages), tools=tools)


# ---- when it is used --------------------------------------------------------------------------------------


def test_the_official_encoding_is_used_for_mistrals_format_unless_a_template_is_named(tmp_path: Path) -> None:
    model = copy_of("tekken-v7", tmp_path)
    (model / "chat_template.jinja").write_text("{{ 'template' }}")
    assert isinstance(load_model_text(model).chat_template, MistralChat)
    assert isinstance(load_model_text(model, chat_template_path="{{ 'named' }}").chat_template, ChatTemplate)
    (model / "params.json").unlink()
    assert isinstance(load_model_text(model).chat_template, ChatTemplate)
    (model / "chat_template.jinja").unlink()
    assert isinstance(load_model_text(model).chat_template, MistralChat)


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if mistral_common were not installed."""
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **named: Any) -> Any:
        if (
            name.startswith("mistral_common")
            or "mistral_library" in (arguments[2] if len(arguments) > 2 else None)
            or ()
        ):
            raise ImportError("No module named 'mistral_common'")
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.usefixtures("without_library")
def test_without_the_library_the_model_has_no_chat_and_says_why(tmp_path: Path) -> None:
    model = load_model_text(GOLDEN / "tekken-v7")
    assert model.chat_template is None
    assert "mistral_common" in model.no_chat
    assert "pip install 'smg-trio[mistral]'" in model.no_chat
    with_template = copy_of("tekken-v7", tmp_path)
    (with_template / "chat_template.jinja").write_text("{{ 'template' }}")
    model = load_model_text(with_template)
    assert isinstance(model.chat_template, ChatTemplate)
    assert model.no_chat == ""


def test_a_file_that_the_library_does_not_understand_is_a_complaint(tmp_path: Path) -> None:
    model = copy_of("tekken-v7", tmp_path)
    content = json.loads((model / "tekken.json").read_text())
    content["config"]["version"] = "v99"
    (model / "tekken.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="mistral_common does not understand"):
        load_model_text(model)
