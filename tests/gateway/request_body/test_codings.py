"""Compressed bodies are what they were before they were compressed, in bounded parts, or broken; whatever is sent."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.gateway.request_body.codings import (
    DecompressionFailed,
    StandardZstdFrame,
    Unpacking,
    UnsupportedContentEncoding,
    accepted_codings,
    coding_of,
)

zstandard = pytest.importorskip("zstandard", reason="needs the extra zstd")

MIB = 1 << 20
PIECE = 256 * 1024
ZSTD_OVERSHOOT = 5 * MIB


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate without zlib's header": ("deflate", raw_deflate),
    "zstd": ("zstd", zstandard.ZstdCompressor().compress),
}
every_packer = pytest.mark.parametrize(("coding", "pack"), PACKERS.values(), ids=list(PACKERS))


def unpacked(coding: str, data: bytes) -> bytes:
    unpacking = Unpacking(coding, data)
    parts: list[bytes] = []
    while not unpacking.ended:
        parts += unpacking.next_pieces(PIECE)
    return b"".join(parts)


@every_packer
@given(data=st.binary(max_size=3000), times=st.sampled_from([0, 1, 2, 999]))
def test_what_was_compressed_comes_back(coding: str, pack: Callable[[bytes], bytes], data: bytes, times: int) -> None:
    assert unpacked(coding, pack(data * times)) == data * times


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_several_members_are_one_body(name: str) -> None:
    coding, pack = PACKERS[name]
    assert unpacked(coding, pack(b"a" * 100_000) + pack(b"") + pack(b"b")) == b"a" * 100_000 + b"b"
    with pytest.raises(DecompressionFailed):
        unpacked(coding, pack(b"") * 5_000)


@every_packer
def test_a_bomb_comes_in_bounded_parts(coding: str, pack: Callable[[bytes], bytes]) -> None:
    unpacking = Unpacking(coding, pack(b"\0" * (100 * MIB)))
    for _ in range(5):
        size = sum(map(len, unpacking.next_pieces(PIECE)))
        assert PIECE <= size <= PIECE + (ZSTD_OVERSHOOT if coding == "zstd" else PIECE)


@every_packer
def test_what_ends_too_early_or_goes_on_is_broken(coding: str, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(bytes(range(256)) * 4)
    for end in range(1, len(packed)):
        with pytest.raises(DecompressionFailed):
            unpacked(coding, packed[:end])
    with pytest.raises(DecompressionFailed):
        unpacked(coding, packed + b"and more")


@every_packer
@given(data=st.binary(min_size=1, max_size=40), at=st.integers(0, 200))
def test_whatever_is_broken_is_nothing_but_broken(
    coding: str, pack: Callable[[bytes], bytes], data: bytes, at: int
) -> None:
    packed = bytearray(pack(b"some text " * 20))
    packed[at : at + len(data)] = data
    for broken in (bytes(packed), data):
        with suppress(DecompressionFailed):
            unpacked(coding, broken)


def test_a_window_that_needs_much_memory_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=25, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(b"a" * 1000) + packer.flush()
    with pytest.raises(DecompressionFailed):
        unpacked("zstd", packed)


def test_pythons_own_zstd_reads_the_same() -> None:
    try:
        from compression import zstd
    except ImportError:
        zstd = pytest.importorskip("backports.zstd", reason="needs Python 3.14 or backports.zstd")
    body = b"some text " * 200_000
    frame = StandardZstdFrame(zstd)
    packed, got, position = zstandard.ZstdCompressor().compress(body), b"", 0
    while not frame.eof:
        piece = frame.push(packed[position : position + 100] if frame.hungry else b"")
        position += 100 if frame.hungry else 0
        assert len(piece) <= PIECE
        got += piece
    assert got == body


@pytest.mark.parametrize(
    ("value", "coding"),
    [("", ""), ("identity", ""), ("gzip", "gzip"), (" GZIP ", "gzip"), ("x-gzip", "gzip"), ("deflate", "deflate"),
     ("zstd", "zstd"), ("identity, gzip", "gzip"), (",", "")],
)  # fmt: skip
def test_known_codings(value: str, coding: str) -> None:
    assert coding_of({"content-encoding": value}) == coding


@pytest.mark.parametrize("value", ["br", "gzip, gzip", "zstd,gzip", "compress", "*", "gzip;q=1", "x" * 1000])
def test_unknown_codings_are_refused(value: str) -> None:
    with pytest.raises(UnsupportedContentEncoding) as caught:
        coding_of({"content-encoding": value})
    assert ", ".join(accepted_codings()) in caught.value.message
    assert len(caught.value.message) < 200
