"""The ledger as a machine: whatever happens in whatever order, each request ends exactly once."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from smg_trio.core.errors import InvalidRequest
from smg_trio.worker.ledger import InFlight, Ledger

RANKS = 3


class LedgerMachine(RuleBasedStateMachine):
    open_entries = Bundle("open_entries")
    ended_entries = Bundle("ended_entries")

    def __init__(self) -> None:
        super().__init__()
        self.ledger: Ledger[str] = Ledger(RANKS)
        self.model: dict[str, int] = {}
        self.count = 0

    @rule(target=open_entries, rank=st.integers(0, RANKS - 1))
    def open(self, rank: int) -> InFlight[str]:
        self.count += 1
        request_id = f"r{self.count}"
        self.model[request_id] = rank
        return self.ledger.open(request_id, rank, "delivery")

    @rule(entry=open_entries)
    def open_twice(self, entry: InFlight[str]) -> None:
        if not entry.ended:
            with pytest.raises(InvalidRequest):
                self.ledger.open(entry.request_id, 0, "delivery")

    @rule(target=ended_entries, entry=consumes(open_entries))
    def end(self, entry: InFlight[str]) -> InFlight[str]:
        assert self.ledger.end(entry) is (entry.request_id in self.model)
        self.model.pop(entry.request_id, None)
        return entry

    @rule(entry=ended_entries)
    def end_again(self, entry: InFlight[str]) -> None:
        assert self.ledger.end(entry) is False

    @rule(rank=st.integers(0, RANKS - 1))
    def lose_a_rank(self, rank: int) -> None:
        for entry in self.ledger.of_rank(rank):
            assert self.ledger.end(entry)
            del self.model[entry.request_id]

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.ledger) == len(self.model)
        assert set(self.ledger.entries) == set(self.model)
        for rank in range(RANKS):
            assert self.ledger.in_flight(rank) == list(self.model.values()).count(rank)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
