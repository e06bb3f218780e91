"""The common interface: dispatch, sentinels, and laws both protocols obey."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import ProtocolViolation, UnsupportedFeature
from smg_trio.wire.codec import ENGINE_CORE_DEAD, EngineCodec, codec_for, is_dead_sentinel

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 63) | st.floats(allow_nan=False) | st.text(max_size=4)
    | st.binary(max_size=4) | st.just(msgpack.ExtType(3, b"\0" * 4)) | st.just(msgpack.ExtType(1, b"x")),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


def stage_of_failure(protocol: EngineProtocol, frames: list[bytes]) -> str | None:
    """The stage a decode failed in, None if it did not; anything but a violation fails the test."""
    try:
        codec_for(protocol).decode_outputs(frames)
    except ProtocolViolation as violation:
        return violation.stage
    return None


@pytest.mark.parametrize("protocol", list(EngineProtocol))
def test_each_protocol_has_its_codec(protocol: EngineProtocol) -> None:
    codec: EngineCodec = codec_for(protocol)
    assert codec.protocol is protocol


def test_tokenspeed_has_neither_waves_nor_utilities() -> None:
    codec = codec_for(EngineProtocol.TOKENSPEED)
    with pytest.raises(UnsupportedFeature):
        codec.encode_start_wave(1)
    with pytest.raises(UnsupportedFeature, match="is_sleeping"):
        codec.encode_utility(1, "is_sleeping", ())


def test_the_sentinel_is_a_message_of_its_own() -> None:
    assert is_dead_sentinel([ENGINE_CORE_DEAD])
    assert not is_dead_sentinel([ENGINE_CORE_DEAD, b""])
    assert not is_dead_sentinel([b"ENGINE_CORE_DEAD "])
    assert not is_dead_sentinel([])


@pytest.mark.parametrize("protocol", list(EngineProtocol))
@settings(max_examples=150)
@given(frames=st.lists(st.binary(max_size=40), max_size=3))
def test_random_bytes_raise_nothing_but_a_violation(protocol: EngineProtocol, frames: list[bytes]) -> None:
    assert stage_of_failure(protocol, frames) in {"output", None}


@pytest.mark.parametrize("protocol", list(EngineProtocol))
@settings(max_examples=250)
@given(data=st.data())
def test_well_packed_nonsense_raises_nothing_but_a_violation(protocol: EngineProtocol, data: st.DataObject) -> None:
    if protocol is EngineProtocol.VLLM:
        output = st.lists(PLAIN, max_size=14) | st.tuples(
            st.just("r"), st.just([1]), PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN
        )
        message = [0, data.draw(st.lists(output, max_size=2)), *data.draw(st.lists(PLAIN, max_size=7))]
    else:
        message = ["BatchTokenIDOutSlim", *data.draw(st.lists(PLAIN | st.just(["r"]), max_size=14))]
    assert stage_of_failure(protocol, [msgpack.packb(message), b"\0" * 4]) in {"output", None}
