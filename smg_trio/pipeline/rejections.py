"""What it means for the client that an engine ended its request with an error. Pure."""

from __future__ import annotations

from smg_trio.core.errors import EngineRejected, EngineUnavailable, InvalidRequest, SmgError
from smg_trio.core.outputs import EngineError, FinishReason

_VALIDATION_ERROR = "validation_error"
"""vLLM's code (since 0.33) for what the request itself has wrong."""


def rejection(
    said: EngineError | None, reason: FinishReason, *, param: str | None = None, before_output: bool = False
) -> SmgError:
    """The error that stands for an engine's ERROR or ABORT finish.

    Args:
        said: the engine's words, if any.
        reason: how it ended the request.
        param: the field that holds the request's constraint on the output, if there is one. Engines before 0.33 compile
            it before the first token, and say no more than that it failed.
        before_output: nothing has been generated.
    """
    if said is not None and said.code == _VALIDATION_ERROR:
        return InvalidRequest(said.message, param=param)
    if said is not None and said.retryable:
        return EngineUnavailable(said.message)
    if said is not None and said.code:
        return EngineRejected(said.message)
    if reason is FinishReason.ERROR and param is not None and before_output:
        message = "The engine cannot compile the constraint on the output." if said is None else said.message
        return InvalidRequest(message, param=param)
    return EngineRejected(f"The engine ended the request ({reason})." if said is None else said.message)
