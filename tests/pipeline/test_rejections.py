"""What an engine's error finish is for the client."""

from __future__ import annotations

import pytest

from smg_trio.core.errors import EngineRejected, EngineUnavailable, InvalidRequest, SmgError
from smg_trio.core.outputs import EngineError, FinishReason
from smg_trio.pipeline.rejections import rejection

ERROR, ABORT = FinishReason.ERROR, FinishReason.ABORT
PAUSED = EngineError("Generation is paused.", "engine_paused", retryable=True)
INVALID = EngineError("Invalid structured outputs: x", "validation_error")


@pytest.mark.parametrize(
    ("said", "reason", "param", "before_output", "kind", "message"),
    [
        (INVALID, ERROR, None, True, InvalidRequest, "Invalid structured outputs: x"),
        (INVALID, ERROR, "response_format", False, InvalidRequest, "Invalid structured outputs: x"),
        (PAUSED, ERROR, None, True, EngineUnavailable, "Generation is paused."),
        (PAUSED, ERROR, "response_format", True, EngineUnavailable, "Generation is paused."),
        (EngineError("lost", "internal"), ERROR, "response_format", True, EngineRejected, "lost"),
        (EngineError("lost"), ERROR, None, True, EngineRejected, "lost"),
        (None, ERROR, "response_format", True, InvalidRequest, "cannot compile the constraint"),
        (EngineError("why"), ERROR, "response_format", True, InvalidRequest, "why"),
        (None, ERROR, "response_format", False, EngineRejected, "ended the request"),
        (None, ABORT, "response_format", True, EngineRejected, "ended the request"),
        (None, ERROR, None, True, EngineRejected, "ended the request"),
    ],
)
def test_an_error_finish_becomes_an_error_of_its_kind(
    said: EngineError | None,
    reason: FinishReason,
    param: str | None,
    before_output: bool,
    kind: type[SmgError],
    message: str,
) -> None:
    error = rejection(said, reason, param=param, before_output=before_output)
    assert type(error) is kind
    assert message in error.message
    if isinstance(error, InvalidRequest):
        assert error.param == param


def test_only_what_is_retryable_is_worth_another_attempt() -> None:
    assert rejection(PAUSED, ERROR).retryable
    assert (rejection(PAUSED, ERROR).status, rejection(INVALID, ERROR).status) == (503, 400)
    assert not rejection(INVALID, ERROR).retryable
    assert not rejection(EngineError("lost", "internal"), ERROR).retryable
