from __future__ import annotations

import pytest

from smg_trio.core.engines import EngineLoad
from smg_trio.core.workers import RankPhase, RankSnapshot, WorkerSnapshot, WorkerSpec, WorkerState
from smg_trio.launcher.progress import (
    RESTART_PAUSES_S,
    SETTLED_AFTER_S,
    Death,
    Lives,
    Stage,
    StartProgress,
    exit_words,
    quoted,
)


def snapshot(*phases: RankPhase) -> WorkerSnapshot:
    ranks = tuple(RankSnapshot(rank, phase, "", 0, EngineLoad(), None) for rank, phase in enumerate(phases))
    spec = WorkerSpec(worker_id="w", url="ipc:///w", model_id="m", engine_count=len(phases))
    return WorkerSnapshot(spec, WorkerState.PENDING, "", 0, False, 0, ranks, "tcp://127.0.0.1:1")


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("(EngineCore pid=1) INFO 11-29 [gpu_model_runner.py:5040] Starting to load model /m...", Stage.LOADING),
        ("Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00]", Stage.LOADING),
        ("INFO Model loading took 1.2 GiB memory and 3.0 seconds", Stage.LOADING),
        ("INFO Available KV cache memory: 1.0 GiB", Stage.PROFILING),
        ("INFO GPU KV cache size: 4,194,304 tokens", Stage.PROFILING),
        ("KV Cache is allocated. K size: 1.00 GB, V size: 1.00 GB.", Stage.PROFILING),
        ("Capturing CUDA graphs (decode, FULL): 3%", Stage.PROFILING),
        ("init engine (profile, create kv cache, warmup model) took 2.1 s", Stage.PROFILING),
        ("INFO args: {'model': 'm', 'kv_cache_dtype': 'auto'}", None),
    ],
)
def test_stages_are_read_from_the_engines_own_lines(line: str, stage: Stage | None) -> None:
    assert StartProgress().line(line) is stage


def test_each_stage_is_told_once_and_none_after_ready() -> None:
    progress = StartProgress()
    waiting, loading, ready = (snapshot(phase) for phase in (RankPhase.WAITING, RankPhase.LOADING, RankPhase.READY))
    assert progress.worker(waiting) is None
    assert progress.worker(loading) is Stage.CONNECTED
    assert progress.worker(loading) is None
    assert progress.line("Starting to load model x") is Stage.LOADING
    assert progress.line("Loading weights took 1 seconds") is None
    assert progress.worker(ready) is Stage.READY
    assert progress.worker(ready) is None
    assert progress.line("Capturing CUDA graphs") is None


def test_a_group_is_ready_when_all_its_ranks_are() -> None:
    progress = StartProgress()
    assert progress.worker(snapshot(RankPhase.READY, RankPhase.LOADING)) is Stage.CONNECTED
    assert progress.worker(snapshot(RankPhase.READY, RankPhase.READY)) is Stage.READY


def test_an_engine_that_never_was_ready_gets_a_second_try_only() -> None:
    lives = Lives()
    assert lives.pause_after(Death("exited", None, 1)) == RESTART_PAUSES_S[0]
    assert lives.pause_after(Death("exited", None, 1)) is None


def test_wrong_usage_is_not_tried_again() -> None:
    assert Lives().pause_after(Death("exited", None, 2)) is None


def test_an_engine_that_was_ready_once_is_started_again_for_ever_with_growing_pauses() -> None:
    lives = Lives()
    assert lives.pause_after(Death("died", 1.0, 0)) == RESTART_PAUSES_S[0]
    pauses = [lives.pause_after(Death("exited", None, code)) for code in (1, 2, 1, 1, 1, 1, 1)]
    assert pauses == [*RESTART_PAUSES_S[1:], RESTART_PAUSES_S[-1], RESTART_PAUSES_S[-1]]


def test_a_long_readiness_makes_the_next_restart_quick_again() -> None:
    lives = Lives()
    for _ in range(4):
        lives.pause_after(Death("died", 1.0))
    assert lives.pause_after(Death("died", SETTLED_AFTER_S)) == RESTART_PAUSES_S[0]


def test_exit_codes_are_told_in_words() -> None:
    assert exit_words(3) == "exited with code 3"
    assert exit_words(-9) == "was killed by SIGKILL"
    assert exit_words(-250) == "was killed by signal 250"


def test_log_lines_stand_below_the_message() -> None:
    assert quoted(["a", "b"]) == "\n    a\n    b"
    assert "said nothing" in quoted([])
