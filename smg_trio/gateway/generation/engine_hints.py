"""What a request's headers say to the engine: where it is in a trace, and the data-parallel rank it is for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from smg_trio.api.parameters.fields import refuse
from smg_trio.pipeline.prepare import NO_HINTS, EngineHints

if TYPE_CHECKING:
    from smg_trio.gateway.http import Request
    from smg_trio.gateway.state import Gateway

logger = logging.getLogger("smg_trio.gateway")

RANK_HEADER: Final = "x-data-parallel-rank"
"""vLLM's own name for it."""
_MAX_RANK_DIGITS: Final = 9


def engine_hints(gateway: Gateway, request: Request, rank: int | None = None) -> EngineHints:
    """Everything that is said beside the body; `rank` is what the body says, which wins.

    Raises InvalidRequest for a rank that is not a number.
    """
    asked = request.headers.get(RANK_HEADER)
    if asked is not None and rank is None:
        rank = _rank(asked)
    headers = trace_headers(gateway, request)
    return NO_HINTS if rank is None and headers is None else EngineHints(headers, rank)


def trace_headers(gateway: Gateway, request: Request) -> Mapping[str, str] | None:
    """Where the engine's spans belong; None where requests are not traced.

    A client's trace context goes on only where they are (as vLLM's own server has it): the engine repeats it in every
    output, and no other engine could make use of it.
    """
    if request.context.trace is not None:
        return request.context.trace.headers()
    if "traceparent" in request.headers and not gateway.told_of_traces:
        gateway.told_of_traces = True
        logger.info("a request has a trace context, which is not used without --enable-trace")
    return None


def _rank(text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_RANK_DIGITS):
        raise refuse("X-data-parallel-rank", "expected the number of a rank")
    return int(digits)
