"""Handshake messages beyond the golden vectors: what engines get wrong, and what they may leave out."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.errors import ProtocolViolation
from smg_trio.wire.handshake import (
    HandshakeMessage,
    decode_handshake,
    decode_registration,
    encode_init,
    identity_of_rank,
    rank_of_identity,
)


def test_only_the_status_is_required_of_a_handshake_message() -> None:
    assert decode_handshake(msgpack.packb({"status": "HELLO", "more": 1})) == HandshakeMessage("HELLO")


@pytest.mark.parametrize("frame", [b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"status": 3}), b"HELLO"])
def test_a_broken_handshake_message_is_a_violation_of_its_stage(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        decode_handshake(frame)
    assert caught.value.stage == "handshake"


def test_init_names_no_coordinator() -> None:
    init = msgpack.unpackb(encode_init(["ipc://i"], ["ipc://o"], {"data_parallel_size": 2}))
    assert init["addresses"] == {
        "inputs": ["ipc://i"],
        "outputs": ["ipc://o"],
        "coordinator_input": None,
        "coordinator_output": None,
        "frontend_stats_publish_address": None,
    }
    assert init["parallel_config"] == {"data_parallel_size": 2}


def test_a_context_length_alone_registers_a_vllm_engine() -> None:
    frame = msgpack.packb({"max_model_len": 8, "dtype": 5, "world_size": None, "new_key": {}})
    assert decode_registration(frame, EngineProtocol.VLLM) == EngineInfo(max_model_len=8)


def test_tokenspeed_may_leave_its_context_length_out() -> None:
    assert decode_registration(msgpack.packb({}), EngineProtocol.TOKENSPEED) == EngineInfo(max_model_len=0)


@pytest.mark.parametrize("fields", [{}, {"max_model_len": 0}, {"max_model_len": "8"}, {"max_model_len": True}])
def test_a_vllm_engine_without_a_context_length_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ProtocolViolation, match="positive max_model_len") as caught:
        decode_registration(msgpack.packb(fields), EngineProtocol.VLLM)
    assert caught.value.stage == "registration"


@pytest.mark.parametrize(
    ("version", "protocol"),
    [("tokenspeed-0.1.1", EngineProtocol.VLLM), ("0.32.0", EngineProtocol.TOKENSPEED)],
)
def test_an_engine_of_the_other_family_is_refused(version: str, protocol: EngineProtocol) -> None:
    frame = msgpack.packb({"max_model_len": 8, "vllm_version": version})
    with pytest.raises(ProtocolViolation, match="engine protocol is"):
        decode_registration(frame, protocol)


@given(st.integers(0, 0xFFFF))
def test_identity_and_rank_are_inverse(rank: int) -> None:
    assert rank_of_identity(identity_of_rank(rank)) == rank


def test_foreign_identities_and_ranks_are_refused() -> None:
    for identity in (b"", b"\0", b"\0\0\0", b"\0\x80\0\x41\xa7"):
        with pytest.raises(ProtocolViolation):
            rank_of_identity(identity)
    for rank in (-1, 0x10000):
        with pytest.raises(ValueError, match="outside"):
            identity_of_rank(rank)


@settings(max_examples=100)
@given(st.binary(max_size=64))
def test_random_bytes_raise_nothing_but_a_violation(frame: bytes) -> None:
    for decode in (decode_handshake, lambda f: decode_registration(f, EngineProtocol.TOKENSPEED)):
        # Any other exception fails the test; which of the two it is, is up to the bytes.
        with contextlib.suppress(ProtocolViolation):
            decode(frame)
