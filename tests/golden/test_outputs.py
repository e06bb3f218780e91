"""Every output vector decodes to exactly what its fields say, read by an independent way."""

from __future__ import annotations

from typing import Any

import pytest

from smg_trio.core.engines import EngineCounts, EngineLoad, EngineProtocol
from smg_trio.core.outputs import (
    EngineBatch,
    EngineError,
    FinishReason,
    GenerationOutput,
    PositionLogprobs,
    UtilityReply,
)
from smg_trio.wire.codec import codec_for, is_dead_sentinel

from .loading import TOKENSPEED_VERSIONS, VLLM_VERSIONS, Vector, label, load, vectors

FINISH = ["stop", "length", "abort", "error", "repetition"]
BATCH_FIELDS = (
    "engine_index", "outputs", "scheduler_stats", "timestamp", "utility_output", "finished_requests",
    "wave_complete", "start_wave", "weight_version",
)  # fmt: skip
OUTPUT_FIELDS = (
    "request_id", "new_token_ids", "new_logprobs", "prompt_logprobs", "pooling_output", "finish_reason",
    "stop_reason", "events", "kv_transfer_params", "ec_transfer_params", "trace_headers", "prefill_stats",
    "routed_experts", "num_nans_in_logits", "mm_cache_miss_hashes", "new_sampling_mask", "spec_decode_metrics",
    "prompt_token_id_logprobs", "error",
)  # fmt: skip


def named(fields: tuple[str, ...], values: list[Any]) -> dict[str, Any]:
    return {name: values[i] if i < len(values) else None for i, name in enumerate(fields)}


def expected_positions(vector: Vector, value: list[Any] | None) -> list[PositionLogprobs] | None:
    if value is None:
        return None
    ids, logprobs, ranks = (vector.tensor(triple) for triple in value[:3])
    return [PositionLogprobs(ids[i], logprobs[i], ranks[i][0]) for i in range(len(ids))]


def expected_vllm_output(vector: Vector, values: list[Any]) -> tuple[str, GenerationOutput]:
    fields = named(OUTPUT_FIELDS, values)
    finish = fields["finish_reason"]
    prefill, missed, said = fields["prefill_stats"], fields["mm_cache_miss_hashes"], fields["error"]
    error = None if said is None else EngineError(said["message"], said["code"], said["retryable"])
    if missed:
        error = EngineError("The engine no longer has media of this request.", "mm_cache_miss", retryable=True)
    output = GenerationOutput(
        token_ids=fields["new_token_ids"],
        finish_reason=None if finish is None else FinishReason(FINISH[finish]),
        stop_reason=fields["stop_reason"],
        logprobs=expected_positions(vector, fields["new_logprobs"]),
        prompt_logprobs=expected_positions(vector, fields["prompt_logprobs"]),
        cached_tokens=None if prefill is None else prefill["num_cached_tokens"],
        kv_transfer_params=fields["kv_transfer_params"],
        error=error,
    )
    return fields["request_id"], output


def expected_counts(stats: dict[str, Any] | None, events: list[dict[str, Any]]) -> EngineCounts | None:
    prefix = (stats or {"prefix_cache_stats": {"queries": 0, "hits": 0}})["prefix_cache_stats"]
    preemptions = sum(event["type"] == 3 for event in events)
    counts = EngineCounts(prefix["queries"], prefix["hits"], preemptions=preemptions)
    return None if counts == EngineCounts() else counts


def expected_queue_times(outputs: list[list[Any]]) -> dict[str, float] | None:
    found = {}
    for values in outputs:
        times = {event["type"]: event["timestamp"] for event in (values[7:8] or [None])[0] or ()}
        if {1, 2} <= times.keys():
            found[values[0]] = times[2] - times[1]
    return found or None


def expected_vllm_batch(vector: Vector) -> EngineBatch:
    fields = named(BATCH_FIELDS, vector.generic())
    stats, utility = fields["scheduler_stats"], fields["utility_output"]
    return EngineBatch(
        rank=fields["engine_index"],
        outputs=[expected_vllm_output(vector, values) for values in fields["outputs"]],
        load=None
        if stats is None
        else EngineLoad(
            stats["num_running_reqs"],
            stats["num_waiting_reqs"],
            stats["kv_cache_usage"],
            stats["num_skipped_waiting_reqs"],
        ),
        queue_times=expected_queue_times(fields["outputs"]),
        counts=expected_counts(
            stats, [event for values in fields["outputs"] for event in (values[7:8] or [None])[0] or ()]
        ),
        utility=None
        if utility is None
        else UtilityReply(utility[0], utility[1], None if utility[2] is None else utility[2][1]),
        finished_request_ids=tuple(fields["finished_requests"] or ()),
        wave_complete=fields["wave_complete"],
        start_wave=fields["start_wave"],
    )


def expected_tokenspeed_batch(vector: Vector) -> EngineBatch:
    columns = vector.generic()
    outputs = []
    for row in range(len(columns[1])):
        values, ids = columns[7][row], columns[8][row]
        reason = columns[3][row]
        output = GenerationOutput(
            token_ids=columns[2][row],
            finish_reason=FinishReason(reason) if reason else None,
            cached_tokens=columns[6][row],
            logprobs=[PositionLogprobs([i], [v]) for i, v in zip(ids, values, strict=True)] or None,
        )
        outputs.append((columns[1][row], output))
    running, waiting, active, total = (columns[10:14] + [0] * 4)[:4]
    load_report = EngineLoad(running, waiting, active / total) if total else None
    return EngineBatch(rank=columns[9], outputs=outputs, load=load_report)


def living(folders: tuple[str, ...]) -> list[Vector]:
    return [vector for vector in vectors("out_", folders) if vector.name != "out_engine_dead"]


@pytest.mark.parametrize("vector", living(VLLM_VERSIONS), ids=label)
def test_a_vllm_output_decodes_to_what_its_fields_say(vector: Vector) -> None:
    assert not is_dead_sentinel(vector.frames)
    assert codec_for(EngineProtocol.VLLM).decode_outputs(vector.frames) == expected_vllm_batch(vector)


@pytest.mark.parametrize("vector", living(TOKENSPEED_VERSIONS), ids=label)
def test_a_tokenspeed_output_decodes_to_what_its_columns_say(vector: Vector) -> None:
    decoded = codec_for(EngineProtocol.TOKENSPEED).decode_outputs(vector.frames)
    assert decoded == expected_tokenspeed_batch(vector)


@pytest.mark.parametrize("folder", [*VLLM_VERSIONS, *TOKENSPEED_VERSIONS])
def test_the_death_sentinel_is_told_from_every_message(folder: str) -> None:
    assert is_dead_sentinel(load(folder, "out_engine_dead").frames)


def test_spelled_out_values_of_some_vectors() -> None:
    # A check on the independent reading above: these were read off the vectors by eye.
    decode = codec_for(EngineProtocol.VLLM).decode_outputs
    ((request_id, output),) = decode(load("vllm-0.32.0", "out_prompt_logprobs_inline").frames).outputs
    assert request_id == "req-1"
    assert output.prompt_logprobs == [
        PositionLogprobs([2, 9], [-1.0, -0.5], 4),
        PositionLogprobs([3, 8], [-2.0, -0.25], 1),
    ]
    stats = decode(load("vllm-0.32.0", "out_scheduler_stats").frames)
    assert (stats.rank, stats.load) == (1, EngineLoad(5, 2, 0.625))
    second = decode(load("vllm-0.27.1", "out_logprobs_two_requests_aux").frames).outputs[1]
    assert second[0] == "req-2"
    assert [position.rank for position in second[1].logprobs or ()] == [1, 2, 3]
    assert [len(position.token_ids) for position in second[1].logprobs or ()] == [64, 64, 64]
