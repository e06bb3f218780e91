"""``text.format`` of the Responses API: what a response's text is held to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smg_trio.api.parameters.constraints import read_schema
from smg_trio.api.parameters.fields import boolean, filled_string, mapping, one_of, read_fields, refuse, string, take
from smg_trio.core.requests import StructuredOutput


def read_text_format(text: Mapping[str, Any], param: str = "text") -> StructuredOutput | None:
    """The constraint that the member ``format`` of `text` asks for; None for plain text.

    Raises:
        InvalidRequest: naming the member.
    """
    path = f"{param}.format"
    format_ = take(text, "format", mapping, prefix=f"{param}.") or {"type": "text"}
    kind = one_of(("text", "json_object", "json_schema"))(format_.get("type"), f"{path}.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutput(kind="json_object", value=True)
    for name in ("schema", "name"):
        if format_.get(name) is None:
            raise refuse(f"{path}.{name}", "is required")
    read_fields(format_, {"name": filled_string, "strict": boolean, "description": string}, prefix=f"{path}.")
    schema = mapping(format_["schema"], f"{path}.schema")
    return StructuredOutput(kind="json", value=read_schema(schema, f"{path}.schema"))
