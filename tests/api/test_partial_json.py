"""Cut JSON objects are read as the official streaming clients read them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jiter import from_json

from smg_trio.api.partial_json import partial_object

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
objects = st.dictionaries(st.text(max_size=3), values, max_size=3)


@settings(max_examples=80, deadline=None)
@given(objects, st.booleans(), st.data())
def test_any_beginning_is_read_as_the_official_clients_read_it(
    value: object, ascii_: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_)
    cut = text[: data.draw(st.integers(1, len(text)))]
    assert json.loads(partial_object(cut)) == from_json(cut.encode(), partial_mode=True)
    assert partial_object(text) == text


@pytest.mark.parametrize("text", ["", " ", "x", "[1", "3", '"a"', "}", "{]", "[" * 5000])
def test_what_is_no_object_is_an_empty_one(text: str) -> None:
    assert partial_object(text) == "{}"


def test_what_follows_an_object_is_not_looked_at() -> None:
    assert partial_object('{"a":1}x') == '{"a":1}'


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 5000, "0." + "1" * 400, "-0"])
def test_a_number_that_python_cannot_hold_stays_as_it_is_written(number: str) -> None:
    whole = '{"a": [1, ' + number + "]}"
    assert partial_object(whole) == whole
    assert partial_object(whole[:-1] + ', "b') == whole


def test_however_deep_it_nests_it_is_read_without_recursion() -> None:
    found = json.loads(partial_object('{"a":' * 5000))
    depth = 0
    while found:
        found, depth = found["a"], depth + 1
    assert depth == 128


@given(st.text(alphabet='{}[]:,"\\ tru1-.e', max_size=12))
def test_any_text_gives_some_object(text: str) -> None:
    assert isinstance(json.loads(partial_object(text)), dict)
