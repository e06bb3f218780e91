from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.engines import EngineInfo
from smg_trio.core.workers import RankPhase
from smg_trio.worker.handshake import GroupHandshake, HelloFromConnected, Progress, RankReady, Refused, SendInit

INFO = EngineInfo(max_model_len=100)
LOCKSTEP = EngineInfo(max_model_len=100, data_parallel_size=2)


def ready(handshake: GroupHandshake, rank: int, info: EngineInfo = INFO) -> None:
    handshake.hello(rank)
    handshake.registered(rank, info)
    handshake.ready(rank)


def test_ready_and_registration_in_either_order() -> None:
    steps: list[list[Callable[[GroupHandshake], object]]] = [
        [lambda h: h.registered(0, INFO), lambda h: h.ready(0)],
        [lambda h: h.ready(0), lambda h: h.registered(0, INFO)],
    ]
    for first, second in steps:
        handshake = GroupHandshake(1)
        assert handshake.hello(0) == SendInit(0)
        assert isinstance(first(handshake), Progress)
        assert handshake.serving_ranks == []
        assert second(handshake) == RankReady(0, INFO)
        assert handshake.serving_ranks == [0]


def test_a_hello_while_loading_is_answered_again() -> None:
    handshake = GroupHandshake(1)
    handshake.hello(0)
    handshake.registered(0, INFO)
    assert handshake.hello(0) == HelloFromConnected(0), "it is connected: is it still there?"
    handshake.lost(0, "vanished while loading")
    assert handshake.hello(0) == SendInit(0)
    assert handshake.hello(0) == SendInit(0, again=True)
    assert isinstance(handshake.ready(0), Progress), "the registration of the first life does not count"


def test_what_is_unexpected_is_refused_with_a_reason() -> None:
    handshake = GroupHandshake(2)
    for step in (handshake.ready(0), handshake.registered(1, INFO), handshake.hello(2), handshake.ready(-1)):
        assert isinstance(step, Refused)
        assert step.reason
    assert all(handshake.phase(rank) is RankPhase.WAITING for rank in (0, 1))


def test_a_hello_of_a_ready_rank_is_for_the_shell_to_settle() -> None:
    handshake = GroupHandshake(1)
    ready(handshake, 0)
    assert handshake.hello(0) == HelloFromConnected(0)
    assert handshake.phase(0) is RankPhase.READY


def test_a_group_starts_complete_and_then_goes_on_with_the_living() -> None:
    handshake = GroupHandshake(2)
    ready(handshake, 1)
    assert handshake.serving_ranks == []
    assert handshake.summary() == "1 of 2 ranks ready (rank 0: waiting for HELLO)"
    ready(handshake, 0)
    handshake.lost(1, "gone")
    assert handshake.serving_ranks == [0]
    assert handshake.summary() == "1 of 2 ranks ready (rank 1: gone)"


def test_a_lockstep_group_serves_only_complete() -> None:
    handshake = GroupHandshake(2)
    ready(handshake, 0, LOCKSTEP)
    ready(handshake, 1, LOCKSTEP)
    assert handshake.lockstep
    handshake.lost(1, "gone")
    assert handshake.serving_ranks == []


def test_tokenspeed_registers_its_size_without_being_lockstep() -> None:
    handshake = GroupHandshake(2, lockstep_capable=False)
    ready(handshake, 0, LOCKSTEP)
    ready(handshake, 1, LOCKSTEP)
    assert not handshake.lockstep


@given(st.lists(st.tuples(st.sampled_from(["hello", "ready", "registered", "lost"]), st.integers(-1, 3)), max_size=60))
def test_no_sequence_of_messages_makes_a_rank_ready_without_all_three(
    happenings: list[tuple[str, int]],
) -> None:
    handshake = GroupHandshake(3)
    seen: dict[int, set[str]] = {rank: set() for rank in range(3)}
    for what, rank in happenings:
        inside = 0 <= rank < 3
        if what == "hello":
            # Once the rank has registered, a HELLO changes nothing before its engine was looked for.
            if inside and "registered" not in seen[rank]:
                seen[rank] = {"hello"}
            handshake.hello(rank)
        elif what == "lost":
            if inside:
                seen[rank] = set()
                handshake.lost(rank, "gone")
        else:
            if inside and "hello" in seen[rank]:
                seen[rank].add(what)
            handshake.ready(rank) if what == "ready" else handshake.registered(rank, INFO)
        for number in range(3):
            complete = seen[number] == {"hello", "ready", "registered"}
            assert (handshake.phase(number) is RankPhase.READY) == complete
