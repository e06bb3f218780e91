"""What vLLM's own API server refuses the gateway refuses too, and what it takes the gateway takes."""

from __future__ import annotations

import httpx
import pytest

from tests.interop.borders import BORDER_CASES, DIFFERENT
from tests.interop.cases import Case
from tests.interop.conftest import Gateway
from tests.interop.recording import ask, difference


@pytest.mark.parametrize(
    "case", [case for case in BORDER_CASES if case.name not in DIFFERENT], ids=lambda case: case.name
)
def test_the_border_of_what_is_accepted_is_vllms_own(case: Case, gateway: Gateway, reference: httpx.Client) -> None:
    expected, actual = ask(reference, case), ask(gateway.client, case)
    assert actual.status == expected.status, f"{expected.body}\n{actual.body}"
    if expected.status == 200:
        assert not (found := difference(expected, actual)), found
    else:
        _is_an_error_body(actual.body)


@pytest.mark.parametrize("case", [case for case in BORDER_CASES if case.name in DIFFERENT], ids=lambda case: case.name)
def test_a_known_difference_from_vllms_own_is_as_written_down(
    case: Case, gateway: Gateway, reference: httpx.Client
) -> None:
    theirs, ours, _ = DIFFERENT[case.name]
    expected, actual = ask(reference, case), ask(gateway.client, case)
    assert (expected.status, actual.status) == (theirs, ours), f"{expected.body}\n{actual.body}"
    if actual.status != 200:
        _is_an_error_body(actual.body)


def _is_an_error_body(body: object) -> None:
    assert isinstance(body, dict)
    assert set(body) == {"error"}
    error = body["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert isinstance(error["message"], str)
    assert error["message"]
