from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.engines import EngineProtocol
from smg_trio.testing.codec import codec_for
from smg_trio.testing.commands import EngineRequest
from smg_trio.testing.engine_core import EngineCore
from smg_trio.testing.lockstep import LockstepGroup
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.script import HANG, FixedScript, LengthScript, Script

from .front_end import abort, start_wave, tokenspeed_add, utility, vllm_add


class Bench:
    """A core with a clock that moves from one due time to the next."""

    def __init__(
        self,
        *,
        choose: Callable[[EngineRequest], Script] = lambda request: LengthScript(),
        group: LockstepGroup | None = None,
        **options: Any,
    ) -> None:
        self.now = 100.0
        engine_options = EngineOptions(**{"step_time_s": 0.01} | options)
        self.core = EngineCore(engine_options, codec_for(engine_options), choose, group=group)
        self.said: list[Any] = []

    def feed(self, *messages: list[bytes]) -> Bench:
        for message in messages:
            self._hear(self.core.receive(message, self.now))
        return self

    def run(self, steps: int = 1000) -> Bench:
        for _ in range(steps):
            self._hear(self.core.wake(self.now))
            if self.core.due is None or self.core.doom is not None:
                break
            self.now = max(self.now, self.core.due)
            self._hear(self.core.step(self.now))
        return self

    def _hear(self, messages: list[list[bytes]]) -> None:
        self.said += [msgpack.unpackb(frames[0], strict_map_key=False) for frames in messages]

    def outputs(self) -> list[tuple[str, list[int], int | None]]:
        return [(o[0], o[1], o[5]) for batch in self.said for o in batch[1]]

    def loads(self) -> list[tuple[int, int]]:
        return [(b[2]["num_running_reqs"], b[2]["num_waiting_reqs"]) for b in self.said if b[2] is not None]


def test_all_outputs_of_a_step_are_one_message_and_an_empty_one_follows_the_last_finish() -> None:
    bench = Bench().feed(vllm_add("a", max_tokens=3))
    bench.run(1).feed(vllm_add("b", max_tokens=2)).run()
    assert [[o[0] for o in batch[1]] for batch in bench.said] == [["a"], ["a"], ["a", "b"], ["b"], []]
    assert bench.loads() == [(1, 0), (1, 0), (1, 0), (0, 0), (0, 0)]
    assert bench.core.due is None


def test_steps_keep_an_absolute_schedule() -> None:
    bench = Bench().feed(vllm_add("a", max_tokens=4))
    for number in range(1, 4):
        assert bench.core.due == pytest.approx(100 + 0.01 * number)
        bench.core.step(bench.core.due + 0.004)


def test_what_does_not_fit_waits_its_turn() -> None:
    bench = Bench(max_num_seqs=2).feed(*(vllm_add(name, max_tokens=2) for name in "abc")).run()
    assert bench.loads()[:2] == [(1, 0), (1, 1)]
    assert [name for name, _, finish in bench.outputs() if finish is not None] == ["a", "b", "c"]


def test_prefill_makes_the_admitting_step_longer() -> None:
    bench = Bench(prefill_time_s=0.5, prefill_token_time_s=0.1).feed(vllm_add("a", (1, 2, 3), max_tokens=2))
    assert bench.core.due == pytest.approx(100 + 0.01 + 0.5 + 0.3)


def test_a_cached_prefix_is_reported_and_costs_no_prefill() -> None:
    bench = Bench(prefix_caching=True, block_size=2, prefill_token_time_s=1.0)
    bench.feed(vllm_add("a", (1, 2, 3), max_tokens=1)).run()
    began = bench.now
    bench.feed(vllm_add("b", (1, 2, 3), max_tokens=1)).run()
    assert bench.now - began == pytest.approx(0.01 + 1.0)
    first = next(batch for batch in bench.said if batch[1] and batch[1][0][0] == "b")
    assert first[1][0][11]["num_cached_tokens"] == 2
    assert first[2]["prefix_cache_stats"]["hits"] == 2


def test_kv_usage_rises_with_tokens_and_returns_to_zero() -> None:
    bench = Bench(num_gpu_blocks=10, block_size=10).feed(vllm_add("a", (1,) * 10, max_tokens=3)).run()
    usage = [batch[2]["kv_cache_usage"] for batch in bench.said]
    assert usage == pytest.approx([0.11, 0.12, 0.0, 0.0])


def test_an_abort_ends_without_a_word_but_statistics() -> None:
    bench = Bench().feed(vllm_add("a", max_tokens=50)).run(2).feed(abort("a", "unknown"))
    before = len(bench.outputs())
    bench.run()
    assert len(bench.outputs()) == before
    assert bench.said[-1][1] == []
    assert bench.core.record.aborts == ["a", "unknown"]
    assert bench.core.in_flight == 0


def test_an_abort_of_what_waits_is_never_admitted() -> None:
    bench = Bench(max_num_seqs=1).feed(vllm_add("a", max_tokens=2), vllm_add("b"), abort("b")).run()
    assert {name for name, _, _ in bench.outputs()} == {"a"}


def test_statistics_can_be_off() -> None:
    bench = Bench(stats=False).feed(vllm_add("a", max_tokens=2)).run()
    assert [batch[2] for batch in bench.said] == [None, None]


def test_a_hanging_script_makes_the_engine_idle_and_abortable() -> None:
    bench = Bench(choose=lambda request: FixedScript([[5]], HANG), step_time_s=0.0).feed(vllm_add("a")).run()
    assert (bench.core.due, bench.core.in_flight) == (None, 1)
    bench.feed(abort("a")).run()
    assert (bench.core.due, bench.core.in_flight) == (None, 0)


@pytest.mark.parametrize("message", [vllm_add("a"), vllm_add("b", ()), vllm_add("b", (99999,))])
def test_what_kills_a_real_engine_dooms_it(message: list[bytes]) -> None:
    bench = Bench().feed(vllm_add("a", max_tokens=50)).feed(message)
    assert bench.core.doom is not None
    assert not bench.core.takes_input()


def test_an_id_may_be_used_again_after_it_ended() -> None:
    bench = Bench().feed(vllm_add("a", max_tokens=1)).run().feed(vllm_add("a", max_tokens=1)).run()
    assert bench.core.doom is None
    assert bench.core.record.finished == ["a", "a"]


def test_what_does_not_decode_deafens_it_without_a_word() -> None:
    bench = Bench().feed(vllm_add("a", temperature=-1.0))
    assert bench.core.deaf is not None
    assert (bench.core.doom, bench.said) == (None, [])


def test_a_request_without_backend_fails_alone() -> None:
    bench = Bench().feed(vllm_add("bad", structured_outputs={"json": "{}"}), vllm_add("good", max_tokens=1)).run()
    assert ("bad", [], 3) in bench.outputs()
    assert [name for name, _, finish in bench.outputs() if finish == 1] == ["good"]


def test_it_dies_after_the_outputs_it_was_told() -> None:
    bench = Bench(crash_after_outputs=3).feed(vllm_add("a", max_tokens=50)).run()
    assert len(bench.outputs()) == 3
    assert bench.core.doom is not None


def test_aborts_can_be_ignored() -> None:
    bench = Bench(ignore_aborts=True).feed(vllm_add("a", max_tokens=3), abort("a")).run()
    assert bench.outputs()[-1][2] == 1


class TestUtilities:
    def reply(self, bench: Bench, method: str, *args: Any) -> Any:
        bench.feed(utility(7, method, *args))
        (reply,) = [batch[4] for batch in bench.said if batch[4] is not None]
        bench.said.clear()
        assert reply[0] == 7
        return reply[2][1] if reply[1] is None else reply[1]

    def test_sleeping_stops_steps_and_waking_goes_on(self) -> None:
        bench = Bench()
        assert self.reply(bench, "is_sleeping") is False
        assert self.reply(bench, "sleep", 1) is None
        assert self.reply(bench, "is_sleeping") is True
        bench.feed(vllm_add("a", max_tokens=1)).run()
        assert bench.outputs() == []
        assert self.reply(bench, "wake_up") is True
        bench.run()
        assert [finish for _, _, finish in bench.outputs()] == [1]

    def test_pausing_aborts_what_runs_and_says_so_first(self) -> None:
        bench = Bench().feed(vllm_add("a", max_tokens=50)).run(1)
        bench.said.clear()
        bench.feed(utility(9, "pause_scheduler", "abort", True))
        assert bench.outputs() == [("a", [], 2)]
        assert bench.said[0][5] == ["a"]
        assert bench.said[-1][4] == [9, None, [None, None]]

    def test_pausing_can_wait_for_what_runs(self) -> None:
        bench = Bench().feed(vllm_add("a", max_tokens=2)).run(1)
        bench.feed(utility(9, "pause_scheduler", "wait"), vllm_add("late", max_tokens=1))
        assert all(batch[4] is None for batch in bench.said)
        bench.feed(abort("late")).run()
        assert [batch[4] for batch in bench.said if batch[4]] == [[9, None, [None, None]]]

    def test_lora_needs_to_be_enabled(self) -> None:
        assert "LoRA is not enabled" in self.reply(Bench(), "list_loras")
        bench = Bench(supports_lora=True)
        assert self.reply(bench, "add_lora", ["name", 3, "/path"]) is True
        assert self.reply(bench, "list_loras") == [3]
        assert self.reply(bench, "remove_lora", 3) is True
        assert self.reply(bench, "remove_lora", 3) is False

    def test_unknown_names_and_wrong_arguments_come_back_as_failures(self) -> None:
        bench = Bench()
        assert "no attribute 'no_such'" in self.reply(bench, "no_such")
        assert "Call to sleep method failed" in self.reply(bench, "sleep", 1, "abort", "too many")
        assert self.reply(bench, "get_supported_tasks") == ["generate"]

    def test_the_prefix_cache_can_be_reset(self) -> None:
        bench = Bench(prefix_caching=True, block_size=1).feed(vllm_add("a", max_tokens=1)).run()
        bench.said.clear()
        assert self.reply(bench, "reset_prefix_cache") is True
        bench.feed(vllm_add("b", max_tokens=1)).run()
        assert bench.said[0][1][0][11]["num_cached_tokens"] == 0


class TestLockstep:
    def pair(self, **options: Any) -> tuple[Bench, Bench]:
        group = LockstepGroup(2, sync_interval=1)
        fields = {"lockstep": True, "group_size": 2} | options
        return Bench(group=group, rank=0, **fields), Bench(group=group, rank=1, **fields)

    @staticmethod
    def waves(bench: Bench) -> list[int]:
        return [batch[6] for batch in bench.said if batch[6] is not None]

    def run_both(self, *benches: Bench) -> None:
        for _ in range(10):
            for bench in benches:
                bench.run(3)

    def test_a_request_without_a_wake_up_stalls(self) -> None:
        first, second = self.pair()
        first.feed(vllm_add("a", max_tokens=2))
        self.run_both(first, second)
        assert first.said == []
        assert first.core.in_flight == 1

    def test_a_wake_up_of_all_ranks_lets_it_run_and_all_report_the_wave(self) -> None:
        first, second = self.pair()
        first.feed(vllm_add("a", max_tokens=2))
        for bench in (first, second):
            bench.feed(start_wave(1))
        self.run_both(first, second)
        assert [finish for _, _, finish in first.outputs()] == [None, 1]
        assert (self.waves(first), self.waves(second)) == ([1], [1])
        assert second.outputs() == []

    def test_a_stale_wave_is_dropped_and_a_higher_one_releases(self) -> None:
        first, second = self.pair()
        for wave in (1, 0, 10):
            first.feed(vllm_add(f"r{wave}", max_tokens=1))
            for bench in (first, second):
                bench.feed(start_wave(wave))
            self.run_both(first, second)
            if wave == 0:
                assert first.core.in_flight == 1
        assert self.waves(second) == [1, 10]
        assert first.core.record.finished == ["r1", "r0", "r10"]

    def test_the_excluded_rank_need_not_wake(self) -> None:
        first, second = self.pair()
        for bench in (first, second):
            bench.feed(start_wave(4, exclude=1))
        self.run_both(first, second)
        assert self.waves(first) == []
        second.feed(vllm_add("a", max_tokens=1))
        self.run_both(first, second)
        assert self.waves(first) == [4]

    def test_a_stuck_rank_is_deaf_until_it_is_released(self) -> None:
        first, second = self.pair()
        first.feed(vllm_add("a", max_tokens=5), utility(1, "is_sleeping"), abort("a"))
        assert first.said == []
        second.feed(start_wave(0))
        self.run_both(first, second)
        assert [batch[4][0] for batch in first.said if batch[4]] == [1]
        assert first.core.in_flight == 0

    def test_a_dense_engine_ignores_waves(self) -> None:
        bench = Bench().feed(start_wave(3)).run()
        assert (bench.said, bench.core.record.waves) == ([], [(3, -1)])


class TestTokenSpeed:
    def bench(self, **options: Any) -> Bench:
        return Bench(protocol=EngineProtocol.TOKENSPEED, **options)

    def test_tokens_come_in_columns_and_nothing_follows(self) -> None:
        bench = self.bench().feed(tokenspeed_add("a", sampling=[2])).run()
        assert [(row[1], row[3], row[5]) for row in bench.said] == [(["a"], [""], [1]), (["a"], ["length"], [2])]

    def test_malformed_and_duplicate_requests_are_dropped_with_a_warning(self) -> None:
        bench = self.bench().feed(tokenspeed_add("a", sampling=[2]), [b"\x81"], tokenspeed_add("a", sampling=[9]))
        assert (bench.core.doom, bench.core.deaf, len(bench.core.record.warnings)) == (None, None, 2)
        assert len(bench.run().said) == 2

    def test_an_interval_gathers_tokens(self) -> None:
        bench = self.bench().feed(tokenspeed_add("a", sampling=[60], stream=False)).run()
        assert [len(row[2][0]) for row in bench.said] == [1, 50, 9]

    def test_refused_sampling_is_an_abort_output(self) -> None:
        bench = self.bench().feed(tokenspeed_add("a", sampling=[4, None, None, 1.0, 1.0, 500]))
        assert [(row[2], row[3]) for row in bench.said] == [([[]], ["abort"])]

    def test_logprobs_are_those_of_the_sampled_tokens(self) -> None:
        bench = self.bench().feed(tokenspeed_add("a", sampling=[1], return_logprob=True)).run()
        (row,) = bench.said
        assert row[8] == row[2]
        assert row[7][0][0] < 0


COMMANDS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 5), st.integers(1, 6)),
        st.tuples(st.just("abort"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(COMMANDS, st.integers(1, 4))
def test_every_request_ends_exactly_once(commands: list[tuple[str, int, int]], slots: int) -> None:
    bench = Bench(max_num_seqs=slots)
    live: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for count, (kind, number, size) in enumerate(commands):
        if kind == "add":
            name = f"{number}-{count}"
            live[name] = wanted[name] = size
            bench.feed(vllm_add(name, max_tokens=size))
        elif kind == "abort":
            gone = [name for name in live if name.startswith(f"{number}-")]
            bench.feed(abort(*gone))
        else:
            bench.run(1)
    bench.run()
    ended = [name for name, _, finish in bench.outputs() if finish is not None]
    assert len(ended) == len(set(ended))
    aborted = set(bench.core.record.aborts)
    assert set(wanted) - aborted <= set(ended) <= set(wanted)
    for name in ended:
        assert sum(len(ids) for other, ids, _ in bench.outputs() if other == name) == wanted[name]
    assert bench.core.in_flight == 0
    assert bench.core._used_tokens == 0
    assert all(running <= slots for running, _ in bench.loads())
