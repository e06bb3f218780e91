"""One choice's decoder: whatever the cut into outputs, the same text, end and count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.errors import EngineRejected
from smg_trio.core.events import ChoiceUpdate, ContentDelta
from smg_trio.core.outputs import EngineError, FinishReason, GenerationOutput, PositionLogprobs
from smg_trio.parsers.registry import make_answer_parser
from smg_trio.pipeline.decode import ChoiceDecoder, DecodeOptions
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.text.model_files import load_model_text

TEXT = load_model_text(DEMO_MODEL)
TOKENIZER = TEXT.tokenizer
EOS = TEXT.eos_token_ids[0]
PROMPT = TOKENIZER.encode("hi there")


def decoder(**options: object) -> ChoiceDecoder:
    return ChoiceDecoder(0, TOKENIZER, PROMPT, DecodeOptions(**options))  # type: ignore[arg-type]


def text_of(updates: Iterable[ChoiceUpdate]) -> str:
    return "".join(event.text for update in updates for event in update.events if isinstance(event, ContentDelta))


def play(one: ChoiceDecoder, outputs: Sequence[GenerationOutput], batch: int) -> list[ChoiceUpdate]:
    """Push the outputs, `batch` at a time, up to the end."""
    updates: list[ChoiceUpdate] = []
    start = 0
    while start < len(outputs) and not one.finished:
        updates.append(one.push(outputs[start : start + batch]))
        start += batch
    return updates


def cut(ids: Sequence[int], sizes: Sequence[int], reason: FinishReason | None) -> list[GenerationOutput]:
    """The ids as outputs of these sizes (repeated as needed); the last one has the finish."""
    outputs, start, index = [], 0, 0
    while start < len(ids):
        size = sizes[index % len(sizes)]
        outputs.append(GenerationOutput(list(ids[start : start + size])))
        start += size
        index += 1
    if not outputs:
        outputs.append(GenerationOutput([]))
    outputs[-1].finish_reason = reason
    return outputs


ids = st.lists(
    st.integers(0, TOKENIZER.vocab_size - 1).filter(lambda token: token not in TEXT.eos_token_ids), max_size=30
)
sizes = st.lists(st.integers(1, 5), min_size=1, max_size=4)
stops = st.lists(st.text(alphabet="aetn .\n", min_size=1, max_size=3), max_size=3)


@settings(max_examples=60, deadline=None)
@given(ids=ids, sizes=sizes, stop=stops, include=st.booleans(), skip=st.booleans(), batch=st.integers(1, 4))
def test_the_cut_into_outputs_never_shows(
    ids: list[int], sizes: list[int], stop: list[str], include: bool, skip: bool, batch: int
) -> None:
    options = {"stop": tuple(stop), "include_stop": include, "skip_special_tokens": skip}
    one_by_one, other = decoder(**options), decoder(**options)
    expected = play(one_by_one, cut([*ids, EOS], [1], FinishReason.STOP), 1)
    found = play(other, cut([*ids, EOS], sizes, FinishReason.STOP), batch)
    assert text_of(found) == text_of(expected)
    assert [update.finish for update in found if update.finish] == [
        update.finish for update in expected if update.finish
    ]
    assert other.completion_tokens >= one_by_one.completion_tokens
    if not any(update.finish and update.finish.stop_reason for update in expected):
        assert other.completion_tokens == one_by_one.completion_tokens == len(ids) + 1
        if not include:
            assert text_of(found) == TOKENIZER.decode(ids, skip_special_tokens=skip)


@settings(max_examples=30, deadline=None)
@given(ids=ids, sizes=sizes)
def test_ends_other_than_stop_show_every_token(ids: list[int], sizes: list[int]) -> None:
    one = decoder()
    found = [one.push([output]) for output in cut(ids, sizes, FinishReason.LENGTH)]
    assert text_of(found) == TOKENIZER.decode(ids)
    assert one.completion_tokens == len(ids)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def test_outputs_after_the_end_are_dropped() -> None:
    one = decoder(stop=(" b",))
    first = one.push([GenerationOutput(encode("a")), GenerationOutput(encode(" b")), GenerationOutput(encode(" c"))])
    assert (text_of([first]), one.finished, one.completion_tokens) == ("a", True, 2)


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.ABORT])
def test_an_end_that_the_engine_did_not_want_is_an_error(reason: FinishReason) -> None:
    with pytest.raises(EngineRejected, match="it says so"):
        decoder().push([GenerationOutput(encode("a"), reason, error=EngineError("it says so"))])


@pytest.mark.parametrize(
    ("stop_reason", "own", "last", "shown"),
    [
        (None, frozenset(), EOS, None),
        (EOS, frozenset(), EOS, None),
        (7, frozenset({7}), 7, 7),
        (None, frozenset({7}), 7, 7),
        (7, frozenset({8}), 7, None),
        ("repetition_detected", frozenset(), 9, "repetition_detected"),
    ],
)
def test_only_the_client_s_own_stop_token_is_a_stop_reason(
    stop_reason: int | str | None, own: frozenset[int], last: int, shown: int | str | None
) -> None:
    one = decoder(stop_token_ids=own)
    update = one.push([GenerationOutput([5, last], FinishReason.STOP, stop_reason)])
    assert update.finish is not None
    assert update.finish.stop_reason == shown
    assert text_of([update]) == TOKENIZER.decode([5])


@given(ids=ids, sizes=sizes, batch=st.integers(1, 4), asked=st.none() | st.integers(0, 2))
def test_the_short_way_says_what_the_long_way_says(
    ids: list[int], sizes: list[int], batch: int, asked: int | None
) -> None:
    outputs = cut(ids, sizes, None)
    for output in outputs:
        output.logprobs = [PositionLogprobs([token, 5, 6], [-1.0, -2.0, -3.0], 1) for token in output.token_ids]
    short, long = decoder(logprobs=asked), decoder(logprobs=asked)
    assert short.plain
    for start in range(0, len(outputs), batch):
        some = outputs[start : start + batch]
        update = long.push(some)
        shown = short.push_plain([(0, output) for output in some])
        assert shown is not None
        assert shown == (text_of([update]), update.logprobs)
        assert short.completion_tokens == long.completion_tokens
    outputs[-1].finish_reason = FinishReason.LENGTH
    assert short.push_plain([(0, output) for output in outputs]) is None


def test_prompt_logprobs_that_come_in_pieces_are_handed_out_once_with_the_first_token() -> None:
    one = decoder(prompt_logprobs=0)
    position = PositionLogprobs([3], [-0.5], 1)
    early = one.push([GenerationOutput([], prompt_logprobs=[position, position])])
    assert early.prompt_logprobs is None
    full = one.push([GenerationOutput([5], prompt_logprobs=[position])])
    assert full.prompt_logprobs is not None
    assert [entry is None for entry in full.prompt_logprobs] == [True, False, False, False]
    assert one.push([GenerationOutput([6])]).prompt_logprobs is None


def test_nothing_but_the_prompt_shows_nothing_of_the_one_token_the_engine_makes() -> None:
    one = decoder(prompt_only=True)
    update = one.push([GenerationOutput([5], FinishReason.LENGTH)])
    assert (text_of([update]), one.completion_tokens) == ("", 0)
    assert update.finish is not None
    assert update.finish.reason is FinishReason.LENGTH


@pytest.mark.parametrize("sizes", [[1], [2], [5], [9]])
def test_a_stop_within_min_tokens_does_not_count(sizes: list[int]) -> None:
    ids = [token for piece in ("a", ".", "b", ".", "c") for token in encode(piece)]
    one = decoder(stop=(".",), min_tokens=3)
    assert text_of(one.push([output]) for output in cut(ids, sizes, FinishReason.LENGTH)) == "a.b"


@pytest.mark.parametrize("sizes", [[1], [2], [3, 1], [50]])
@pytest.mark.parametrize("stop", ["", "six", "two"])
@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_the_tokens_of_a_thought_are_counted_whatever_the_cut(
    sizes: list[int], stop: str, reason: FinishReason
) -> None:
    thought = TOKENIZER.encode("<think>one two three</think>")
    said = [*thought, *TOKENIZER.encode("four five six"), *([EOS] if reason is FinishReason.STOP else [])]
    options = DecodeOptions(stop=(stop,) if stop else (), counts_reasoning=True)
    one = ChoiceDecoder(0, TOKENIZER, PROMPT, options, make_answer_parser("base", "qwen"))
    play(one, cut(said, sizes, reason), 1)
    expected = thought[1 : thought.index(TOKENIZER.encode(" two")[0]) + 1] if stop == "two" else thought[1:]
    assert one.reasoning_tokens == len(expected)


@pytest.mark.parametrize("sizes", [[1], [2], [50]])
def test_a_thought_that_was_cut_is_counted_to_the_end(sizes: list[int]) -> None:
    thought = TOKENIZER.encode("<think>one two three")
    one = ChoiceDecoder(0, TOKENIZER, PROMPT, DecodeOptions(counts_reasoning=True), make_answer_parser("base", None))
    play(one, cut(thought, sizes, FinishReason.LENGTH), 1)
    assert one.reasoning_tokens == len(thought) - 1
