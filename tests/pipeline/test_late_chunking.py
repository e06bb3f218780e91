"""Which part of a text each chunk of its tokens is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.errors import EngineRejected, InvalidRequest
from smg_trio.pipeline.late_chunking import chunks_of, rows_of
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.text.model_files import load_model_text

TOKENIZER = load_model_text(DEMO_MODEL).tokenizer


@given(st.text(alphabet="ab \n.é漢😀", min_size=1, max_size=60), st.integers(1, 9))
def test_chunks_cover_all_tokens_once_and_their_texts_in_order_are_the_text(text: str, size: int) -> None:
    ids = TOKENIZER.encode(text)
    chunks = chunks_of(TOKENIZER, text, ids, size, add_special_tokens=False)
    ranges = [chunk.token_range for chunk in chunks]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == len(ids)
    assert all(end - start == size for start, end in ranges[:-1])
    assert all(first[1] == second[0] for first, second in itertools.pairwise(ranges))
    written = [chunk.char_range for chunk in chunks if chunk.char_range is not None]
    assert written[0][0] == 0
    assert written[-1][1] == len(text)
    # A character of several tokens may belong to two chunks; none is left out.
    assert all(second[0] <= first[1] for first, second in itertools.pairwise(written))


def test_a_chunk_longer_than_the_text_is_the_text() -> None:
    ids = TOKENIZER.encode("the sea")
    assert chunks_of(TOKENIZER, "the sea", ids, 1 << 62, add_special_tokens=False) == [((0, len(ids)), (0, 7))]


def test_other_tokens_than_the_text_s_are_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        chunks_of(TOKENIZER, "the sea", [1, 2], 1, add_special_tokens=False)
    assert caught.value.param == "input"


def test_values_are_rows_or_the_engine_s_fault() -> None:
    assert rows_of([1.0, 2.0, 3.0, 4.0], 2) == [[1.0, 2.0], [3.0, 4.0]]
    for values in ([], [1.0, 2.0, 3.0]):
        with pytest.raises(EngineRejected):
            rows_of(values, 2)
