"""msgpack's edges."""

from __future__ import annotations

from types import MappingProxyType

import msgpack
import pytest

from smg_trio.wire import packing
from smg_trio.wire.packing import MALFORMED, Malformed, describe, pack, unpack, unpack_map


@pytest.mark.parametrize("code", [1, 2, 4, -1, 127])
def test_extensions_other_than_tensors_are_refused(code: int) -> None:
    with pytest.raises(MALFORMED):
        unpack(msgpack.packb([msgpack.ExtType(code, b"\x80\x04N.")]))


def test_tensor_bytes_come_out_as_bytes_and_map_keys_as_they_are() -> None:
    assert unpack(msgpack.packb([msgpack.ExtType(3, b"ab"), {1: 2}])) == [b"ab", {1: 2}]


def test_pack_asks_the_default_for_unknown_types() -> None:
    assert unpack(pack([1, frozenset({2})], default=list)) == [1, [2]]


def test_a_map_is_demanded_where_a_map_is_due() -> None:
    assert unpack_map(b"\x80") == {}
    with pytest.raises(Malformed):
        unpack_map(b"\x90")


def test_a_header_that_claims_more_than_the_frame_holds_costs_nothing() -> None:
    for header in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
        with pytest.raises(MALFORMED):
            unpack(header + b"\xc0" * 16)


def test_nesting_without_end_is_malformed() -> None:
    with pytest.raises(MALFORMED):
        unpack(b"\x91" * 100_000 + b"\xc0")


def test_a_frame_over_the_limit_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_FRAME_BYTES", 8)
    assert unpack(b"\x97" + b"\xc0" * 7) == [None] * 7
    with pytest.raises(Malformed, match="over the limit"):
        unpack(b"\x98" + b"\xc0" * 8)


def test_a_reason_holds_no_payload() -> None:
    with pytest.raises(MALFORMED) as caught:
        unpack(b"\xa6secret\xa1")
    assert "secret" not in describe(caught.value)
    assert describe(KeyError("secret")) == "malformed message (KeyError)"
    assert describe(Malformed("expected a map")) == "expected a map"


def test_pack_says_any_mapping_as_a_map_and_refuses_what_it_cannot_say() -> None:
    assert unpack(pack({"a": MappingProxyType({"b": [1, (2,)]})})) == {"a": {"b": [1, [2]]}}
    with pytest.raises(TypeError):
        pack([object()])
    assert unpack(pack([1])) == [1]  # nothing of the message that failed is left behind
