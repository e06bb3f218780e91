"""The trace of the request being handled, for whoever has something to say in it. Knows nothing of OpenTelemetry, which
is imported only where requests are traced (`gateway.observability.tracing`).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from smg_trio.gateway.observability.tracing import RequestTrace

current: Final[ContextVar[RequestTrace | None]] = ContextVar("trace", default=None)
"""None outside of requests, and always where requests are not traced."""
