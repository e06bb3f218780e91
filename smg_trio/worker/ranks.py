"""Rank selection inside one worker, pure: the least loaded engine, by its own word and by what we have sent it.

score(rank) = max(in flight, waiting + running) + (waiting * 6 * max(0, kv_usage - 0.5) if waiting else 0)

The in-flight count is a floor under the engine's report, which is as old as its last output. The lowest score
wins; ties rotate, because the scan starts one rank further at each choice. When a rank's last request ends its
reported queue counts are dropped (an idle engine sends no news, so its last report would stand forever); KV use
stays as reported. Same rule as the reference gateway's connector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smg_trio.core.engines import EngineLoad

_KV_PRESSURE_FROM = 0.5
_KV_PRESSURE_WEIGHT = 6.0


def rank_score(in_flight: int, load: EngineLoad) -> float:
    """Load of one rank as a number; higher is busier."""
    score = float(max(in_flight, load.waiting + load.running))
    if load.waiting > 0:
        score += load.waiting * _KV_PRESSURE_WEIGHT * max(0.0, load.kv_usage - _KV_PRESSURE_FROM)
    return score


class RankSelector:
    """Remembers each rank's last load report and where the next scan starts."""

    def __init__(self, rank_count: int, in_flight: Callable[[int], int]) -> None:
        self._loads = [EngineLoad()] * rank_count
        self._in_flight = in_flight
        self._next_start = 0

    def select(self, candidates: Sequence[int]) -> int:
        """The least loaded of `candidates` (not empty, ascending)."""
        if len(candidates) == 1:
            return candidates[0]
        count = len(candidates)
        start = self._next_start % count
        self._next_start += 1
        ordered = (candidates[(start + step) % count] for step in range(count))
        return min(ordered, key=self.score)

    def score(self, rank: int) -> float:
        """See `rank_score`."""
        return rank_score(self._in_flight(rank), self.load(rank))

    def in_flight(self, rank: int) -> int:
        """Requests at the rank that count for its score."""
        return self._in_flight(rank)

    def report(self, rank: int, load: EngineLoad) -> None:
        """A load report replaces the one before as a whole."""
        self._loads[rank] = load

    def idle(self, rank: int) -> None:
        """The rank's last request has ended: forget its queue, keep its KV use."""
        load = self._loads[rank]
        if load.running or load.waiting:
            self._loads[rank] = EngineLoad(kv_usage=load.kv_usage)

    def forget(self, rank: int) -> None:
        """The rank is gone: a new engine starts from nothing."""
        self._loads[rank] = EngineLoad()

    def load(self, rank: int) -> EngineLoad:
        """The rank's last report, queue counts zeroed while it is idle."""
        return self._loads[rank]
