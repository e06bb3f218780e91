"""What is remembered of errors."""

from __future__ import annotations

import pytest

from smg_trio.core.errors import EngineDead, InvalidRequest
from smg_trio.gateway.observability.recent_errors import MAX_MESSAGE_CHARS, REMEMBERED, RecentErrors


def test_one_error_seen_in_two_places_is_remembered_once() -> None:
    errors = RecentErrors()
    error = EngineDead("gone")
    errors.note(error, "chat", model="m", worker_urls={"b", "a"})
    errors.note(error, "/v1/chat/completions")
    errors.note(EngineDead("gone"), "chat")
    assert [(one.endpoint, one.worker_urls) for one in errors.all()] == [("chat", ()), ("chat", ("a", "b"))]


def test_clients_cannot_push_our_faults_out() -> None:
    errors = RecentErrors()
    errors.note(EngineDead("gone"), "chat")
    for number in range(2 * REMEMBERED):
        errors.note(InvalidRequest(f"bad {number}"), "chat")
    seen = errors.all()
    assert len(seen) == REMEMBERED + 1
    assert (seen[-1].code, seen[0].message) == ("engine_dead", f"bad {2 * REMEMBERED - 1}")


def test_long_messages_are_cut() -> None:
    errors = RecentErrors()
    errors.note(InvalidRequest("x" * 100_000), "chat")
    assert len(errors.all()[0].message) == MAX_MESSAGE_CHARS


@pytest.mark.parametrize("error", [ValueError("a secret detail"), ExceptionGroup("g", [KeyError("secret")])])
def test_what_is_no_error_of_ours_says_nothing_of_itself(error: Exception) -> None:
    errors = RecentErrors()
    errors.note(error, "chat")
    (seen,) = errors.all()
    assert (seen.status, seen.code, seen.message) == (500, "internal_error", "internal error")
