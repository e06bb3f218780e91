"""Server-sent events: how one payload becomes one event of a stream.

An event is ``data: <one line of JSON>`` and an empty line (WHATWG HTML, "Server-sent events"). JSON text
never holds a raw line break, so no payload has to be split.
"""

from __future__ import annotations

DONE = b"data: [DONE]\n\n"
"""What ends every OpenAI-style stream, also one that ended in an error."""

KEEP_ALIVE = b": ping\n\n"
"""A comment: parsers skip it, proxies see traffic. Only ever sent between events."""

CONTENT_TYPE = "text/event-stream; charset=utf-8"


def data_event(payload: bytes) -> bytes:
    """Frame one JSON payload (no raw line breaks) as an event."""
    return b"data: %b\n\n" % payload


def named_event(name: str, payload: bytes) -> bytes:
    """Frame one JSON payload as an event of type ``name`` (Anthropic and Responses streams)."""
    return b"event: %b\ndata: %b\n\n" % (name.encode("ascii"), payload)
