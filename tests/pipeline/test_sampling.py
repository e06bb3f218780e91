"""What the client says, the model's defaults and the context window become engine terms as vLLM's server does it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smg_trio.api.parameters.sampling import SamplingFields
from smg_trio.core.errors import InvalidRequest
from smg_trio.core.requests import SamplingParams
from smg_trio.pipeline.answer import with_seed_of
from smg_trio.pipeline.sampling import resolve_max_tokens, resolve_sampling
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.text.model_files import ModelText, load_model_text

TEXT = load_model_text(DEMO_MODEL)
EOS, EXTRA_EOS = TEXT.eos_token_ids


def resolve(fields: SamplingFields | None = None, text: ModelText = TEXT) -> SamplingParams:
    return resolve_sampling(fields or SamplingFields(), text, prompt_length=10, max_model_len=100)


def test_the_client_wins_over_the_model_and_the_model_over_the_engine() -> None:
    text = replace(TEXT, default_sampling={"temperature": 0.5, "top_k": 20})
    silent = resolve(text=text)
    assert (silent.temperature, silent.top_k, silent.top_p) == (0.5, 20, 1.0)
    asked = resolve(SamplingFields(temperature=0.0, top_k=0), text)
    assert (asked.temperature, asked.top_k) == (0.0, 0)
    assert resolve().temperature == 1.0


def test_a_model_s_top_k_of_minus_one_is_off() -> None:
    assert resolve(text=replace(TEXT, default_sampling={"top_k": -1})).top_k == 0


@pytest.mark.parametrize(
    ("asked", "default", "given"),
    [
        (None, None, 90),
        (5, None, 5),
        (95, None, 90),
        (100, None, 90),
        (None, 7, 7),
        (50, 7, 7),
        (3, 7, 3),
        (None, 500, 90),
    ],
)
def test_the_smallest_limit_on_tokens_wins(asked: int | None, default: int | None, given: int) -> None:
    fields = SamplingFields(max_tokens=asked)
    assert resolve_max_tokens(fields, default=default, prompt_length=10, max_model_len=100) == given


def test_more_than_the_whole_window_is_refused_by_the_name_it_came_under() -> None:
    fields = SamplingFields(max_tokens=101, max_tokens_param="max_completion_tokens")
    with pytest.raises(InvalidRequest) as refused:
        resolve_max_tokens(fields, default=None, prompt_length=10, max_model_len=100)
    assert refused.value.param == "max_completion_tokens"
    assert "100" in refused.value.message


def test_a_bound_above_the_window_is_cut_to_it() -> None:
    fields = SamplingFields(max_tokens=64_000, max_tokens_is_bound=True)
    assert resolve_max_tokens(fields, default=None, prompt_length=10, max_model_len=100) == 90


def test_all_end_tokens_go_to_the_engine_unless_they_are_to_be_ignored() -> None:
    usual = resolve(SamplingFields(stop_token_ids=(5,)))
    assert usual.eos_token_id == EOS
    assert usual.stop_token_ids == (5, EXTRA_EOS)
    assert usual.all_stop_token_ids == {5, EOS, EXTRA_EOS}
    ignoring = resolve(SamplingFields(stop_token_ids=(5,), ignore_eos=True))
    assert ignoring.eos_token_id is None
    assert ignoring.stop_token_ids == (5,)
    assert ignoring.all_stop_token_ids == {5, EOS, EXTRA_EOS}  # what min_tokens masks


def test_bad_words_become_token_sequences() -> None:
    words = resolve(SamplingFields(bad_words=("the",))).bad_words_token_ids
    assert words is not None
    assert {TEXT.tokenizer.decode(ids).strip() for ids in words} == {"the"}


def test_kv_transfer_params_travel_among_the_extra_arguments() -> None:
    extra = resolve(SamplingFields(kv_transfer_params={"a": 1}, extra_args={"b": 2})).extra_args
    assert extra == {"b": 2, "kv_transfer_params": {"a": 1}}


@pytest.mark.parametrize(
    ("seed", "choice", "own"),
    [(None, 3, None), (7, 0, 7), (7, 3, 10), (2**63 - 1, 1, -(2**63)), (-1 - 2**62, 1, -(2**62))],
)
def test_each_choice_has_a_seed_of_its_own_within_64_bits(seed: int | None, choice: int, own: int | None) -> None:
    assert with_seed_of(SamplingParams(max_tokens=1, seed=seed), choice).seed == own
