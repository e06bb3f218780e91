"""The start-up messages, alike for both engine protocols: HELLO, INIT, READY, registration.

An engine says HELLO on the handshake socket, is told its data addresses in INIT, says READY there and
sends its registration on the input socket; the last two come in either order. All are msgpack maps;
unknown keys are ignored and missing ones defaulted (vLLM 0.27.1 to 0.33.0, TokenSpeed 0.1.0 and 0.1.1).

Mirrors vLLM 0.32.0's `vllm/v1/engine/core.py` (``EngineCoreProc.startup_handshake``), `vllm/v1/engine/utils.py`
(``EngineZmqAddresses``, ``EngineHandshakeMetadata``) and `vllm/v1/engine/__init__.py` (``EngineCoreReadyResponse``),
and TokenSpeed 0.1.1's `tokenspeed/runtime/engine/zmq_wire.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.errors import ProtocolViolation
from smg_trio.wire.packing import MALFORMED, Malformed, describe, pack, unpack_map

HELLO: Final = "HELLO"
READY: Final = "READY"
_IDENTITY_BYTES: Final = 2
_MAX_RANK: Final = 0xFFFF
_RELAYED: Final = "smg_trio_relayed"
_TOKENSPEED_VERSION: Final = "tokenspeed-"


@dataclass(frozen=True, slots=True)
class HandshakeMessage:
    """What an engine says on the handshake socket.

    Attributes:
        status: `HELLO` or `READY` from engines known today; any word is passed on.
        local: vLLM's ``--headless`` engines say False, TokenSpeed says True.
        headless: True for every engine started with ``--headless``.
        parallel_config_hash: only in READY of a vLLM rank in a lockstep group.
    """

    status: str
    local: bool = False
    headless: bool = False
    parallel_config_hash: str | None = None


def decode_handshake(frame: bytes) -> HandshakeMessage:
    """Decode HELLO or READY. Raises ProtocolViolation("handshake", …)."""
    try:
        fields = unpack_map(frame)
        status = fields.get("status")
        if type(status) is not str:
            raise Malformed("handshake message without a status")
    except MALFORMED as error:
        raise ProtocolViolation("handshake", describe(error)) from None
    digest = fields.get("parallel_config_hash")
    return HandshakeMessage(
        status=status,
        local=fields.get("local") is True,
        headless=fields.get("headless") is True,
        parallel_config_hash=digest if isinstance(digest, str) else None,
    )


def encode_init(
    inputs: Sequence[str], outputs: Sequence[str], parallel_config: Mapping[str, object] | None = None
) -> bytes:
    """Encode INIT: where the engine connects its data sockets.

    Args:
        inputs, outputs: ZMQ endpoints; engines use the first of each.
        parallel_config: set on a vLLM engine's own configuration key by key. Empty is right for one
            engine, for dense groups, and for a lockstep group whose ranks one launcher spawned.

    The coordinator addresses are always null: with one the engine would wait for a coordinator's READY.
    """
    addresses = {
        "inputs": list(inputs),
        "outputs": list(outputs),
        "coordinator_input": None,
        "coordinator_output": None,
        "frontend_stats_publish_address": None,
    }
    return pack({"addresses": addresses, "parallel_config": dict(parallel_config or {})})


def decode_registration(frame: bytes, protocol: EngineProtocol) -> EngineInfo:
    """Decode the map an engine registers with (``EngineCoreReadyResponse``).

    vLLM must name a positive ``max_model_len``; TokenSpeed may leave it out (0 = unknown). Everything
    else is defaulted where it is missing or of another type.

    Raises:
        ProtocolViolation: "registration": not a map, no context length, or an engine that says it
            speaks the other protocol (its first request would make it deaf).
    """
    try:
        fields = unpack_map(frame)
        version = _text(fields, "vllm_version")
        _check_family(version, protocol)
        max_model_len = _count(fields, "max_model_len")
        if max_model_len < 1 and protocol is EngineProtocol.VLLM:
            raise Malformed("registration without a positive max_model_len")
    except MALFORMED as error:
        raise ProtocolViolation("registration", describe(error)) from None
    return EngineInfo(
        max_model_len=max_model_len,
        num_gpu_blocks=_count(fields, "num_gpu_blocks"),
        block_size=_count(fields, "block_size") or _count(fields, "prefix_granularity"),
        dtype=_text(fields, "dtype"),
        engine_version=version,
        world_size=_count(fields, "world_size") or 1,
        data_parallel_size=_count(fields, "data_parallel_size") or 1,
        data_parallel_rank=_count(fields, "data_parallel_rank"),
        tensor_parallel_size=_count(fields, "tensor_parallel_size") or 1,
        pipeline_parallel_size=_count(fields, "pipeline_parallel_size") or 1,
        max_num_seqs=_count(fields, "max_num_seqs"),
        max_num_batched_tokens=_count(fields, "max_num_batched_tokens"),
        instance_id=_text(fields, "instance_id"),
        supports_lora=fields.get("supports_lora") is True,
        max_loras=_count(fields, "max_loras"),
        kv_cache_size_tokens=_count(fields, "kv_cache_size_tokens") or None,
    )


def encode_relayed_registration(info: EngineInfo) -> bytes:
    """What the keeper registers with in an engine's place, at a front that the engine has no pair for."""
    fields: dict[str, object] = {
        "max_model_len": info.max_model_len,
        "num_gpu_blocks": info.num_gpu_blocks,
        "block_size": info.block_size,
        "dtype": info.dtype,
        "vllm_version": info.engine_version,
        "world_size": info.world_size,
        "data_parallel_size": info.data_parallel_size,
        "data_parallel_rank": info.data_parallel_rank,
        "tensor_parallel_size": info.tensor_parallel_size,
        "pipeline_parallel_size": info.pipeline_parallel_size,
        "max_num_seqs": info.max_num_seqs,
        "max_num_batched_tokens": info.max_num_batched_tokens,
        "instance_id": info.instance_id,
        "supports_lora": info.supports_lora,
        "kv_cache_size_tokens": info.kv_cache_size_tokens,
        _RELAYED: info.pairs,
    }
    return pack(fields)


def relayed_pairs(frame: bytes) -> int:
    """How many pairs the engine has of a registration by `encode_relayed_registration`; 0 for any other.

    The registration must be one that can be decoded.
    """
    return _count(unpack_map(frame), _RELAYED)


def rank_of_identity(identity: bytes) -> int:
    """The rank of a ROUTER identity (2 bytes, little-endian). Raises ProtocolViolation("handshake", …)."""
    if len(identity) != _IDENTITY_BYTES:
        raise ProtocolViolation("handshake", f"engine identity of {len(identity)} bytes, expected 2")
    return int.from_bytes(identity, "little")


def identity_of_rank(rank: int) -> bytes:
    """The ROUTER identity of a rank, 0..65535. Raises ValueError outside."""
    if not 0 <= rank <= _MAX_RANK:
        raise ValueError(f"rank {rank} is outside 0..{_MAX_RANK}")
    return rank.to_bytes(_IDENTITY_BYTES, "little")


def _check_family(version: str, protocol: EngineProtocol) -> None:
    # TokenSpeed prefixes its version with its name; vLLM's starts with a digit ("0.32.0").
    if version.startswith(_TOKENSPEED_VERSION):
        actual = EngineProtocol.TOKENSPEED
    elif version[:1].isdigit():
        actual = EngineProtocol.VLLM
    else:
        return
    if actual is not protocol:
        raise Malformed(f"a {actual} engine dialed in to a worker whose engine protocol is {protocol}")


def _count(fields: Mapping[str, Any], key: str) -> int:
    value = fields.get(key)
    return value if type(value) is int and value > 0 else 0


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    return value if isinstance(value, str) else ""
