"""Every sample of the corpora, under every cutting, gives what it should."""

from __future__ import annotations

import json
import lzma
from functools import cache, partial
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from smg_trio.parsers.registry import (
    choose_reasoning_parser,
    choose_tool_parser,
    make_answer_parser,
    make_tool_parser,
)
from tests.conftest import DEMO_MODEL, REFERENCE
from tests.parsers.sweep import Folded, corpus, every, run, sweep

TOOL_FORMAT_NAMES: dict[str, str] = {}
REASONING_FORMAT_NAMES = {"gpt_oss": "harmony"}

DIFFERENT: dict[tuple[str, str], str] = {}
"""Samples we answer otherwise than the corpus says, and why."""


def _schemas(tools: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}


def _cases(kind: str) -> list[Any]:
    return [pytest.param(data, sample, id=f"{data['format']}-{sample['id']}") for data, sample in corpus(kind)]


def _cut_places(sample: dict[str, Any]) -> list[list[int]]:
    cuts = sample.get("cuts") or {}
    return list(cuts.values()) if isinstance(cuts, dict) else [cuts]


def _check_calls(got: Folded, expected: dict[str, Any]) -> None:
    wanted = expected["tool_calls"]
    assert [name for name, _, _ in got.calls] == [call["name"] for call in wanted]
    for (_, arguments, _), call in zip(got.calls, wanted, strict=True):
        if "arguments" in call:
            assert json.loads(arguments) == call["arguments"]
        else:
            assert "".join(call["arguments_is_prefix_of"].split()).startswith("".join(arguments.split()))
            assert arguments


@pytest.mark.parametrize(("data", "sample"), _cases("tool_calls"))
def test_a_tool_call_sample_parses_alike_under_every_cutting(data: dict[str, Any], sample: dict[str, Any]) -> None:
    name = TOOL_FORMAT_NAMES.get(data["format"], data["format"])
    got = sweep(partial(make_tool_parser, name, _schemas(data["tools"])), sample["text"], _cut_places(sample))
    expected = sample["expected"]
    if (data["format"], sample["id"]) in DIFFERENT:
        return
    if expected is None:
        for _, arguments, _ in got.calls:
            assert arguments == "" or arguments[0] == "{"
        return
    _check_calls(got, expected)
    assert got.content.strip() == expected["normal_text"].strip()
    if "reasoning_text" in expected:
        assert got.reasoning.strip() == expected["reasoning_text"].strip()


@pytest.mark.parametrize(("data", "sample"), _cases("reasoning"))
def test_a_reasoning_sample_parses_alike_under_every_cutting(data: dict[str, Any], sample: dict[str, Any]) -> None:
    name = REASONING_FORMAT_NAMES.get(data["format"], data["format"])
    chosen = choose_reasoning_parser(name)
    make = partial(make_answer_parser, chosen, None, None, sample["starts_in_reasoning"])
    got = sweep(make, sample["text"], _cut_places(sample))
    assert got.reasoning.strip() == sample["expected"]["reasoning_text"].strip()
    assert got.content.strip() == sample["expected"]["normal_text"].strip()


@cache
def _tokenizer(name: str) -> Tokenizer | None:
    """The tokenizer that a corpus names; None where the reference material is absent."""
    folder = REFERENCE / "data" / "tokenizers" / name
    packed = folder / "tokenizer.json.xz"
    if packed.exists():
        return Tokenizer.from_str(lzma.open(packed, "rt", encoding="utf-8").read())
    return Tokenizer.from_file(str(folder / "tokenizer.json")) if folder.exists() else None


@cache
def _own_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))


def _pieces(data: dict[str, Any], sample: dict[str, Any], keep_special: bool) -> list[str]:
    """What a detokenizer makes of each token of a sample, "" where it waits for more bytes.

    The tokens are those of the tokenizer that the corpus names; where it is absent, of the bundled one, to which the
    special tokens of the format are text like any other.
    """
    tokenizer, token_ids = _tokenizer(data["tokenizer"]), sample["token_ids"]
    if tokenizer is None:
        tokenizer, keep_special = _own_tokenizer(), True
        token_ids = tokenizer.encode(sample["text"], add_special_tokens=False).ids
    stream = DecodeStream(skip_special_tokens=not keep_special)
    return [stream.step(tokenizer, token_id) or "" for token_id in token_ids]


def _tokenized(kind: str) -> list[str]:
    return sorted({data["format"] for data, sample in corpus(kind) if "token_ids" in sample})


@pytest.mark.parametrize("form", _tokenized("tool_calls"))
def test_real_tokens_one_to_seven_per_tick_give_the_same_calls(form: str) -> None:
    for data, sample in corpus("tool_calls"):
        if data["format"] != form or not sample.get("token_ids") or sample["expected"] is None:
            continue
        make = partial(make_tool_parser, form, _schemas(data["tools"]))
        keep_special = make().needs_special_tokens
        pieces = _pieces(data, sample, keep_special)
        got = run(make(), ["".join(pieces)])
        for size in range(1, 8):
            assert run(make(), every(size, pieces)) == got
        # A tokenizer that normalises (NFC) does not give back the sample's own characters.
        if sample["text"].endswith("".join(pieces)):
            _check_calls(got, sample["expected"])
            assert got.content.strip() == sample["expected"]["normal_text"].strip()


@pytest.mark.parametrize("form", _tokenized("reasoning"))
def test_real_tokens_one_to_seven_per_tick_give_the_same_thought(form: str) -> None:
    for data, sample in corpus("reasoning"):
        if data["format"] != form or not sample.get("token_ids"):
            continue
        make = partial(make_answer_parser, form, None, None, sample["starts_in_reasoning"])
        pieces = _pieces(data, sample, make().needs_special_tokens)
        for size in range(1, 8):
            got = run(make(), every(size, pieces))
            if not sample["text"].endswith("".join(pieces)):
                continue
            assert got.reasoning.strip() == sample["expected"]["reasoning_text"].strip()
            assert got.content.strip() == sample["expected"]["normal_text"].strip()


def test_every_format_of_the_corpora_has_a_parser() -> None:
    for data, _ in corpus("tool_calls"):
        for spelling in data["aliases"].values():
            if spelling.isidentifier():
                assert choose_tool_parser(spelling) is not None
