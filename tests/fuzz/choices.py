"""Bytes as a source of choices: whoever makes the bytes, hypothesis or a coverage-guided fuzzer, makes the choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")

ODD_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, "", "a", "\u0000", "\ud7ff",
    "\U0001f600", "5", "true", "auto", "user", "tool", "function", "{}", "[", "a" * 2000, [], [[]], [{}], {},
    {"a": None}, {"type": "function"}, {"type": "object", "properties": {"a": {"$ref": "#"}}}, [1, "a", None],
    [-1], [0] * 200,
]  # fmt: skip
"""What a field may hold although nobody expects it."""


class Choices:
    """Choices made one after the other; when the bytes are used up, the first of everything."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> bool:
        """Whether choices are left."""
        return self._at < len(self._data)

    def below(self, bound: int) -> int:
        """A number of 0..bound - 1; `bound` of at most 65536."""
        taken = self._data[self._at : self._at + (1 if bound <= 256 else 2)]
        self._at += len(taken)
        return int.from_bytes(taken, "little") % bound

    def one_of(self, items: Sequence[T]) -> T:
        """One of some things."""
        return items[self.below(len(items))]

    def rest(self) -> bytes:
        """The bytes that made no choice yet."""
        rest = self._data[self._at :]
        self._at = len(self._data)
        return rest


def mutated(value: Any, choices: Choices) -> Any:
    """A JSON value with some of its parts changed, dropped, doubled, or moved to where others were."""
    for _ in range(1 + choices.below(4)):
        value = _changed(value, value, choices)
    return value


def _changed(value: Any, whole: Any, choices: Choices) -> Any:
    """One change, at a place on some way down."""
    if isinstance(value, dict) and value and choices.below(8):
        key = choices.one_of(list(value))
        return {**value, key: _changed(value[key], whole, choices)}
    if isinstance(value, list) and value and choices.below(8):
        index = choices.below(len(value))
        return [*value[:index], _changed(value[index], whole, choices), *value[index + 1 :]]
    return _replaced(value, whole, choices)


def _replaced(value: Any, whole: Any, choices: Choices) -> Any:
    way = choices.below(8)
    if way == 0 and isinstance(value, dict):
        return {**value, choices.one_of(["", "type", "name", "content", "a" * 300]): choices.one_of(ODD_VALUES)}
    if way == 1 and isinstance(value, list):
        return value * 3
    if way == 2:
        return [value]
    if way == 3:
        return {"type": value}
    if way == 4:
        return _somewhere(whole, choices)
    if way == 5 and isinstance(value, str):
        return value[: choices.below(1 + len(value) % 65_000)] + str(choices.one_of(ODD_VALUES))
    if way == 6 and isinstance(value, dict) and value:
        return {key: item for key, item in value.items() if key != choices.one_of(list(value))}
    return choices.one_of(ODD_VALUES)


def _somewhere(value: Any, choices: Choices) -> Any:
    while choices.below(4) and isinstance(value, (dict, list)) and value:
        value = choices.one_of(list(value.values()) if isinstance(value, dict) else value)
    return value
