"""The value reader: valid JSON as written, other spellings as JSON, broken values closed."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.parsers.json_reader import ValueReader, scalar_to_json

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def read(text: str, size: int = 1) -> tuple[str, ValueReader]:
    reader = ValueReader()
    out = ""
    for at in range(0, len(text), size):
        piece = text[at : at + size]
        if reader.read(piece, 0) < len(piece):
            break
    out += reader.take()
    return out, reader


@given(VALUES, st.sampled_from([None, 2]), st.booleans(), st.integers(1, 5))
def test_valid_json_comes_out_as_written(value: Any, indent: int | None, ascii_only: bool, size: int) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    out, reader = read(text, size)
    assert out + reader.flush() == text
    assert reader.done


@given(VALUES, st.integers(1, 5))
def test_python_literals_come_out_as_json(value: Any, size: int) -> None:
    text = repr(value)
    out, reader = read(text, size)
    whole = out + reader.flush()
    assert reader.done
    assert json.loads(whole) == ast.literal_eval(text)


@given(VALUES, st.integers(0, 200))
def test_a_value_cut_anywhere_can_be_closed(value: Any, size: int) -> None:
    text = json.dumps([value], ensure_ascii=False)[: size + 1]
    out, reader = read(text)
    json.loads(out + reader.repair())


@given(st.text(st.sampled_from("{}[]()\",:\\ \n1a-'u"), max_size=25).map(lambda text: "{" + text))
def test_any_text_read_as_a_value_can_be_closed(text: str) -> None:
    out, reader = read(text)
    if not reader.done:
        out += reader.repair()
    json.loads(out)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1,}', {"a": 1}),
        ("{a: 'it''", {"a": "it"}),
        ('{"a": "line\nbreak"}', {"a": "line\nbreak"}),
        ('{"a": "C:\\path"}', {"a": "C:\\path"}),
        ("(1, 2)", [1, 2]),
        ("{'a': (1,), 'b': None}", {"a": [1], "b": None}),
        ('{"a": "\\x41\\u00e5"}', {"a": "Aå"}),
        ('{"a": NaN}', {"a": "NaN"}),
        ('{"a": -Infinity, "b": +1e999}', {"a": "-Infinity", "b": "+1e999"}),
        ('{"a": .5}', {"a": 0.5}),
    ],
)
def test_what_models_write_instead_of_json_is_put_right(text: str, value: Any) -> None:
    out, reader = read(text)
    assert json.loads(out if reader.done else out + reader.repair()) == value


def test_a_string_is_never_held_back() -> None:
    reader = ValueReader()
    assert reader.read('{"text": "long ago', 0) == 18
    assert reader.take() == '{"text": "long ago'


@pytest.mark.parametrize(("text", "expected"), [("7", "7"), ("True", "true"), ("1_000", "1000"), ("x", None)])
def test_scalars_in_either_spelling(text: str, expected: str | None) -> None:
    assert scalar_to_json(text) == expected
