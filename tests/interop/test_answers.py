"""The gateway's answers equal those of vLLM's own API server: text, endings, usage, logprobs, in both modes."""

from __future__ import annotations

import httpx
import pytest

from tests.interop.cases import COMPLETION_CASES, FIELD_CASES, PROMPT_CASES, Case
from tests.interop.conftest import Gateway
from tests.interop.recording import ask, difference

CASES = [*PROMPT_CASES, *FIELD_CASES, *COMPLETION_CASES]


def _same(case: Case, gateway: Gateway, reference: httpx.Client) -> None:
    expected, actual = ask(reference, case), ask(gateway.client, case)
    assert expected.status == 200, expected.body
    if case.finish is not None:
        assert expected.comparable()["body"]["choices"][0]["finish_reason"] == case.finish
    assert not (found := difference(expected, actual)), found


@pytest.mark.parametrize("case", [case for case in CASES if not case.only_streams], ids=lambda case: case.name)
def test_a_whole_answer_equals_vllms_own(case: Case, gateway: Gateway, reference: httpx.Client) -> None:
    _same(case, gateway, reference)


@pytest.mark.parametrize("case", [case for case in CASES if case.streams], ids=lambda case: case.name)
def test_a_streamed_answer_equals_vllms_own(case: Case, gateway: Gateway, reference: httpx.Client) -> None:
    _same(case.streamed(), gateway, reference)


def test_the_compared_answers_are_not_all_alike(reference: httpx.Client) -> None:
    """Guards the comparison itself: different questions do have different answers."""
    texts = {ask(reference, case).body["choices"][0]["message"]["content"] for case in PROMPT_CASES}
    assert len(texts) > len(PROMPT_CASES) * 0.7


def test_a_repeated_long_prompt_is_reported_as_cached_like_vllms_own(gateway: Gateway, reference: httpx.Client) -> None:
    words = " ".join(f"word{number}" for number in range(200))
    body = {"model": "tiny-llama", "messages": [{"role": "user", "content": words}], "max_tokens": 2}
    case = Case("repeated", body | {"temperature": 0})
    answers = [(ask(reference, case), ask(gateway.client, case)) for _ in range(2)]
    for expected, actual in answers:
        assert not (found := difference(expected, actual)), found
    cached = [expected.body["usage"]["prompt_tokens_details"]["cached_tokens"] for expected, _ in answers]
    assert cached[0] == 0
    assert cached[1] >= 128
