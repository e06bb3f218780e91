from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.outputs import FinishReason
from smg_trio.testing.commands import EngineRequest
from smg_trio.testing.script import HANG, EchoScript, Ending, FixedScript, LengthScript, Script, play, text_script

EOS = 2


def request(**fields: Any) -> EngineRequest:
    defaults: dict[str, Any] = {"request_id": "r", "prompt_token_ids": [5, 6, 7], "max_tokens": 16}
    return EngineRequest(**defaults | fields)


def heard(script: Script, asked: EngineRequest, max_model_len: int = 1000) -> tuple[list[int], Any, Any]:
    ids: list[int] = []
    for tick in play(script, asked, max_model_len):
        ids += tick.token_ids
        if tick.finish is not None:
            return ids, tick.finish, tick.stop_reason
        if tick.hung:
            return ids, None, None
    raise AssertionError("the play ended without a finish")


def test_eos_ends_without_a_stop_reason_and_is_heard() -> None:
    script = FixedScript([[10], [EOS], [11]])
    assert heard(script, request(eos_token_id=EOS)) == ([10, EOS], FinishReason.STOP, None)


def test_a_stop_token_is_the_stop_reason_and_cuts_its_tick() -> None:
    script = FixedScript([[10, 99, 11, 12]])
    assert heard(script, request(stop_token_ids=frozenset({99}))) == ([10, 99], FinishReason.STOP, 99)


def test_eos_at_the_very_limit_is_a_stop_and_not_a_length() -> None:
    script = FixedScript([[10], [EOS]])
    assert heard(script, request(eos_token_id=EOS, max_tokens=2))[1] is FinishReason.STOP


def test_the_context_window_ends_with_length() -> None:
    ids, finish, _ = heard(LengthScript(), request(max_tokens=100), max_model_len=10)
    assert (len(ids), finish) == (7, FinishReason.LENGTH)


def test_ids_that_would_end_it_are_replaced_before_min_tokens() -> None:
    asked = request(eos_token_id=EOS, stop_token_ids=frozenset({1}), min_tokens=2)
    ids, finish, reason = heard(FixedScript([[EOS], [1], [EOS]]), asked)
    assert not {EOS, 1} & set(ids[:2])
    assert (ids[2], finish, reason) == (EOS, FinishReason.STOP, None)


def test_a_repetition_ends_when_it_was_asked_for() -> None:
    rule = {"max_pattern_size": 3, "min_pattern_size": 1, "min_count": 3}
    ids, finish, reason = heard(FixedScript([[7], [8], [8], [8], [8]]), request(repetition=rule))
    assert (ids, finish, reason) == ([7, 8, 8, 8], FinishReason.REPETITION, "repetition_detected")


def test_a_script_without_an_ending_hangs_after_its_last_tick() -> None:
    assert heard(FixedScript([[1], [3]], HANG), request()) == ([1, 3], None, None)


def test_the_scripted_ending_comes_with_the_last_tick() -> None:
    ticks = list(play(FixedScript([[1], [3]], Ending(FinishReason.ERROR)), request(), 100))
    assert (list(ticks[-1].token_ids), ticks[-1].finish) == ([3], FinishReason.ERROR)


def test_the_echo_says_the_prompt_and_eos() -> None:
    assert heard(EchoScript(), request(eos_token_id=EOS)) == ([5, 6, 7, EOS], FinishReason.STOP, None)


def test_the_echo_leaves_out_what_would_end_it() -> None:
    asked = request(prompt_token_ids=[5, EOS, 6], eos_token_id=EOS)
    assert heard(EchoScript(), asked)[0] == [5, 6, EOS]


def test_the_echo_without_eos_goes_round_to_the_limit() -> None:
    assert heard(EchoScript(tail=2), request(max_tokens=5))[:2] == ([6, 7, 6, 7, 6], FinishReason.LENGTH)


def test_a_text_is_cut_into_ticks_and_ends_with_eos() -> None:
    script = text_script([1, 3, 4], tokens_per_tick=2, eos_token_id=EOS)
    assert [list(tick) for tick in script.token_ticks] == [[1, 3], [4, EOS]]


def test_the_count_depends_on_prompt_and_seed_only() -> None:
    said = heard(LengthScript(), request(seed=1))
    assert said == heard(LengthScript(), request(request_id="other", seed=1))
    assert said[0] != heard(LengthScript(), request(seed=2))[0]
    assert said[0] != heard(LengthScript(), request(prompt_token_ids=[5, 6, 8], seed=1))[0]


def test_the_count_keeps_to_allowed_ids() -> None:
    assert set(heard(LengthScript(), request(allowed_token_ids=(40, 41)))[0]) <= {40, 41}


@settings(max_examples=150)
@given(
    ticks=st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=12),
    stops=st.frozensets(st.integers(0, 9), max_size=2),
    eos=st.none() | st.integers(0, 9),
    limit=st.integers(1, 12),
    minimum=st.integers(0, 12),
)
def test_whatever_is_proposed_the_rules_hold(
    ticks: list[list[int]], stops: frozenset[int], eos: int | None, limit: int, minimum: int
) -> None:
    minimum = min(minimum, limit)
    asked = request(max_tokens=limit, min_tokens=minimum, stop_token_ids=stops, eos_token_id=eos)
    ids, finish, reason = heard(FixedScript(ticks), asked)
    ending = stops | ({eos} if eos is not None else set())
    assert len(ids) <= limit
    assert not ending & set(ids[: max(0, minimum - 1)])
    assert all(token not in ending for token in ids[:-1])
    if reason is not None:
        assert ids[-1] == reason
        assert reason in stops
    if finish is FinishReason.LENGTH:
        assert len(ids) == limit
    assert finish is not None


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_cutting_a_script_into_ticks_never_changes_what_is_heard(size: int) -> None:
    ids = [10, 11, 12, 13, 99, 14]
    asked = request(stop_token_ids=frozenset({99}), max_tokens=6)
    cut = [ids[i : i + size] for i in range(0, len(ids), size)]
    assert heard(FixedScript(cut), asked) == ([10, 11, 12, 13, 99], FinishReason.STOP, 99)
