from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from smg_trio.testing.commands import Abort, Add, Command, Fatal, Ignored, Malformed, StartWave, UtilityCall
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.vllm_codec import VllmCodec

VECTORS = Path(__file__).parents[1] / "golden" / "vectors"

BASE: list[Any] = ["id", [1, 2, 3], None, {}, None, 1.5, None, None, None, None, None, 0, 0, 0, None, False]


def decode(frames: list[bytes], **options: Any) -> Command:
    return VllmCodec(EngineOptions(max_model_len=2048, **options)).decode(frames, 1.0)


def add(*, length: int = 16, at: dict[int, Any] | None = None, **sampling: Any) -> Command:
    row = [*BASE, None, None, None, False, None, None]
    row[3] = sampling
    for index, value in (at or {}).items():
        row[index] = value
    return decode([b"\x00", msgpack.packb(row[:length])])


def constraint(**fields: Any) -> dict[str, Any]:
    return {"structured_outputs": fields}


ACCEPTED: dict[str, dict[str, Any]] = {
    "9 elements": {"length": 9},
    "22 elements": {"length": 22},
    "temperature int 0": {"temperature": 0},
    "max_tokens None": {"max_tokens": None},
    "temperature 1e-3": {"temperature": 1e-3},
    "top_k -1": {"top_k": -1},
    "seed 2**63": {"seed": 2**63},
    "seed -1": {"seed": -1},
    "unknown sp key": {"no_such_parameter": [1]},
    "arrival_time int": {"at": {5: 17}},
    "so json dict": constraint(json={"type": "object"}, _backend="xgrammar"),
    "so unknown key": constraint(json="{}", _backend="xgrammar", no_such_option=1),
    "so json_object false": constraint(json_object=False, _backend="xgrammar"),
    "logit_bias int keys": {"logit_bias": {5: 1.0}},
    "stop_token_ids dup": {"stop_token_ids": [5, 6, 5]},
    "lora 3 elems": {"at": {6: ["n", 1, "/p"]}},
    "lora 4": {"at": {6: ["n", 1, "/p", None]}},
    "thinking_token_budget -1": {"thinking_token_budget": -1},
    "extra_args nested": {"extra_args": {"kv_transfer_params": {"a": [1, {"b": None}]}}},
}

REJECTED: dict[str, dict[str, Any]] = {
    "8 elements": {"length": 8},
    "top_k float 5.0": {"top_k": 5.0},
    "top_k float 5.5": {"top_k": 5.5},
    "max_tokens 0": {"max_tokens": 0},
    "temperature 2.5": {"temperature": 2.5},
    "temperature nan": {"temperature": float("nan")},
    "temperature -1": {"temperature": -1},
    "top_p 0": {"top_p": 0.0},
    "top_p 1.5": {"top_p": 1.5},
    "top_k -2": {"top_k": -2},
    "presence 3": {"presence_penalty": 3.0},
    "frequency -3": {"frequency_penalty": -3.0},
    "repetition 0": {"repetition_penalty": 0.0},
    "repetition inf": {"repetition_penalty": float("inf")},
    "min_p 2": {"min_p": 2},
    "min_tokens>max": {"min_tokens": 20, "max_tokens": 5},
    "min_tokens above the default": {"min_tokens": 17},
    "logprobs -2": {"logprobs": -2},
    "prompt_logprobs -2": {"prompt_logprobs": -2},
    "greedy n=2": {"temperature": 0.0, "n": 2},
    "stop with detokenize False": {"stop": ["x"], "detokenize": False},
    "stop empty string": {"stop": [""]},
    "bad_words ['']": {"bad_words": [""]},
    "priority None": {"at": {13: None}},
    "resumable nil": {"at": {15: None}},
    "arrival_time None": {"at": {5: None}},
    "so empty map": constraint(),
    "so two kinds": constraint(regex="a", json="{}"),
    "logit_bias str keys": {"logit_bias": {"5": 1.0}},
    "output_kind 9": {"output_kind": 9},
    "all_stop nil": {"_all_stop_token_ids": None},
    "prompt bytes": {"at": {1: b"abc"}},
    "sp as array": {"at": {3: [1.0]}},
    "lora empty path": {"at": {6: ["n", 1, ""]}},
    "lora id 0": {"at": {6: ["n", 0, "/p"]}},
    "logprobs true": {"logprobs": True},
    "rep det min_count 1": {"repetition_detection": {"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 1}},
    "request 30 elems": {"length": 22, "at": {19: None}},
    "id not a string": {"at": {0: 7}},
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_the_real_decoder_accepts_is_accepted(name: str) -> None:
    assert isinstance(add(**ACCEPTED[name]), Add), name


@pytest.mark.parametrize("name", REJECTED)
def test_what_the_real_decoder_rejects_is_malformed(name: str) -> None:
    assert isinstance(add(**REJECTED[name]), Malformed), name


@pytest.mark.parametrize(
    "frames",
    [
        [b"\x00", b"\xc1"],
        [b"\x00", msgpack.packb(BASE) + b"\x00"],
        [b"\x00", msgpack.packb({"request_id": "x"})],
        [b"\x09", msgpack.packb([1])],
        [b"\x00"],
        [],
    ],
)
def test_broken_frames_are_malformed(frames: list[bytes]) -> None:
    assert isinstance(decode(frames), Malformed)


@pytest.mark.parametrize("prompt", [[], None, [0] * 2048, [40000], [-1]])
def test_prompts_that_kill_the_real_step_loop_are_fatal(prompt: list[int] | None) -> None:
    assert isinstance(add(at={1: prompt}), Fatal)


def test_an_unsupported_pooling_task_is_fatal_and_a_supported_one_is_taken() -> None:
    frames = [b"\x00", msgpack.packb([*BASE[:3], None, [True, None, None, None, "embed"], *BASE[5:]])]
    assert isinstance(decode(frames), Fatal)
    assert isinstance(decode(frames, supported_tasks=("generate", "embed")), Add)


def test_control_messages_are_decoded() -> None:
    assert decode([b"\x01", msgpack.packb(["a", "b"])]) == Abort(("a", "b"))
    assert decode([b"\x02", msgpack.packb([4, -1])]) == StartWave(4, -1)
    call = decode([b"\x03", msgpack.packb([0, 2**64 - 1, "sleep", [1]])])
    assert call == UtilityCall(2**64 - 1, "sleep", (1,))
    assert isinstance(decode([b"\x04", msgpack.packb(None)]), Fatal)
    assert decode([b"\x05"]) == Ignored()


@pytest.mark.parametrize("frames", [[b"\x02", msgpack.packb([1])], [b"\x03", msgpack.packb([0, 1, "x"])]])
def test_control_messages_of_a_wrong_shape_are_fatal(frames: list[bytes]) -> None:
    assert isinstance(decode(frames), Fatal)


def test_a_missing_max_tokens_fails_the_request_only() -> None:
    command = add(max_tokens=None)
    assert isinstance(command, Add)
    assert command.request.failure is not None


def test_the_first_structured_request_settles_the_backend() -> None:
    codec = VllmCodec(EngineOptions())

    def failure(**fields: Any) -> str | None:
        row = [*BASE]
        row[3] = constraint(**fields)
        command = codec.decode([b"\x00", msgpack.packb(row)], 0.0)
        assert isinstance(command, Add)
        return command.request.failure

    assert failure(json="{}") is not None
    assert failure(json="{}", _backend="xgrammar") is None
    assert failure(choice=["a"], _backend="guidance") is not None
    assert failure(regex="[a-") is not None
    assert failure(regex="[a-z]+") is None
    assert failure(json="{") is not None
    assert failure(regex="(" * 20_000 + ")" * 20_000) is not None
    assert failure(json="[" * 100_000) is not None
    assert failure(structural_tag="[" * 100_000) is not None


@pytest.mark.parametrize(
    "path", sorted(VECTORS.glob("vllm-*/req_*.json")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_every_request_the_real_front_end_encodes_is_taken(path: Path) -> None:
    frames = [bytes.fromhex(frame) for frame in json.loads(path.read_text())["frames_hex"]]
    command = decode(frames, supported_tasks=("generate", "token_embed"))
    if path.stem == "req_add_prompt_embeds":
        assert isinstance(command, Fatal)
        return
    assert not isinstance(command, Malformed | Fatal | Ignored), command
