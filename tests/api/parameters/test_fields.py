"""Readers are as lax as vLLM's request models (pydantic), and their refusals name the parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from smg_trio.api.parameters.fields import (
    INT64_MAX,
    INT64_MIN,
    array_of,
    boolean,
    describe,
    filled_string,
    integer,
    mapping,
    number,
    one_of,
    read_fields,
    string,
    take,
    token_id,
    wire_mapping,
    within,
)
from smg_trio.core.errors import InvalidRequest

scalars = (
    st.none()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.from_regex(r"\A ?[+-]?[0-9]{0,3}(\.[0-9]{0,2})?(e[0-9])? ?\Z", fullmatch=True)
    | st.sampled_from(["inf", "nan", "true", "False", "YES", "n", "off", "1", "5", "5.0", "5.", ".0", "x", ""])
    | st.just([])
    | st.just({})
)


def outcome(reader: Callable[[Any, str], Any], value: object) -> Any:
    try:
        return reader(value, "p")
    except InvalidRequest as exc:
        return "refused" if exc.param == "p" else exc


def pydantic_outcome(kind: type, value: object) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return "refused"


@given(scalars)
@example("1_000")
@example("1__0")
@example(1e20)
@example(5.0)
def test_integers_are_read_as_pydantic_reads_them_within_64_bits(value: object) -> None:
    expected = pydantic_outcome(int, value)
    if isinstance(expected, int) and not INT64_MIN <= expected <= INT64_MAX:
        expected = "refused"
    assert outcome(integer, value) == expected


@given(scalars)
def test_numbers_are_read_as_pydantic_reads_them_if_finite(value: object) -> None:
    expected = pydantic_outcome(float, value)
    if isinstance(expected, float) and not float("-inf") < expected < float("inf"):
        expected = "refused"
    assert outcome(number, value) == expected


@given(scalars | st.booleans())
def test_booleans_are_read_as_pydantic_reads_them(value: object) -> None:
    assert outcome(boolean, value) == pydantic_outcome(bool, value)


@given(scalars | st.booleans())
def test_strings_are_read_as_pydantic_reads_them(value: object) -> None:
    assert outcome(string, value) == pydantic_outcome(str, value)


@pytest.mark.parametrize("reader", [integer, number, token_id])
def test_a_boolean_is_not_a_number(reader: Callable[[Any, str], Any]) -> None:
    assert outcome(reader, True) == "refused"
    assert outcome(reader, False) == "refused"


def test_bounds_are_inclusive_and_above_is_not() -> None:
    reader = within(number, None, 1, above=0)
    assert reader(1, "p") == 1
    for bad in (0, -1, 1.01, "2", float("nan")):
        assert outcome(reader, bad) == "refused"
    assert within(integer, 0, 3)("3", "p") == 3


def test_arrays_name_the_item() -> None:
    with pytest.raises(InvalidRequest) as caught:
        array_of(token_id)([1, -2], "ids")
    assert caught.value.param == "ids[1]"
    with pytest.raises(InvalidRequest, match="at most 2"):
        array_of(token_id, maximum=2)([1, 2, 3], "ids")
    assert outcome(array_of(token_id), "12") == "refused"


def test_words_are_a_closed_list() -> None:
    assert one_of(("a", "b"))("b", "p") == "b"
    for bad in ("c", 1, ["a"], {}):
        assert outcome(one_of(("a", "b")), bad) == "refused"


def test_null_is_absent_and_unknown_keys_are_ignored() -> None:
    obj = {"a": None, "b": 2, "zzz": object()}
    assert read_fields(obj, {"a": integer, "b": integer}) == {"b": 2}
    assert take(obj, "a", integer) is None
    assert take(obj, "missing", integer) is None
    with pytest.raises(InvalidRequest) as caught:
        take({"b": "x"}, "b", integer, prefix="outer.")
    assert caught.value.param == "outer.b"


def test_only_what_msgpack_can_carry_goes_to_the_wire() -> None:
    assert wire_mapping({"a": [{"b": 2**64 - 1}, -(2**63), None, 1.5, "x"]}, "p")
    for bad in ({"a": 2**64}, {"a": [[-(2**63) - 1]]}, {"a": {"b": 10**40}}):
        assert outcome(wire_mapping, bad) == "refused"


def test_what_a_message_shows_of_a_value_is_short() -> None:
    assert describe(None) == "null"
    assert describe(True) == "true"
    assert describe({"secret": 1}) == "an object"
    assert describe(["secret"]) == "an array"
    assert len(describe("x" * 1000)) < 60
    assert len(describe(10**10_000)) < 60


def test_containers_and_empty_strings() -> None:
    assert outcome(mapping, []) == "refused"
    assert outcome(filled_string, "") == "refused"
    assert outcome(filled_string, "x") == "x"
