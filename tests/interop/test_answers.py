"""The gateway's answers equal those of vLLM's own API server: text, endings, usage, logprobs, in both modes."""

from __future__ import annotations

import httpx
import pytest

from tests.interop.cases import BYTE_CASES, COMPLETION_CASES, FIELD_CASES, PROMPT_CASES, Case, brief
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


@pytest.mark.parametrize("case", BYTE_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_tokens_of_single_bytes_differ_from_vllms_own_in_their_bytes_alone(
    case: Case, stream: bool, gateway: Gateway, reference: httpx.Client
) -> None:
    case = case.streamed() if stream else case
    expected, actual = ask(reference, case), ask(gateway.client, case)
    found = difference(expected, actual, without=frozenset({"content", "bytes"}))
    assert not found, found
    [choice] = actual.whole()["choices"]
    text = choice["message"]["content"]
    if "logprobs" not in choice or not choice["logprobs"]:
        assert "\ufffd" in text
        return
    tokens = choice["logprobs"]["content"][: -1 if choice["finish_reason"] == "stop" else None]
    own = b"".join(bytes(token["bytes"]) for token in tokens)
    assert own.decode(errors="replace") == text


def test_continuous_usage_counts_up_to_the_total_as_vllms_own_does(gateway: Gateway, reference: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    case = brief("continuous", stream_options=options, stream=True)
    for client in (reference, gateway.client):
        chunks = ask(client, case).body
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts[0] == 0
        assert counts == sorted(counts)
        assert counts[-1] == counts[-2] == 16
        assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {chunks[-1]["usage"]["prompt_tokens"]}


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
