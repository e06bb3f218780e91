"""What a request's headers say to the engine: its place in a trace, and the data-parallel rank it is for."""

from __future__ import annotations

import logging
from typing import Final

from smg_trio.api.parameters.fields import refuse
from smg_trio.gateway.http import Request
from smg_trio.gateway.observability.current_trace import current
from smg_trio.gateway.state import Gateway
from smg_trio.pipeline.prepare import NO_HINTS, EngineHints

logger = logging.getLogger("smg_trio.gateway")

RANK_HEADER: Final = "x-data-parallel-rank"
"""vLLM's own name for it."""
_MAX_RANK_DIGITS: Final = 9


def engine_hints(gateway: Gateway, request: Request, rank: int | None = None) -> EngineHints:
    """Everything that is said beside the body; `rank` is what the body says, which wins.

    A client's trace context goes on only where requests are traced (as vLLM's own server has it): the engine repeats
    it in every output, and nobody else could make use of it. Raises InvalidRequest for a rank that is no number.
    """
    headers = request.headers
    trace = current.get()
    asked = headers.get(RANK_HEADER)
    if asked is not None and rank is None:
        rank = _rank(asked)
    if trace is not None:
        return EngineHints(trace_headers=trace.headers(), rank=rank)
    if "traceparent" in headers and not gateway.told_of_traces:
        gateway.told_of_traces = True
        logger.info("a request has a trace context, which is not used without --enable-trace")
    return NO_HINTS if rank is None else EngineHints(rank=rank)


def _rank(text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_RANK_DIGITS):
        raise refuse("X-data-parallel-rank", "expected the number of a rank")
    return int(digits)
