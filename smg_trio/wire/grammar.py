"""Structured outputs in the forms engines compile: JSON text, and EBNF for a choice of strings.

xgrammar, the backend both engines have, compiles grammars but no `choice`, so a choice is written as
the grammar ``root ::= "a" | "b"``.

Mirrors `vllm/v1/structured_output/utils.py` (``choice_as_grammar``) of vLLM 0.32.0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

_NAMED_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
ANY_OBJECT_SCHEMA: Final = '{"type":"object"}'
"""What "any JSON object" is for engines without a `json_object` kind."""


def choice_grammar(choices: Sequence[str]) -> str:
    """The EBNF grammar that produces exactly one of ``choices``."""
    return "root ::= " + " | ".join(f'"{_escaped(choice)}"' for choice in choices)


def json_text(value: Any) -> str:
    """A schema or tag as JSON text; text is passed through. Raises ValueError where JSON cannot say it."""
    return value if isinstance(value, str) else json.dumps(value, allow_nan=False)


def _escaped(text: str) -> str:
    return "".join(_NAMED_ESCAPES.get(char) or _control_escape(char) for char in text)


def _control_escape(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x20 or code == 0x7F else char
