"""The constant part of one response, and the response object in all its states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from smg_trio.api.chat_answer import make_tool_call_id
from smg_trio.api.errors import error_view
from smg_trio.api.openai.responses.items import MakeId, make_item_id

if TYPE_CHECKING:
    from smg_trio.api.openai.raw_messages import RawMessages
    from smg_trio.api.openai.responses.tools import DeclaredTool
    from smg_trio.core.conversations import Item
    from smg_trio.core.events import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseAnswer:
    """What is known of a response before its first token.

    Attributes:
        response_id: ``resp_...``.
        model: the name the client asked for.
        created_at: seconds since the epoch.
        shown: the members that repeat the request (`ResponsesRequest.shown`).
        max_output_tokens, temperature, top_p, presence_penalty, frequency_penalty: as resolved for the engine.
        show_reasoning: False hides reasoning.
        top_logprobs: candidates shown per token; log probabilities are shown if updates have them.
        raw_messages: shown if not None.
        declared_tools: names of functions to what the client declared, see `tools`.
        mcp_labels: of the MCP servers that this gateway calls.
        make_id: makes item ids out of their prefix.
        make_call_id: makes ids for calls whose format carries none.
    """

    response_id: str
    model: str
    created_at: int
    shown: Mapping[str, Any] = field(default_factory=dict)
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    parallel_tool_calls: bool = True
    show_reasoning: bool = True
    top_logprobs: int = 0
    raw_messages: RawMessages | None = None
    declared_tools: Mapping[str, DeclaredTool] = field(default_factory=dict)
    mcp_labels: Sequence[str] = ()
    make_id: MakeId = make_item_id
    make_call_id: Callable[[], str] = make_tool_call_id

    def not_stored(self) -> ResponseAnswer:
        """The same of a response that is not kept, whatever the request wanted."""
        return replace(self, shown={**self.shown, "store": False})


@dataclass(frozen=True, slots=True)
class ResponseEnd:
    """How a response ended: ``status``, and the members that say why."""

    status: str
    incomplete_reason: str | None = None
    error: Mapping[str, Any] | None = None

    @property
    def event(self) -> str:
        """The name of the event that says so."""
        return f"response.{self.status}" if self.status in ("completed", "incomplete") else "response.failed"


def failed_end(exc: BaseException) -> ResponseEnd:
    """The end of a response that failed, in the few error codes that the API has."""
    view = error_view(exc)
    if view.status == 429:
        code = "rate_limit_exceeded"
    else:
        code = "invalid_prompt" if view.status < 500 else "server_error"
    return ResponseEnd("failed", error={"code": code, "message": view.message})


def response_usage(usage: Usage) -> dict[str, Any]:
    """The ``usage`` object; the API's details are never absent, so what is not known is 0."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def response_value(
    answer: ResponseAnswer,
    end: ResponseEnd,
    output: Sequence[Item] = (),
    usage: Usage | None = None,
    further: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The response object in any state: ``queued``, ``in_progress`` or ended; `further` members at its end."""
    reason = end.incomplete_reason
    value: dict[str, Any] = {
        "id": answer.response_id,
        "object": "response",
        "created_at": answer.created_at,
        "status": end.status,
        "error": end.error,
        "incomplete_details": None if reason is None else {"reason": reason},
        "model": answer.model,
        "output": list(output),
        **answer.shown,
        "max_output_tokens": answer.max_output_tokens,
        "temperature": answer.temperature,
        "top_p": answer.top_p,
        "presence_penalty": answer.presence_penalty,
        "frequency_penalty": answer.frequency_penalty,
        "usage": None if usage is None else response_usage(usage),
    }
    return value if further is None else value | dict(further)
