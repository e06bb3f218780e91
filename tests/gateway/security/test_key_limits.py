"""What a key holder may use: places and tokens, on a clock that the test sets."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.errors import RateLimited
from smg_trio.gateway.security.key_limits import KeyMeters, KeySlot
from smg_trio.gateway.security.key_ring import KeyHolder, KeyLimits


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def holder(concurrent: int | None = None, tokens: int | None = None, name: str = "alice") -> KeyHolder:
    return KeyHolder(name, limits=KeyLimits(concurrent, tokens), identity=name)


def refused(meters: KeyMeters, who: KeyHolder) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        meters.of(who).enter()
    return caught.value


def test_a_holder_has_so_many_places_and_each_comes_back() -> None:
    meters, alice = KeyMeters(Clock()), holder(2)
    places = [meters.of(alice).enter() for _ in range(2)]
    error = refused(meters, alice)
    assert error.message == (
        "Rate limit reached for key alice on concurrent requests: limit 2, in flight 2. Try again in 1s."
    )
    places[0].close()
    with meters.of(alice).enter():
        refused(meters, alice)
    meters.of(alice).enter()
    refused(meters, alice)


def test_a_place_is_free_when_the_last_of_those_who_hold_it_lets_go() -> None:
    meters, alice = KeyMeters(Clock()), holder(1)
    place = meters.of(alice).enter()
    again = place.hold()
    place.close()
    refused(meters, alice)
    again.close()
    assert meters.of(alice).in_flight == 0
    meters.of(alice).enter()


def test_tokens_come_back_with_time_and_the_wait_is_true() -> None:
    clock = Clock()
    meters, alice = KeyMeters(clock), holder(tokens=60)
    with meters.of(alice).enter() as place:
        place.use(30)
    with meters.of(alice).enter() as place:
        place.use(20 + 100)
    error = refused(meters, alice)
    assert error.message == (
        "Rate limit reached for key alice on tokens per minute: limit 60, overdrawn by 90. Try again in 91s."
    )
    assert error.retry_after_s == 91
    clock.now += 89
    refused(meters, alice)
    clock.now += 2
    meters.of(alice).enter()


def test_holders_do_not_share_and_everybody_without_a_name_does() -> None:
    meters = KeyMeters(Clock())
    meters.of(holder(1, name="alice")).enter()
    meters.of(holder(1, name="bob")).enter()
    nobody = KeyHolder("", limits=KeyLimits(1))
    meters.of(nobody).enter()
    assert refused(meters, nobody).message.startswith("Rate limit reached on concurrent requests: limit 1,")


def test_a_holder_known_again_keeps_what_it_has_used_under_other_limits() -> None:
    clock = Clock()
    meters = KeyMeters(clock)
    place = meters.of(holder(2, 60)).enter()
    place.use(100)
    assert "overdrawn by 40" in refused(meters, holder(2, 60)).message
    # 60 more a minute pay the debt, and leave 20.
    other = holder(1, 120)
    assert "concurrent requests: limit 1" in refused(meters, other).message
    place.close()
    assert dict(meters.of(other).headers())["x-ratelimit-remaining-tokens"] == "20"
    free = holder()
    assert meters.of(free).headers() == []
    meters.of(free).enter().use(10**9)


def test_what_is_left_is_said_in_headers() -> None:
    clock = Clock()
    meters, alice = KeyMeters(clock), holder(tokens=120)
    meters.of(alice).enter().use(30)
    assert meters.of(alice).headers() == [
        ("x-ratelimit-limit-tokens", "120"),
        ("x-ratelimit-remaining-tokens", "90"),
        ("x-ratelimit-reset-tokens", "15s"),
    ]
    meters.of(alice).enter().use(1000)
    assert dict(meters.of(alice).headers())["x-ratelimit-remaining-tokens"] == "0"
    clock.now += 10_000
    assert dict(meters.of(alice).headers())["x-ratelimit-reset-tokens"] == "0s"


steps = st.sampled_from(["enter", "close", "use", "wait"])


@given(st.integers(1, 4), st.integers(1, 600), st.lists(st.tuples(steps, st.integers(0, 200)), max_size=60))
def test_no_more_are_in_flight_than_may_be_and_a_refusal_s_wait_is_enough(
    concurrent: int, tokens: int, actions: list[tuple[str, int]]
) -> None:
    clock = Clock()
    meters, alice = KeyMeters(clock), holder(concurrent, tokens)
    places: list[KeySlot] = []
    for action, number in actions:
        if action == "close" and places:
            places.pop(number % len(places)).close()
        elif action == "use" and places:
            places[number % len(places)].use(number)
        elif action == "wait":
            clock.now += number / 4
        elif action == "enter":
            try:
                places.append(meters.of(alice).enter())
            except RateLimited as error:
                if "tokens" in error.message:
                    clock.now += int(re.findall(r"in (\d+)s", error.message)[0])
                    places.append(meters.of(alice).enter())
        assert meters.of(alice).in_flight == len(places) <= concurrent
    for place in places:
        place.close()
    assert meters.of(alice).in_flight == 0
