"""Choices as grammars."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.wire.grammar import choice_grammar, json_text

ESCAPE = re.compile(r'\\u([0-9a-f]{4})|\\([nrt"\\])')
NAMED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


def literals(grammar: str) -> list[str]:
    """Read the alternatives of ``root ::= "a" | "b"`` back, as a grammar compiler would."""
    body = grammar.removeprefix("root ::= ")
    quoted = re.findall(r'"((?:[^"\\\n]|\\.)*)"(?: \| |$)', body)
    assert " | ".join(f'"{text}"' for text in quoted) == body
    return [ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] is not None else NAMED[m[2]], text) for text in quoted]


def test_a_choice_is_a_grammar_of_literals() -> None:
    assert choice_grammar(["alpha", "beta"]) == 'root ::= "alpha" | "beta"'
    assert choice_grammar(['say "hi"\\', "a\nb"]) == 'root ::= "say \\"hi\\"\\\\" | "a\\nb"'


@given(st.lists(st.text(max_size=12), min_size=1, max_size=5))
def test_every_choice_can_be_read_back_from_its_grammar(choices: list[str]) -> None:
    assert literals(choice_grammar(choices)) == choices


def test_schemas_go_out_as_text() -> None:
    assert json_text({"maximum": 1 << 80}) == '{"maximum": 1208925819614629174706176}'
    assert json_text('{"a":1}') == '{"a":1}'
    with pytest.raises(ValueError, match="JSON"):
        json_text({"minimum": float("nan")})
