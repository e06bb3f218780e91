"""What each engine was started for: generating, or which kinds of pooling. Pure.

A vLLM engine says so when asked (utility ``get_supported_tasks``), and dies of a request for a task that it lacks.
What it said holds for one registration: the engine that comes after it may be another model's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from smg_trio.core.errors import NoReadyWorker, NotImplementedByEngine, UnsupportedFeature

if TYPE_CHECKING:
    from smg_trio.core.engines import EngineInfo
    from smg_trio.core.requests import GenerationRequest

GENERATE = "generate"
TOKENSPEED_TASKS = frozenset({GENERATE})


class TaskBook:
    """The tasks of the engines of one worker."""

    def __init__(self, fixed: frozenset[str] | None = None) -> None:
        """`fixed`: what every engine of the protocol can do, where it cannot be asked."""
        self._fixed = fixed
        self._said: dict[int, tuple[EngineInfo, frozenset[str]]] = {}

    def note(self, rank: int, info: EngineInfo, tasks: Iterable[str]) -> None:
        """The engine that registered with `info` has said what it can do."""
        self._said[rank] = (info, frozenset(tasks))

    def of(self, rank: int, info: EngineInfo) -> frozenset[str] | None:
        """What the engine that registered with `info` can do; None while it has not said."""
        if self._fixed is not None:
            return self._fixed
        said = self._said.get(rank)
        return said[1] if said is not None and said[0] is info else None

    def check(self, request: GenerationRequest, rank: int, info: EngineInfo) -> None:
        """Refuse a task that the engine lacks, and pooling while it has not said what it can do.

        Raises UnsupportedFeature, NotImplementedByEngine, NoReadyWorker.
        """
        tasks = self.of(rank, info)
        task = GENERATE if request.pooling is None else request.pooling.task
        if tasks is None:
            if request.pooling is not None:
                raise NoReadyWorker(f"Rank {rank} has not said yet which tasks it supports.")
        elif task not in tasks:
            raise self.missing_task(task, tasks)

    def missing_task(self, task: str, tasks: Iterable[str]) -> UnsupportedFeature | NotImplementedByEngine:
        """The refusal of a task."""
        if self._fixed is not None:
            return NotImplementedByEngine(f"TokenSpeed engines do not pool, so there is no task '{task}'.")
        known = ", ".join(f"'{name}'" for name in sorted(tasks)) or "nothing"
        return UnsupportedFeature(
            f"The engine was not started for the task '{task}'; it supports {known}.", param="model"
        )
