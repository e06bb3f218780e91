"""What hooks see of a request and of its answer, and what they may do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """A request whose body has been read, before anything is made of it.

    Attributes:
        request_id: its id in logs and in the header ``x-request-id``.
        path: of the API that is asked.
        model: that the body names; empty if it names none.
        body: the JSON object; not to be changed in place, see `Changes`.
        headers: by lower-case name; the key is not among them.
        identity: name of whose key it came with; empty where no key is needed.
        options: of ``--plugin-option NAME.key=value``, by key.
    """

    request_id: str
    path: str
    model: str = ""
    body: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    headers: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    identity: str = ""
    options: Mapping[str, str] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Do not serve the request: answer with this status (400 to 599), code and message."""

    status: int
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Serve the request, changed.

    Attributes:
        model: asks for this one.
        body: fields of the body that get these values.
        remove: fields of the body that are left out.
        routing_key: the session that it belongs to, for policies that keep sessions together.
    """

    model: str | None = None
    body: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    remove: Sequence[str] = ()
    routing_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerView:
    """A generation that has ended, complete or not.

    Attributes:
        request_id: as in `RequestView`.
        endpoint: which API was asked, in a word: ``chat``, ``completions``, ``messages``, …
        model: that answered.
        identity: as in `RequestView`.
        status: ``ok``, ``failed`` (an error ended it) or ``left`` (the client did).
        error: the code of that error; empty without.
        streaming: whether the client got the answer piece by piece.
        prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens: counts; None where nobody counts them.
        started: when the request came, seconds since the epoch.
        first_output_s: from then to the first output, in seconds; None if there was none.
        duration_s: from then to the end, in seconds.
        workers: URLs of the workers that answered.
        text: of each choice, content alone; empty without ``--hook-text``.
        options: of ``--plugin-option NAME.key=value``, by key.
    """

    request_id: str
    endpoint: str
    model: str
    identity: str = ""
    status: str = "ok"
    error: str = ""
    streaming: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    started: float = 0.0
    first_output_s: float | None = None
    duration_s: float = 0.0
    workers: Sequence[str] = ()
    text: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
