from __future__ import annotations

import itertools

import pytest

from smg_trio.core.outputs import FinishReason
from smg_trio.testing.commands import EngineRequest
from smg_trio.testing.notation import parse_script
from smg_trio.testing.script import HANG, FixedScript

IDS = {"a": 1, "b": 2, "c": 3, "<EOS>": 4, "<0xF0>": 5, 'say "hi"': 6, "x|y": 7, "\n": 8}
ASKED = EngineRequest(request_id="r", prompt_token_ids=[1], max_tokens=None)


def ticks(notation: str) -> list[list[int]]:
    script = parse_script(notation, IDS.__getitem__)
    assert isinstance(script, FixedScript)
    return [list(tick) for tick in script.token_ticks]


def test_bars_part_ticks_and_commas_part_tokens() -> None:
    assert ticks('E[ "a" | "b","c" | "<0xF0>" ] fin=stop(eos)') == [[1], [2, 3], [5]]


def test_marks_and_quotes_inside_a_token_are_text() -> None:
    assert ticks(r'E["say \"hi\"","x|y"|"\n"]') == [[6, 7], [8]]


def test_an_empty_script_says_nothing() -> None:
    assert ticks("E[] fin=error") == []


@pytest.mark.parametrize(
    ("word", "reason", "stop_reason"),
    [
        ("stop(eos)", FinishReason.STOP, None),
        ("stop(tok 17)", FinishReason.STOP, 17),
        ("length", FinishReason.LENGTH, None),
        ("abort", FinishReason.ABORT, None),
        ("error", FinishReason.ERROR, None),
        ("repetition", FinishReason.REPETITION, "repetition_detected"),
        ("hang", None, None),
    ],
)
def test_every_ending_has_a_word(word: str, reason: FinishReason | None, stop_reason: object) -> None:
    ending = parse_script(f'E["a"] fin={word}', IDS.__getitem__).ending
    assert (ending.reason, ending.stop_reason) == (reason, stop_reason)


def test_an_ellipsis_repeats_the_last_tick_for_ever() -> None:
    script = parse_script('E["a"|"b"|…]', IDS.__getitem__)
    assert list(itertools.islice(script.ticks(ASKED), 4)) == [[1], [2], [2], [2]]
    assert script.ending == HANG


@pytest.mark.parametrize("notation", ["", 'F["a"]', 'E["a" "', 'E["a"] fin=maybe', "E[…]", 'E["a"|…|"b"]'])
def test_what_is_no_script_is_refused(notation: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_script(notation, IDS.__getitem__)
