"""Custom tools of the Responses API: tools whose input is plain text, not JSON.

The model knows such a tool as a function of one string. A call's input is that string, taken out of the arguments as
they come (`CustomInput`); a call in the history is written as the model would have written it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from smg_trio.api.parameters.constraints import check_weight
from smg_trio.api.parameters.fields import filled_string, mapping, one_of
from smg_trio.api.parameters.regexes import check_regex
from smg_trio.core.exact_json import load_exact
from smg_trio.core.requests import StructuredOutput

INPUT: Final = "input"
"""The function's one parameter (as in vLLM 0.32, ``tool_parsers/utils.py``)."""

_HEAD: Final = re.compile(r'[ \t\n\r]*\{[ \t\n\r]*"input"[ \t\n\r]*:[ \t\n\r]*"')
_HEAD_LIMIT: Final = 256
_WHOLE: Final = re.compile(r'(?:[^"\\]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_HALF_PAIR: Final = re.compile(r"\\u[dD][89abAB]")
_ESCAPE_CHARS: Final = len(r"\ud83d")


@dataclass(frozen=True, slots=True)
class CustomFormat:
    """What a custom tool's input has to match."""

    syntax: Literal["lark", "regex"]
    definition: str

    @property
    def constraint(self) -> StructuredOutput:
        """What holds an engine to it."""
        return StructuredOutput(kind="regex" if self.syntax == "regex" else "grammar", value=self.definition)


def read_custom_format(value: Any, param: str) -> CustomFormat | None:
    """The ``format`` of a custom tool; None for free text.

    Raises:
        InvalidRequest: naming the member.
    """
    if value is None:
        return None
    format_ = mapping(value, param)
    if one_of(("text", "grammar"))(format_.get("type"), f"{param}.type") == "text":
        return None
    syntax = one_of(("lark", "regex"))(format_.get("syntax"), f"{param}.syntax")
    definition = filled_string(format_.get("definition"), f"{param}.definition")
    check_weight(definition, f"{param}.definition")
    if syntax == "regex":
        check_regex(definition, f"{param}.definition")
    return CustomFormat("regex" if syntax == "regex" else "lark", definition)


def custom_parameters(format_: CustomFormat | None) -> dict[str, Any]:
    """The schema of the function that stands for a custom tool."""
    text = "The whole input of the tool, as plain text."
    if format_ is not None:
        name = "regular expression" if format_.syntax == "regex" else "Lark grammar"
        text += f" It must match this {name}:\n{format_.definition}"
    return {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": text}},
        "required": [INPUT],
        "additionalProperties": False,
    }


def custom_arguments(text: str) -> str:
    """A custom tool's input as arguments of its function."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


class CustomInput:
    """Takes the input out of a call's arguments, JSON text in pieces.

    Arguments of another form (a model may make some) are the input themselves, as they were written. Which form they
    have is decided by their beginning, so that what was shown of a stream never has to be taken back.
    """

    __slots__ = ("_held", "_pieces", "_state")

    def __init__(self) -> None:
        self._held = ""
        self._pieces: list[str] = []
        self._state: Literal["head", "text", "over", "other"] = "head"

    def feed(self, piece: str) -> str:
        """More of the arguments; what became certain of the input."""
        if self._state == "other":
            self._pieces.append(piece)
            return ""
        if self._state == "over":
            return ""
        self._held += piece
        if self._state == "head":
            self._read_head()
        return self._text() if self._state == "text" else ""

    def finish(self) -> str:
        """The arguments have ended; the rest of the input."""
        state, rest = self._state, "".join([*self._pieces, self._held])
        self._state, self._held = "over", ""
        self._pieces.clear()
        return _input_of(rest) if state in ("head", "other") else ""

    def _read_head(self) -> None:
        head = _HEAD.match(self._held)
        if head is not None:
            self._held, self._state = self._held[head.end() :], "text"
        elif len(self._held) > _HEAD_LIMIT:
            self._pieces, self._held, self._state = [self._held], "", "other"

    def _text(self) -> str:
        """What the string holds so far, but for an escape, or one of a pair, that is not complete."""
        held = self._held
        whole = _WHOLE.match(held)
        end = whole.end() if whole else 0
        is_closed = held.startswith('"', end)
        if not is_closed and _ends_in_half_pair(held, end):
            end -= _ESCAPE_CHARS
        self._held = "" if is_closed else held[end:]
        self._state = "over" if is_closed else "text"
        return _unescaped(held[:end])


def _ends_in_half_pair(text: str, end: int) -> bool:
    """Whether the last of the whole escapes in ``text[:end]`` is the first half of a surrogate pair."""
    start = end - _ESCAPE_CHARS
    if start < 0 or not _HALF_PAIR.match(text, start):
        return False
    before = text[:start]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 0


def _unescaped(text: str) -> str:
    return str(json.loads(f'"{text}"', strict=False)) if "\\" in text else text


def _input_of(arguments: str) -> str:
    """The input in whole arguments whose first member is not the input's text."""
    try:
        value = load_exact(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get(INPUT) if isinstance(value, dict) else value
    return text if type(text) is str else arguments
