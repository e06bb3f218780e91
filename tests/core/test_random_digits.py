"""Random digits out of a pool."""

from __future__ import annotations

from smg_trio.core.random_digits import RandomDigits


def test_every_draw_has_the_asked_number_of_hex_digits_and_none_comes_twice() -> None:
    draw = RandomDigits().take
    drawn = [draw(size) for _ in range(2_000) for size in (24, 32)]
    assert all(len(one) == size for one, size in zip(drawn, [24, 32] * 2_000, strict=True))
    assert set("".join(drawn)) == set("0123456789abcdef")
    assert len(set(drawn)) == len(drawn)


def test_two_pools_have_nothing_in_common() -> None:
    assert RandomDigits().take(32) != RandomDigits().take(32)
