"""Nodes of xgrammar's structural tags, as dicts.

Their words are those of ``xgrammar.structural_tag`` (0.1.26 to 0.2.9), which is what vLLM compiles a
``structural_tag`` constraint with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Format = dict[str, Any]
"""One node of a structural tag."""


def json_schema(schema: Any, style: str = "json") -> Format:
    """A value under `schema`, written in one of xgrammar's styles."""
    node: Format = {"type": "json_schema", "json_schema": schema}
    return node if style == "json" else node | {"style": style}


def const(text: str) -> Format:
    """Exactly `text`."""
    return {"type": "const_string", "value": text}


def regex(pattern: str) -> Format:
    """Text that `pattern` matches."""
    return {"type": "regex", "pattern": pattern}


def any_text(*excludes: str) -> Format:
    """Any text without `excludes`."""
    return {"type": "any_text", "excludes": list(excludes)}


def tag(begin: str, content: Format, end: str | Sequence[str]) -> Format:
    """`content` between two texts; any of the texts if `end` is a list."""
    return {"type": "tag", "begin": begin, "content": content, "end": end if isinstance(end, str) else list(end)}


def sequence(*elements: Format) -> Format:
    """One behind the other."""
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": list(elements)}


def either(*elements: Format) -> Format:
    """Any one of them."""
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def optional(content: Format) -> Format:
    """`content` or nothing."""
    return {"type": "optional", "content": content}


def several(tags: Sequence[Format], separator: str, single: bool) -> Format:
    """At least one of `tags`; exactly one if `single`."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": single,
    }
