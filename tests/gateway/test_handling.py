from __future__ import annotations

import pytest

from smg_trio.core.errors import Unauthorized
from smg_trio.gateway.handling import check_key, failure, request_id_of

NAMES = ("x-request-id", "x-trace-id")


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer key"},
        {"authorization": "bearer key"},
        {"authorization": "Bearer  key "},
        {"x-api-key": "key"},
        {"authorization": "Basic eDp5", "x-api-key": "key"},
    ],
    ids=str,
)
def test_the_right_key_passes(headers: dict[str, str]) -> None:
    check_key("key", headers)
    check_key(" key ", headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "key"},
        {"authorization": "Bearer KEY"},
        {"authorization": "Bearer ke"},
        {"authorization": "Bearer keyy"},
        {"authorization": "Bearer key key"},
        {"authorization": "Token key"},
        {"x-api-key": ""},
        {"x-api-key": "Bearer key"},
    ],
    ids=str,
)
def test_any_other_key_does_not(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthorized):
        check_key("key", headers)


def test_without_a_key_set_everybody_passes() -> None:
    check_key(None, {})
    check_key(None, {"authorization": "Bearer anything"})


def test_a_key_that_is_not_ascii_is_compared_as_the_bytes_the_client_sent() -> None:
    check_key("schlüssel", {"authorization": "Bearer " + "schlüssel".encode().decode("latin-1")})
    with pytest.raises(Unauthorized):
        check_key("schlüssel", {"authorization": "Bearer schlussel"})


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


def test_an_error_of_ours_says_nothing_of_itself() -> None:
    response = failure(KeyError("secret detail"))
    assert response.status == 500
    assert isinstance(response.body, bytes)
    assert b"secret" not in response.body
