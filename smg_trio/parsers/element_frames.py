"""Arguments written as an element for each, for structural tags: families whose elements no style of xgrammar has.

A value that may be text is held to nothing but its end; one that may not is JSON of its schema. Elements come in the
order of the schema's properties, as in xgrammar's own styles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from smg_trio.parsers.tag_formats import Format, any_text, const, either, json_schema, optional, sequence, tag
from smg_trio.parsers.typed_parameters import schema_types

_DEFINITIONS: Final = ("$defs", "definitions")
_OTHER_REFERENCE: Final = re.compile(r"#/(?!\$defs/|definitions/)|#\Z")
_MOST_REFERENCES: Final = 16


@dataclass(frozen=True, slots=True)
class Elements:
    """One family's elements.

    Attributes:
        open: in front of a value; ``{key}`` stands for the argument's name.
        close: behind it.
        behind: between that and whatever follows.
    """

    open: str
    close: str
    behind: str = ""

    def arguments(self, schema: Any) -> Format:
        """Elements for the properties of `schema`; any text where it has none and does not forbid them."""
        schema = schema if isinstance(schema, Mapping) else {}
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return optional(const("\n")) if schema.get("additionalProperties") is False else any_text()
        required = schema.get("required")
        elements = []
        for key, value in properties.items():
            element = self._element(key, _value(value, schema))
            always = isinstance(required, list) and key in required
            elements.append(element if always else optional(element))
        return sequence(*elements)

    def _element(self, key: str, value: Format) -> Format:
        element = tag(self.open.replace("{key}", key), value, self.close)
        return sequence(element, const(self.behind)) if self.behind else element


def _value(schema: Any, root: Mapping[str, Any]) -> Format:
    found = _followed(schema, root)
    words = found.get("enum") if isinstance(found, Mapping) else None
    if isinstance(words, list) and words and all(isinstance(word, str) and word for word in words):
        return either(*map(const, words))
    if "string" in schema_types(found) or _refers_elsewhere(found):
        return any_text()
    return json_schema({**found, **{name: root[name] for name in _DEFINITIONS if name in root}})


def _followed(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a schema that is a reference means; the reference itself where it leads nowhere."""
    for _ in range(_MOST_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        found: Any = root
        for step in reference[2:].split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        if found is None:
            return schema
        schema = found
    return schema


def _refers_elsewhere(node: Any) -> bool:
    """Whether there is a reference that a schema of its own, with the definitions, could not follow."""
    if isinstance(node, list):
        return any(map(_refers_elsewhere, node))
    if not isinstance(node, Mapping):
        return False
    reference = node.get("$ref")
    if isinstance(reference, str) and _OTHER_REFERENCE.match(reference):
        return True
    return any(map(_refers_elsewhere, node.values()))
