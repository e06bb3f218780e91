from __future__ import annotations

import pytest

from smg_trio.gateway.handling import request_id_of

NAMES = ("x-request-id", "x-trace-id")


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"x-request-id": "a"}, "a"),
        ({"x-trace-id": "b"}, "b"),
        ({"x-request-id": "a", "x-trace-id": "b"}, "a"),
        ({"x-request-id": "", "x-trace-id": "b"}, "b"),
        ({"x-request-id": "x" * 257, "x-trace-id": "b"}, "b"),
        ({"x-request-id": "tab\there", "x-trace-id": "b"}, "b"),
        ({"x-request-id": "é", "x-trace-id": "b"}, "b"),
    ],
    ids=str,
)
def test_the_first_usable_request_id_wins(headers: dict[str, str], found: str) -> None:
    assert request_id_of(headers, NAMES) == (found, True)


def test_without_a_usable_one_a_new_id_is_made() -> None:
    made = [request_id_of({"other": "x"}, NAMES) for _ in range(50)]
    assert len(set(made)) == 50
    assert not any(named for _, named in made)
