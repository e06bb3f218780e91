"""What a policy is, and what it may know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from smg_trio.core.workers import WorkerSpec


class RoutingContext(NamedTuple):
    """What a policy may know of a request.

    Attributes:
        prompt_token_ids: int[T]; for workers behind HTTP, which make tokens themselves, the prompt's text as bytes.
        routing_key: what the client named its session or user with; None if it did not.
        model: what is asked, where the candidates may serve more than one model; else they have one and the same.
    """

    prompt_token_ids: Sequence[int]
    routing_key: str | None = None
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """What `cache_aware` has done and knows.

    Attributes:
        branches: how it chose → how often.
        ratio_bounds: upper bounds of the buckets of matched shares of prompts, without the last.
        ratio_counts: int[B+1], values in each.
        ratio_sum: of all shares.
        trees: model → (tokens, workers known) of its prefix tree.
    """

    branches: Mapping[str, int]
    ratio_bounds: Sequence[float]
    ratio_counts: Sequence[int]
    ratio_sum: float
    trees: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStatistics:
    """What a policy remembers; None for what it has no notion of. ``routing_keys``: by worker id, how many."""

    cache: CacheStatistics | None = None
    routing_keys: Mapping[str, int] | None = None


class Candidate(Protocol):
    """What a policy may know of a worker (`worker.nursery.Worker` and `upstream.http_worker.HttpWorker` are)."""

    @property
    def spec(self) -> WorkerSpec:
        """What it was told."""
        ...

    @property
    def load(self) -> float:
        """Requests per engine, by our count or the engines' word, whichever is higher."""
        ...


C = TypeVar("C", bound=Candidate)


class Policy(Protocol):
    """Chooses a worker for a request. Pure: times come in as seconds of one monotonic clock, chance as a `Random`.

    Policies derive from it and override what concerns them.
    """

    name: str

    def choose(self, candidates: Sequence[C], context: RoutingContext, now: float) -> C:
        """One of `candidates`: at least one, all ready and serving the asked model. Never waits."""
        ...

    def forget(self, worker_id: str) -> None:
        """The worker has been removed: drop all that is known of it."""
        return

    def cache_lost(self, worker_id: str) -> None:
        """The worker's engines are gone, and what their KV caches held with them; the worker stays."""
        return

    def statistics(self) -> PolicyStatistics:
        """As it is now."""
        return PolicyStatistics()


def least_loaded(candidates: Sequence[C], start: int) -> C:
    """The candidate with the lowest load; of equals the first in turn, beginning at `start`."""
    count = len(candidates)
    return min((candidates[(start + step) % count] for step in range(count)), key=lambda candidate: candidate.load)
