from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.outputs import FinishReason
from smg_trio.testing.commands import Abort, Add, Command, EngineRequest, Malformed
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.script import Tick
from smg_trio.testing.sequences import Load, RunningSequence
from smg_trio.testing.tokenspeed_codec import TokenSpeedCodec

from .front_end import tokenspeed_add

VECTORS = Path(__file__).parents[1] / "golden" / "vectors"
VERSIONS = ("0.1.0", "0.1.1")
SAMPLING = {
    "max_new_tokens": 0, "stop": 1, "stop_token_ids": 2, "temperature": 3, "top_p": 4, "top_k": 5, "min_p": 6,
    "frequency_penalty": 7, "presence_penalty": 8, "repetition_penalty": 9, "min_new_tokens": 10,
    "json_schema": 11, "regex": 12, "ebnf": 13, "ignore_eos": 15, "stream_interval": 21, "logit_bias": 22,
    "logprobs": 24, "n": 25,
}  # fmt: skip
DEFAULTS = [
    None, None, None, 1.0, 1.0, -1, 0.0, 0.0, 0.0, 1.0, 0, None, None, None, None, False, True, True, False,
    None, None, None, None, None, None, 1,
]  # fmt: skip


def codec_of(version: str = "0.1.1", **options: Any) -> TokenSpeedCodec:
    defaults = {"max_model_len": 100, "vocab_size": 1000, "eos_token_id": 2}
    return TokenSpeedCodec(EngineOptions(protocol=EngineProtocol.TOKENSPEED, version=version, **defaults | options))


def decode(frames: list[bytes], **options: Any) -> Command:
    return codec_of(**options).decode(frames, 0.0)


def asked(**sampling: Any) -> EngineRequest:
    row = [*DEFAULTS]
    for name, value in sampling.items():
        row[SAMPLING[name]] = value
    command = decode(tokenspeed_add("r", sampling=row))
    assert isinstance(command, Add), command
    return command.request


def vector(version: str, name: str) -> Any:
    raw = json.loads((VECTORS / f"tokenspeed-{version}" / f"{name}.json").read_text())
    return [bytes.fromhex(frame) for frame in raw["frames_hex"]]


@pytest.mark.parametrize("version", VERSIONS)
def test_handshake_maps_look_like_the_real_ones(version: str) -> None:
    codec = codec_of(version)
    for name, ours in (("hs_hello", codec.hello()), ("hs_ready", codec.ready())):
        assert msgpack.unpackb(ours) == msgpack.unpackb(vector(version, name)[0])
    real = msgpack.unpackb(vector(version, "registration")[0])
    registered = msgpack.unpackb(codec.registration())
    assert set(registered) == set(real)
    assert registered["vllm_version"] == real["vllm_version"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_step_looks_like_the_real_encoding(version: str) -> None:
    real = msgpack.unpackb(vector(version, "out_batch")[0])
    sequences = []
    for i, name in enumerate(real[1]):
        finish = FinishReason(real[3][i]) if real[3][i] else None
        request = EngineRequest(request_id=name, prompt_token_ids=[1] * real[4][i], max_tokens=99)
        sequence = RunningSequence(request, iter([Tick(real[2][i], finish)]), 0.0)
        sequence.completion_tokens = real[5][i] - len(real[2][i])
        sequence.cached_tokens = real[6][i]
        sequence.advance()
        sequences.append(sequence)
    ours = msgpack.unpackb(codec_of(version, stats=False).step(sequences, Load(), 0.0)[0])
    assert ours == real


def test_the_load_is_reported_in_pages_by_the_newer_version_only() -> None:
    load = Load(running=3, waiting=1, kv_usage=0.25)
    rows = [msgpack.unpackb(codec_of(version, num_gpu_blocks=40).step([], load, 0.0)[0]) for version in VERSIONS]
    assert [row[10:] for row in rows] == [[], [3, 1, 10, 40]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", sorted(VECTORS.glob("tokenspeed-*/req_*.json")), ids=lambda path: path.stem)
def test_every_request_the_real_front_end_encodes_is_taken(version: str, path: Path) -> None:
    frames = [bytes.fromhex(frame) for frame in json.loads(path.read_text())["frames_hex"]]
    command = codec_of(version).decode(frames, 0.0)
    assert isinstance(command, Add | Abort), command
    if isinstance(command, Add):
        assert (command.request.failure is not None) == ("rejected" in path.stem), command.request.failure


OUT_OF_RANGE: dict[str, dict[str, Any]] = {
    "negative temperature": {"temperature": -0.5},
    "top_p zero": {"top_p": 0.0},
    "top_k 128": {"top_k": 128},
    "top_k zero": {"top_k": 0},
    "min_p above one": {"min_p": 1.5},
    "frequency penalty": {"frequency_penalty": 2.5},
    "presence penalty": {"presence_penalty": -2.5},
    "repetition penalty": {"repetition_penalty": 2.5},
    "minimum above maximum": {"max_new_tokens": 3, "min_new_tokens": 4},
    "two sequences": {"n": 2},
    "top logprobs": {"logprobs": 1},
    "two constraints": {"regex": "a", "ebnf": "root ::= 'a'"},
    "bias outside the vocabulary": {"logit_bias": {"1000": 1.0}},
    "stop strings": {"stop": ["x"]},
    "broken schema": {"json_schema": "{"},
    "deep schema": {"json_schema": "[" * 100_000},
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_what_the_real_verify_refuses_ends_with_abort(name: str) -> None:
    request = asked(**OUT_OF_RANGE[name])
    assert request.failure is not None
    row = msgpack.unpackb(codec_of().ended([request], FinishReason.ERROR, Load(), 0.0)[0])
    assert row[1:6] == [["r"], [[]], ["abort"], [3], [0]]


@pytest.mark.parametrize(
    "fields",
    [{"top_k": 127}, {"top_k": 1 << 30}, {"logit_bias": {"999": -2.5}}, {"temperature": 0}, {"regex": "a"}],
)
def test_what_the_real_verify_takes_is_taken(fields: dict[str, Any]) -> None:
    assert asked(**fields).failure is None


@pytest.mark.parametrize(
    "frames",
    [
        [b"\x00", b"\xc1"],
        [b"\x09", msgpack.packb([1])],
        [b"\x81"],
        [b"\x00", msgpack.packb(["SomethingElse", "r", None, None, [1], []])],
        [b"\x00", msgpack.packb(["TokenizedGenerateReqInput", "r", None, None, [1]])],
        [b"\x00", msgpack.packb(["TokenizedGenerateReqInput", "r", None, None, [1], ["four"]])],
        [b"\x01", msgpack.packb("r")],
    ],
)
def test_malformed_messages_are_dropped(frames: list[bytes]) -> None:
    command = decode(frames)
    assert isinstance(command, Malformed)
    assert "dropped" in command.reason


def test_the_engine_knows_its_eos_unless_told_to_ignore_it() -> None:
    assert asked().eos_token_id == 2
    assert asked(ignore_eos=True).eos_token_id is None


def test_a_missing_limit_is_the_rest_of_the_context() -> None:
    assert asked().max_tokens == 100 - 3 - 1
    assert asked(max_new_tokens=5000).max_tokens == 100 - 3 - 1


def test_a_request_that_does_not_stream_is_told_every_fifty_tokens() -> None:
    command = decode(tokenspeed_add("r", stream=False))
    assert isinstance(command, Add)
    assert command.request.stream_interval == 50
    assert asked(stream_interval=3).stream_interval == 3


def test_logprobs_need_the_engine_option() -> None:
    for enabled in (True, False):
        command = decode(tokenspeed_add("r", return_logprob=True), output_logprobs=enabled)
        assert isinstance(command, Add)
        assert (command.request.failure is None) == enabled
