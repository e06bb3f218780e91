from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest

from smg_trio.core.outputs import FinishReason
from smg_trio.testing.commands import EngineRequest
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.script import Tick
from smg_trio.testing.sequences import Load, RunningSequence
from smg_trio.testing.tensors import candidate_rows, sampled_logprob
from smg_trio.testing.vllm_codec import VllmCodec

VECTORS = Path(__file__).parents[1] / "golden" / "vectors"
VERSIONS = ("0.27.1", "0.32.0", "0.33.0")


def vector(version: str, name: str) -> Any:
    raw = json.loads((VECTORS / f"vllm-{version}" / f"{name}.json").read_text())
    return msgpack.unpackb(bytes.fromhex(raw["frames_hex"][0]), strict_map_key=False)


def saying(*ticks: Tick, first: bool = False, **fields: Any) -> RunningSequence:
    request = EngineRequest(**{"request_id": "req-1", "prompt_token_ids": [1, 2, 3], "max_tokens": 9} | fields)
    sequence = RunningSequence(request, iter(ticks), 10.0)
    for _ in ticks:
        sequence.advance()
    sequence.first = first
    return sequence


def step(codec: VllmCodec, *sequences: RunningSequence, load: Load | None = None) -> Any:
    return msgpack.unpackb(codec.step(sequences, load or Load(), 1234.5)[0], strict_map_key=False)


def codec_of(version: str, **options: Any) -> VllmCodec:
    return VllmCodec(EngineOptions(version=version, **options))


@pytest.mark.parametrize("version", VERSIONS)
def test_one_token_looks_like_the_real_encoding(version: str) -> None:
    real = vector(version, "out_one_token")
    output = real[1][0]
    ours = step(codec_of(version, stats=False), saying(Tick(output[1]), request_id=output[0]))
    assert ours[1] == real[1]
    assert ours[:8] == [0, real[1], None, 1234.5, None, None, None, None]
    assert len(ours) == len(real)


@pytest.mark.parametrize("version", VERSIONS)
def test_statistics_look_like_the_real_encoding(version: str) -> None:
    real = vector(version, "out_scheduler_stats")
    load = Load(5, 2, 0.625, prefix_requests=1, prefix_queries=100, prefix_hits=40)
    ours = step(codec_of(version, rank=1), saying(Tick([100])), load=load)
    stages = ours[2].pop("num_kv_fetch_reqs_by_stage", None)
    real[2].pop("num_kv_fetch_reqs_by_stage", None)
    assert ours[2] == real[2]
    assert list(ours[2]) == list(real[2])
    assert (stages is None) == (version == "0.27.1")
    assert ours[:2] == real[:2]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "reason"), [("out_finish_abort_empty", FinishReason.ABORT), ("out_finish_error", FinishReason.ERROR)]
)
def test_an_end_without_a_step_looks_like_the_real_encoding(version: str, name: str, reason: FinishReason) -> None:
    real = vector(version, name)
    real[1][0][1] = []
    request = EngineRequest(request_id="req-1", prompt_token_ids=[1], max_tokens=1)
    ours = msgpack.unpackb(codec_of(version).ended([request], reason, Load(), 1234.5)[0])
    assert ours == real


@pytest.mark.parametrize("version", VERSIONS)
def test_notices_look_like_the_real_encoding(version: str) -> None:
    codec = codec_of(version)
    assert msgpack.unpackb(codec.wave_complete(3, 1234.5)[0]) == vector(version, "out_wave_complete")
    real = vector(version, "out_utility_list")
    reply = codec.utility_reply(real[4][0], None, ["generate"], 1234.5)
    assert msgpack.unpackb(reply[0]) == real
    failed = msgpack.unpackb(codec.utility_reply(1, "broken", None, 1234.5)[0])
    assert failed[4] == [1, "broken", None]


@pytest.mark.parametrize("version", VERSIONS)
def test_handshake_maps_have_the_keys_of_the_real_ones(version: str) -> None:
    codec = codec_of(version)
    assert msgpack.unpackb(codec.hello()) == vector(version, "hs_hello")
    assert msgpack.unpackb(codec.ready()) == vector(version, "hs_ready")
    assert set(msgpack.unpackb(codec.registration())) == set(vector(version, "registration"))


def test_a_lockstep_rank_registers_its_group_and_a_dense_rank_does_not() -> None:
    lockstep = codec_of("0.32.0", rank=1, group_size=2, lockstep=True)
    dense = codec_of("0.32.0", rank=1, group_size=2)
    registrations = [msgpack.unpackb(codec.registration()) for codec in (lockstep, dense)]
    assert [r["data_parallel_size"] for r in registrations] == [2, 1]
    assert [r["data_parallel_rank"] for r in registrations] == [1, 1]
    assert "parallel_config_hash" in msgpack.unpackb(lockstep.ready())


def test_the_first_output_carries_events_and_prefill_statistics() -> None:
    output = step(codec_of("0.32.0"), saying(Tick([7]), first=True))[1][0]
    real = vector("0.32.0", "out_first_token_events_prefill")[1][0]
    assert [event["type"] for event in output[7]] == [1, 2]
    assert set(output[11]) == set(real[11])
    assert len(output) == len(real)
    assert step(codec_of("0.32.0", stats=False), saying(Tick([7]), first=True))[1][0][7] is None


def test_a_stop_token_is_named_and_eos_is_not() -> None:
    codec = codec_of("0.32.0")
    stopped = step(codec, saying(Tick([7], FinishReason.STOP, 7)), saying(Tick([2], FinishReason.STOP)))
    assert [output[5:7] for output in stopped[1]] == [[0, 7], [0, None]]


def test_unknown_trailing_fields_come_on_both_levels() -> None:
    plain, extended = (step(codec_of("0.32.0", extra_fields=count), saying(Tick([7]))) for count in (0, 3))
    assert len(extended) == len(plain) + 3
    assert len(extended[1][0]) == len(plain[1][0]) + 3
    assert extended[1][0][:18] == plain[1][0]


@pytest.mark.parametrize(("count", "frames"), [(0, 1), (5, 1), (62, 1), (63, 3), (-1, 3)])
def test_arrays_of_256_bytes_and_more_go_into_frames_of_their_own(count: int, frames: int) -> None:
    codec = codec_of("0.32.0", vocab_size=1024)
    message = codec.step([saying(Tick([9]), logprobs=count)], Load(), 0.0)
    assert len(message) == frames
    ids, values, ranks, unused = msgpack.unpackb(message[0])[1][0][2]
    columns = (1024 if count < 0 else count) + 1
    assert (ids[:2], values[:2], ranks[:2], unused) == (
        ["<i4", [1, columns]],
        ["<f4", [1, columns]],
        ["<i8", [1]],
        None,
    )
    raw = ids[2].data if frames == 1 else message[ids[2]]
    assert struct.unpack(f"<{columns}i", raw)[0] == 9


def test_prompt_logprobs_come_once_for_all_positions_but_the_first() -> None:
    for version, elements in (("0.27.1", 4), ("0.32.0", 5)):
        sequence = saying(Tick([9]), first=True, prompt_logprobs=2, prompt_token_ids=[4, 5, 6, 7])
        tensors = step(codec_of(version), sequence)[1][0][3]
        assert len(tensors) == elements
        assert [tensor[:2] for tensor in tensors[:3]] == [["int32", [3, 3]], ["float32", [3, 3]], ["int32", [3]]]
        rows = struct.unpack("<9i", tensors[0][2].data)
        assert rows[::3] == (5, 6, 7)
    assert step(codec_of("0.32.0"), saying(Tick([9]), prompt_logprobs=2))[1][0][3] is None


def test_aux_indexes_keep_counting_over_the_requests_of_a_message() -> None:
    codec = codec_of("0.32.0", vocab_size=1024)
    message = codec.step([saying(Tick([t]), logprobs=-1) for t in (9, 10)], Load(), 0.0)
    outputs = msgpack.unpackb(message[0])[1]
    assert [[output[2][0][2], output[2][1][2]] for output in outputs] == [[1, 2], [3, 4]]
    assert [struct.unpack_from("<i", message[index])[0] for index in (1, 3)] == [9, 10]


@pytest.mark.parametrize("token", range(8))
def test_made_up_candidates_fit_together(token: int) -> None:
    ids, values, ranks = candidate_rows([token], 4, 100)
    assert ids[0] == token
    assert values[0] == sampled_logprob(token)
    assert ids[ranks[0]] == token
    assert values[ranks[0]] == values[0]
    assert list(values[1:]) == sorted(values[1:], reverse=True)
    assert len(set(ids[1:])) == 4


def test_pooling_answers_with_a_unit_vector() -> None:
    options = {"stats": False, "embedding_size": 4}
    sequence = saying(Tick((), FinishReason.STOP), first=True, pooling={"task": "embed"})
    output = step(codec_of("0.32.0", **options), sequence)[1][0]
    dtype, shape, raw = output[4]
    vector_ = struct.unpack("<4f", raw.data)
    assert (dtype, shape, output[1], output[5]) == ("float32", [4], [], 0)
    assert sum(value * value for value in vector_) == pytest.approx(1.0)
