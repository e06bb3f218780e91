"""What stands around calls: content is exactly the text outside of them, and no marker is ever in it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NoReturn

import pytest

from smg_trio.parsers.families import TOOL_PARSERS
from smg_trio.parsers.registry import make_answer_parser
from tests.parsers.formats import FORMATS, Call, Format, Frame, Raw, variants, written
from tests.parsers.sweep import Folded, sweep

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "find": {"type": "object", "properties": {"word": {"type": "string"}}},
}
OSLO: Call = ("get_weather", {"city": "Oslo", "days": 2})
FIND: Call = ("find", {"word": "a < b"})
BEFORE, AFTER = "Let me look.", "That is all."
CASES = [pytest.param(*variant, id=f"{variant[0]}-{variant[2].open!r}") for variant in variants()]


def read(name: str, text: str) -> Folded:
    return sweep(partial(make_answer_parser, None, name, TOOLS), text, ())


def check(got: Folded, content: str, *calls: Call) -> None:
    assert [(name, json.loads(arguments)) for name, arguments, _ in got.calls] == [list_of(call) for call in calls]
    assert got.content == content
    assert got.reasoning == ""


def list_of(call: Call) -> tuple[str, dict[str, object]]:
    return call[0], dict(call[1])


def test_every_parser_is_in_the_table() -> None:
    assert set(FORMATS) == set(TOOL_PARSERS)


@pytest.mark.parametrize(("name", "form", "frame"), CASES)
def test_content_is_exactly_the_text_outside_of_calls(name: str, form: Format, frame: Frame) -> None:
    one, two = written(form, frame, [OSLO]), written(form, frame, [OSLO, FIND])
    check(read(name, one), "", OSLO)
    check(read(name, two), "", OSLO, FIND)
    check(read(name, BEFORE + one), BEFORE, OSLO)
    check(read(name, one + AFTER), AFTER, OSLO)
    check(read(name, BEFORE + two + AFTER), BEFORE + AFTER, OSLO, FIND)
    check(read(name, f"{BEFORE}{one}{AFTER}{written(form, frame, [FIND])}"), BEFORE + AFTER, OSLO, FIND)


NUMBERS = ["1e999", "-1e999", "9" * 5000, "0." + "3" * 400]


def refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


@pytest.mark.parametrize("declared", ["number", "integer", None])
@pytest.mark.parametrize(("name", "form", "frame"), CASES)
def test_a_number_that_no_double_holds_is_neither_lost_nor_changed(
    name: str, form: Format, frame: Frame, declared: str | None
) -> None:
    tools = {"put": {"type": "object", "properties": {"v": {"type": declared}} if declared else {}}}
    for number in NUMBERS:
        text = written(form, frame, [("put", {"v": Raw(number), "w": "x"})])
        [(called, arguments, _)] = sweep(partial(make_answer_parser, None, name, tools), text, ()).calls
        values = json.loads(arguments, parse_int=str, parse_float=str, parse_constant=refuse)
        assert (called, values) == ("put", {"v": number, "w": "x"})
