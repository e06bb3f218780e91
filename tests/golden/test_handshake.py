"""The handshake vectors, read as the gateway and written as the gateway."""

from __future__ import annotations

import pytest

from smg_trio.core.engines import EngineProtocol
from smg_trio.wire.handshake import (
    HandshakeMessage,
    decode_handshake,
    decode_registration,
    encode_init,
    identity_of_rank,
    rank_of_identity,
)

from .loading import TOKENSPEED_VERSIONS, VLLM_VERSIONS, Vector, label, load, vectors

ALL_VERSIONS = (*VLLM_VERSIONS, *TOKENSPEED_VERSIONS)


def spoken_by_engines() -> list[Vector]:
    return [vector for vector in vectors("hs_", ALL_VERSIONS) if not vector.name.startswith("hs_init")]


@pytest.mark.parametrize("vector", spoken_by_engines(), ids=label)
def test_hello_and_ready_are_read(vector: Vector) -> None:
    fields = vector.generic()
    assert decode_handshake(vector.frames[0]) == HandshakeMessage(
        fields["status"], fields["local"], fields["headless"], fields.get("parallel_config_hash")
    )


@pytest.mark.parametrize(
    "vector", [v for v in vectors("hs_init", ALL_VERSIONS) if v.name != "hs_init_coordinator"], ids=label
)
def test_init_is_written_as_the_engines_own_front_end_writes_it(vector: Vector) -> None:
    fields = vector.generic()
    addresses = fields["addresses"]
    written = encode_init(addresses["inputs"], addresses["outputs"], fields["parallel_config"])
    assert written == vector.frames[0]


@pytest.mark.parametrize("vector", vectors("registration", ALL_VERSIONS), ids=label)
def test_a_registration_is_read(vector: Vector) -> None:
    protocol = EngineProtocol.VLLM if vector.folder in VLLM_VERSIONS else EngineProtocol.TOKENSPEED
    fields = vector.generic()
    info = decode_registration(vector.frames[0], protocol)
    assert info.max_model_len == fields["max_model_len"]
    assert info.num_gpu_blocks == fields["num_gpu_blocks"]
    assert info.block_size == fields.get("block_size", fields.get("prefix_granularity"))
    assert info.engine_version == fields["vllm_version"]
    assert info.data_parallel_size == fields["data_parallel_size"]
    assert info.data_parallel_rank == fields["data_parallel_rank"]
    assert info.world_size == fields["world_size"]
    assert info.max_num_seqs == fields["max_num_seqs"]
    assert info.max_num_batched_tokens == fields["max_num_batched_tokens"]
    assert info.kv_cache_size_tokens == fields["kv_cache_size_tokens"]
    assert info.dtype == fields["dtype"]
    assert info.instance_id == fields["instance_id"]
    assert info.supports_lora is fields.get("supports_lora", False)


@pytest.mark.parametrize("folder", ALL_VERSIONS)
def test_the_identity_of_a_rank_is_its_index(folder: str) -> None:
    for name, rank in (("hs_hello", 0), ("hs_hello_rank1", 1)):
        identity = load(folder, name).identity
        assert identity is not None
        assert rank_of_identity(identity) == rank
        assert identity_of_rank(rank) == identity
