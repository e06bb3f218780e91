"""Asking one server a question and setting two answers side by side.

An answer is reduced to what a client can see and rely on: status, and the JSON without the three things that are
never alike (ids, creation time, fingerprint). A stream is folded into the shape of a whole answer, because where a
server cuts a text into chunks depends on its load; its order and its chunks' frames are checked while folding.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.interop.cases import Case

VOLATILE = frozenset({"id", "created", "system_fingerprint"})
THEIRS_ALONE = frozenset({"created_cache_tokens"})
"""What vLLM's own server says over and above the API it speaks, when it is asked for details of prompts."""
OURS_ALONE = frozenset({"matched_stop"})
"""What the gateway says over and above: the reference gateway's name of `stop_reason`."""
NOT_COMPARED = VOLATILE | THEIRS_ALONE | OURS_ALONE
TIMEOUT_S = 60.0


class BrokenStreamError(AssertionError):
    """A stream broke the rules that every client relies on."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said.

    Attributes:
        status: HTTP status.
        media_type: content type without parameters.
        body: parsed JSON, or the text where it is none; for streams the list of chunks.
        streamed: whether it came as server-sent events.
    """

    status: int
    media_type: str
    body: Any
    streamed: bool = False

    def whole(self) -> Any:
        """The body; of a stream what it adds up to."""
        return fold(self.body) if self.streamed else self.body

    def comparable(self, without: frozenset[str] = frozenset()) -> Any:
        """Folded, without volatile and these keys, and with null the same as absent."""
        return {"status": self.status, "body": _plain(self.whole(), NOT_COMPARED | without)}


def ask(client: httpx.Client, case: Case) -> Answer:
    """Put one question to the server that `client` points at.

    Raises:
        httpx.HTTPError: the server is not there or breaks off.
        BrokenStreamError: a stream without its end, or a line that is no event.
    """
    content = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    response = client.post(case.path, content=content, headers=dict(case.headers), timeout=TIMEOUT_S)
    media_type = response.headers.get("content-type", "").partition(";")[0]
    if media_type == "text/event-stream":
        return Answer(response.status_code, media_type, events(response.text), streamed=True)
    try:
        body = response.json()
    except ValueError:
        body = response.text
    return Answer(response.status_code, media_type, body)


def events(text: str) -> list[Any]:
    """The JSON payloads of a stream of server-sent events that ends with `[DONE]`."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    if not blocks or blocks[-1] != "data: [DONE]":
        raise BrokenStreamError(f"the stream does not end with [DONE]: {blocks[-1:]}")
    payloads = []
    for block in blocks[:-1]:
        if not block.startswith("data: ") or "\n" in block:
            raise BrokenStreamError(f"not an event: {block!r}")
        payloads.append(json.loads(block.removeprefix("data: ")))
    return payloads


@dataclass(slots=True)
class _Choice:
    """One choice of a stream while it is put together; of a chat or of a plain completion."""

    said: dict[str, Any] = field(default_factory=dict)
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    ending: dict[str, Any] | None = None

    def add(self, choice: dict[str, Any]) -> None:
        if self.ending is not None:
            raise BrokenStreamError(f"a choice goes on after its end: {choice}")
        if "delta" in choice and not self.said and choice["delta"].get("role") != "assistant":
            raise BrokenStreamError(f"the first delta of a choice does not name the role: {choice}")
        for key, value in choice.get("delta", {"text": choice.get("text")}).items():
            known = self.said.get(key)
            joins = isinstance(value, str) and isinstance(known, str) and key != "role"
            self.said[key] = known + value if joins else value
        for key, values in (choice.get("logprobs") or {}).items():
            self.logprobs.setdefault(key, []).extend(values)
        self.token_ids += choice.get("token_ids") or []
        if choice.get("finish_reason") is not None:
            self.ending = {key: choice.get(key) for key in ("finish_reason", "stop_reason")}

    def whole(self, index: int) -> dict[str, Any]:
        if self.ending is None:
            raise BrokenStreamError(f"choice {index} never ended")
        said = self.said if "text" in self.said else {"message": self.said}
        return {"index": index, **said, "logprobs": self.logprobs, "token_ids": self.token_ids, **self.ending}


def fold(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream's chunks as the answer that would have come in one piece.

    Raises:
        BrokenStreamError: an error in the stream, a changing identity, a choice without begin or end, a usage
            chunk before the end.
    """
    choices: dict[int, _Choice] = {}
    whole: dict[str, Any] = {}
    for position, chunk in enumerate(chunks):
        if "error" in chunk:
            raise BrokenStreamError(f"the stream carries an error: {chunk}")
        if any(chunk[key] != chunks[0][key] for key in ("id", "created")):
            raise BrokenStreamError(f"the stream changes its identity: {chunk}")
        for choice in chunk["choices"]:
            choices.setdefault(choice["index"], _Choice()).add(choice)
        if not chunk["choices"] and position != len(chunks) - 1:
            raise BrokenStreamError(f"the chunk with the usage is not the last: {chunk}")
        whole |= {key: value for key, value in chunk.items() if key != "choices" and value is not None}
    whole["object"] = whole["object"].removesuffix(".chunk")
    return whole | {"choices": [choices[index].whole(index) for index in sorted(choices)]}


def difference(expected: Answer, actual: Answer, without: frozenset[str] = frozenset()) -> str:
    """A readable account of how two answers differ, these keys aside; empty when they do not."""
    left, right = (
        json.dumps(answer.comparable(without), indent=1, ensure_ascii=False, sort_keys=True).splitlines()
        for answer in (expected, actual)
    )
    return "\n".join(difflib.unified_diff(left, right, "vLLM's own server", "the gateway", lineterm="", n=4))


def _plain(value: Any, left_out: frozenset[str]) -> Any:
    if isinstance(value, dict):
        kept = ((key, _plain(item, left_out)) for key, item in value.items() if key not in left_out)
        return {key: item for key, item in kept if item not in (None, [], {})}
    if isinstance(value, list):
        return [_plain(item, left_out) for item in value]
    return value
