"""Compressed request bodies: which codings are taken, and how they are unpacked piece by piece. Pure.

gzip and deflate (RFC 9110, 8.4.1) always; zstd (RFC 8878, with the window of RFC 9659) where Python has it, from 3.14
on, or where the package ``zstandard`` is installed (extra ``zstd``). A little input can become a lot: `Unpacking` gives
a bounded part at a time, so that its caller can stop.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, Protocol

from smg_trio.core.errors import ClientFault

PIECE_BYTES: Final = 256 * 1024
"""Unpacked per step; zstandard may go beyond that, up to 4 MiB."""
_MOST_FRAMES: Final = 1_000
"""Members or frames that one body may consist of: each can be empty, and a body be made of millions."""
_MOST_WINDOW: Final = 8 * 1024 * 1024
_ALIASES: Final = {"x-gzip": "gzip"}


class UnsupportedContentEncoding(ClientFault):
    """A body in a coding that is not taken; the header `Accept-Encoding` names those that are."""

    code = "unsupported_content_encoding"
    status = 415


class DecompressionFailed(ClientFault):
    """A compressed body is broken, or ends too early."""

    code = "decompression_failed"


class Frame(Protocol):
    """One gzip member, deflate stream or zstd frame.

    Attributes:
        feed: how much input it is given per step.
    """

    feed: int

    @property
    def eof(self) -> bool:
        """It has come to its end."""
        ...

    @property
    def hungry(self) -> bool:
        """It needs more input."""
        ...

    @property
    def rest(self) -> bytes:
        """Input behind its end."""
        ...

    def push(self, data: bytes) -> bytes:
        """Take input, which may be none, and return some output, which may be none. Raises what its library does."""
        ...


class _ZlibFrame:
    feed = 64 * 1024

    def __init__(self, window_bits: int) -> None:
        self._object = zlib.decompressobj(window_bits)

    @property
    def eof(self) -> bool:
        return self._object.eof

    @property
    def hungry(self) -> bool:
        return not self._object.unconsumed_tail

    @property
    def rest(self) -> bytes:
        return self._object.unused_data

    def push(self, data: bytes) -> bytes:
        return self._object.decompress(self._object.unconsumed_tail + data, PIECE_BYTES)


class StandardZstdFrame:
    """A frame read with Python's own ``compression.zstd``, or a module with the same names."""

    feed = 64 * 1024

    def __init__(self, module: Any) -> None:
        options = {module.DecompressionParameter.window_log_max: _MOST_WINDOW.bit_length() - 1}
        self._object = module.ZstdDecompressor(options=options)

    @property
    def eof(self) -> bool:
        """See `Frame`."""
        return bool(self._object.eof)

    @property
    def hungry(self) -> bool:
        """See `Frame`."""
        return bool(self._object.needs_input)

    @property
    def rest(self) -> bytes:
        """See `Frame`."""
        return bytes(self._object.unused_data)

    def push(self, data: bytes) -> bytes:
        """See `Frame`."""
        return bytes(self._object.decompress(data, PIECE_BYTES))


class ZstandardFrame:
    """A frame read with the package ``zstandard``, whose output cannot be bounded but by little input.

    Four bytes may become a block of 128 KiB.
    """

    feed = 128
    hungry = True

    def __init__(self, module: Any) -> None:
        self._object = module.ZstdDecompressor(max_window_size=_MOST_WINDOW).decompressobj()

    @property
    def eof(self) -> bool:
        """See `Frame`."""
        return bool(self._object.eof)

    @property
    def rest(self) -> bytes:
        """See `Frame`."""
        return bytes(self._object.unused_data)

    def push(self, data: bytes) -> bytes:
        """See `Frame`."""
        return bytes(self._object.decompress(data))


NewFrame = Callable[[], Frame]


@cache
def zstd_frames() -> tuple[NewFrame, type[Exception]] | None:
    """What reads frames of zstd, and what it raises; None where nothing does."""
    for name, kind in (("compression.zstd", StandardZstdFrame), ("zstandard", ZstandardFrame)):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        return _new(kind, module), module.ZstdError
    return None


def _new(kind: Callable[[Any], Frame], module: Any) -> NewFrame:
    return lambda: kind(module)


@cache
def accepted_codings() -> tuple[str, ...]:
    """The codings that bodies may have here."""
    return ("gzip", "deflate") if zstd_frames() is None else ("gzip", "deflate", "zstd")


def coding_of(headers: Mapping[str, str]) -> str:
    """The coding of a request's body; "" for none. Raises UnsupportedContentEncoding."""
    value = headers.get("content-encoding")
    if not value:
        return ""
    named = [coding for part in value.lower().split(",") if (coding := part.strip()) not in ("", "identity")]
    if not named:
        return ""
    coding = _ALIASES.get(named[0], named[0])
    if len(named) == 1 and coding in accepted_codings():
        return coding
    hint = " zstd needs Python 3.14 or the extra smg-trio[zstd]." if named == ["zstd"] else ""
    raise UnsupportedContentEncoding(
        f"The content-encoding `{value[:40]}` is not supported; send `{', '.join(accepted_codings())}`, or plain JSON."
        f"{hint}"
    )


class Unpacking:
    """A compressed body on its way to what it was made of.

    Attributes:
        ended: all of it has been returned.
    """

    def __init__(self, coding: str, data: bytes) -> None:
        """`coding`: one of `accepted_codings`."""
        self._coding = coding
        self._data = data
        self._position = 0
        self._several = coding != "deflate"
        self._new_frame, self._error = _frames_of(coding, data)
        self._frame = self._new_frame()
        self._frames = 1
        self.ended = False

    def next_pieces(self, most: int) -> list[bytes]:
        """The next `most` bytes, or a piece more than that; fewer only at the end. Raises DecompressionFailed."""
        pieces: list[bytes] = []
        size = 0
        try:
            while size < most and (piece := self._next_piece()):
                pieces.append(piece)
                size += len(piece)
        except self._error:
            raise DecompressionFailed(f"The body is not valid {self._coding}.") from None
        self.ended = size < most
        return pieces

    def _next_piece(self) -> bytes:
        while True:
            frame = self._frame
            if frame.eof:
                self._position -= len(frame.rest)
                if self._position == len(self._data):
                    return b""
                frame = self._begin_frame()
            fed = frame.hungry and self._position < len(self._data)
            piece = frame.push(self._take(frame.feed) if fed else b"")
            if piece:
                return piece
            if not fed and not frame.eof:
                raise DecompressionFailed(f"The {self._coding} body ends too early.")

    def _begin_frame(self) -> Frame:
        self._frames += 1
        if not self._several or self._frames > _MOST_FRAMES:
            raise DecompressionFailed(f"Something follows the end of the {self._coding} body.")
        self._frame = self._new_frame()
        return self._frame

    def _take(self, size: int) -> bytes:
        data = self._data[self._position : self._position + size]
        self._position += len(data)
        return data


def _frames_of(coding: str, data: bytes) -> tuple[NewFrame, type[Exception]]:
    if coding == "gzip":
        return lambda: _ZlibFrame(16 + zlib.MAX_WBITS), zlib.error
    if coding == "deflate":
        bits = zlib.MAX_WBITS if _has_zlib_header(data) else -zlib.MAX_WBITS
        return lambda: _ZlibFrame(bits), zlib.error
    found = zstd_frames()
    assert found is not None, "zstd is among the accepted codings"
    return found


def _has_zlib_header(data: bytes) -> bool:
    """Whether deflate comes in zlib's format, as it must; some clients leave that out, and browsers take it too."""
    return len(data) > 1 and data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0
