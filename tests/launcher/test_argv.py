from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from smg_trio.launcher.argv import drop_flags, flag_value, has_flag

WIRED = frozenset({"--model", "--headless", "-dp"})


def test_a_dropped_flag_takes_its_value_along_in_both_forms() -> None:
    assert drop_flags(["--a", "1", "--model", "m", "--b"], WIRED) == ["--a", "1", "--b"]
    assert drop_flags(["--model=m", "x"], WIRED) == ["x"]
    assert drop_flags(["-dp", "4", "--b"], WIRED) == ["--b"]


def test_a_word_that_looks_like_a_flag_is_never_taken_for_a_value() -> None:
    assert drop_flags(["--headless", "--model", "--keep", "v"], WIRED) == ["--keep", "v"]
    assert flag_value(["--model", "--keep", "v"], WIRED) is None


def test_only_one_word_is_a_value() -> None:
    assert drop_flags(["--model", "m", "stays"], WIRED) == ["stays"]


def test_underscores_in_a_name_are_dashes_as_engines_read_them() -> None:
    assert drop_flags(["--data_parallel_size=4", "--x_y", "1"], {"--data-parallel-size"}) == ["--x_y", "1"]
    assert flag_value(["--tensor_parallel_size", "2"], {"--tensor-parallel-size"}) == "2"


def test_a_longer_name_is_another_flag() -> None:
    assert drop_flags(["--model-impl", "x", "--modelled=y"], WIRED) == ["--model-impl", "x", "--modelled=y"]
    assert not has_flag(["--model-impl"], WIRED)


def test_the_last_value_counts() -> None:
    assert flag_value(["--tp", "1", "--tp=2"], {"--tp"}) == "2"
    assert flag_value(["--tp=1", "--tp"], {"--tp"}) is None
    assert flag_value([], {"--tp"}) is None
    assert has_flag(["--tp=1"], {"--tp"})


@given(st.lists(st.sampled_from(["--model", "--model=a", "--headless", "--other", "--other=b", "value", "-dp", "7"])))
def test_nothing_dropped_is_left_and_the_rest_keeps_its_order(words: list[str]) -> None:
    kept = drop_flags(words, WIRED)
    assert not has_flag(kept, WIRED)
    assert [word for word in kept if word.startswith("--o")] == [word for word in words if word.startswith("--o")]
    assert drop_flags(kept, WIRED) == kept
