"""The token counts of a response that is relayed, found in its bytes. Pure.

Only the first and the last reads of a stream are kept, so a chunk costs an append. Where a stream has no usage, nothing
is guessed.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any, Final

from smg_trio.core.events import Usage

_KEPT_READS: Final = 16
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(?=\{)')
_META: Final = re.compile(rb'"meta_info"\s*:\s*(?=\{)')
"""SGLang's ``/generate`` counts there."""
_MAX_USAGE_BYTES: Final = 8192
_decoder = json.JSONDecoder()


class UsageReader:
    """Sees the reads of one response.

    Attributes:
        events: server-sent events so far, for those who count them; only `note_events` counts.
    """

    __slots__ = ("_first", "_last", "add", "events")

    def __init__(self) -> None:
        self._last: deque[bytes] = deque(maxlen=_KEPT_READS)
        self._first = b""
        self.add = self._last.append
        self.events = 0

    def begin(self, data: bytes) -> None:
        """The first read, which may say how long the prompt is (Anthropic's ``message_start`` does)."""
        self._first = data
        self.add(data)

    def note_events(self, data: bytes) -> None:
        """Count the events of a read."""
        self.events += data.count(b"data: ")

    def usage(self) -> Usage | None:
        """What the response says of its tokens, as far as it has come; None if it does not."""
        found = _last_usage(b"".join(self._last))
        first = _last_usage(self._first) if b"message_start" in self._first else None
        if found is None or first is None:
            return found or first
        return Usage(
            prompt_tokens=found.prompt_tokens or first.prompt_tokens,
            completion_tokens=found.completion_tokens,
            cached_tokens=first.cached_tokens if found.cached_tokens is None else found.cached_tokens,
            reasoning_tokens=found.reasoning_tokens,
        )


def usage_of_body(body: bytes) -> Usage | None:
    """The usage of a whole response; None if it has none."""
    return _last_usage(body)


def _last_usage(data: bytes) -> Usage | None:
    for pattern in (_USAGE, _META):
        for match in reversed(list(pattern.finditer(data))):
            try:
                text = data[match.end() : match.end() + _MAX_USAGE_BYTES].decode("utf-8", "replace")
                value, _ = _decoder.raw_decode(text)
            except (ValueError, RecursionError):
                continue
            usage = _usage(value)
            if usage is not None:
                return usage
    return None


def _usage(value: dict[str, Any]) -> Usage | None:
    prompt, completion = (
        _count(value, "prompt_tokens", "input_tokens"),
        _count(value, "completion_tokens", "output_tokens"),
    )
    if prompt is None and completion is None:
        return None
    details = value.get("prompt_tokens_details") or value.get("input_tokens_details") or value
    cached = _count(details, "cached_tokens", "cache_read_input_tokens") if isinstance(details, dict) else None
    return Usage(prompt or 0, completion or 0, cached)


def _count(value: dict[str, Any], *names: str) -> int | None:
    for name in names:
        found = value.get(name)
        if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
            return found
    return None
