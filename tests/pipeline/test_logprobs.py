from __future__ import annotations

import math

from smg_trio.core.outputs import PositionLogprobs
from smg_trio.pipeline.logprobs import MIN_LOGPROB, LogprobTranslator, translate_prompt
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.text.model_files import load_model_text

TOKENIZER = load_model_text(DEMO_MODEL).tokenizer
A, B, C = (TOKENIZER.encode(letter)[0] for letter in "ABC")


def test_no_candidates_are_shown_unless_asked() -> None:
    [entry] = LogprobTranslator(TOKENIZER, 0).translate([PositionLogprobs([A, B, C], [-0.5, -0.1, -2.0], 2)])
    assert (entry.token, entry.logprob, entry.rank, entry.top) == ("A", -0.5, 2, [])


def test_a_row_wider_than_asked_is_cut_in_rank_order() -> None:
    row = PositionLogprobs([A, B, C], [-0.5, -0.1, -0.2], 3)
    for top, shown in ((1, ["B"]), (2, ["B", "C"]), (5, ["B", "C"]), (-1, ["B", "C"])):
        [entry] = LogprobTranslator(TOKENIZER, top).translate([row])
        assert (entry.token, [one.token for one in entry.top]) == ("A", shown)


def test_minus_infinity_is_a_number_that_json_has() -> None:
    [entry] = LogprobTranslator(TOKENIZER, 0).translate([PositionLogprobs([A], [-math.inf], 0)])
    assert entry.logprob == MIN_LOGPROB


def test_the_tokens_of_a_split_character_show_it_once_and_their_own_bytes_each() -> None:
    ids = TOKENIZER.encode("😀")
    assert len(ids) > 1
    entries = LogprobTranslator(TOKENIZER, 0).translate([PositionLogprobs([token], [-1.0], 1) for token in ids])
    assert [entry.token for entry in entries] == [""] * (len(ids) - 1) + ["😀"]
    assert b"".join(entry.raw for entry in entries) == "😀".encode()


def test_tokens_outside_the_vocabulary_have_no_text() -> None:
    [entry] = LogprobTranslator(TOKENIZER, 0).translate([PositionLogprobs([10**6], [-1.0], 1)])
    assert (entry.token, entry.raw) == ("", b"")


def test_the_first_token_of_a_prompt_has_no_logprob() -> None:
    entries = translate_prompt(TOKENIZER, [PositionLogprobs([B], [-1.0], 1)], 0)
    assert entries[0] is None
    assert entries[1] is not None
    assert entries[1].token == "B"
