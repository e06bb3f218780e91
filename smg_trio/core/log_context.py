"""What a log line is about, without anybody passing it along: set once per task, inherited by the tasks it starts.

A task that outlives the request it was started for clears `request_id`.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

request_id: Final[ContextVar[str]] = ContextVar("request_id", default="")
"""The HTTP request that is being handled; empty outside of any."""
trace_id: Final[ContextVar[str]] = ContextVar("trace_id", default="")
"""The trace that the request belongs to, 32 hex digits; empty where requests are not traced."""
worker: Final[ContextVar[str]] = ContextVar("worker", default="")
"""URL of the worker whose task this is; empty elsewhere."""
