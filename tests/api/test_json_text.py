"""JSON text of any value is JSON, whatever floats an engine or a client sends."""

from __future__ import annotations

import json

from smg_trio.api.json_text import dump

from .openai.updates import strict_json


def test_floats_that_json_has_no_number_for_are_null() -> None:
    value = {"a": [1.5, float("nan"), (float("inf"),)], "b": {"c": float("-inf")}, "d": "NaN"}
    assert strict_json(dump(value)) == {"a": [1.5, None, [None]], "b": {"c": None}, "d": "NaN"}


def test_what_json_can_say_is_as_it_was() -> None:
    value = {"a": 1e308, "b": 10**400, "c": "é\u2028", "d": [True, None]}
    assert json.loads(dump(value)) == value
