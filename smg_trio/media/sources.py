"""Media that come in the request itself: data URLs and bare base64, to bytes. Pure.

Clients wrap lines, leave padding out, use the URL-safe alphabet or escape ``+``, ``/`` and ``=``: all of that is taken.
"""

from __future__ import annotations

import binascii
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Final

from smg_trio.media.errors import InvalidMedia, MediaTooLarge

if TYPE_CHECKING:
    from smg_trio.core.media import MediaSource, Modality

_HEADER_CHARS: Final = 1024
_AT_ONCE: Final = 1 << 18
"""Characters decoded at a time: about half a millisecond, in which no other thread runs."""
_PLAIN: Final = bytes.maketrans(b"-_", b"+/")
_BLANKS: Final = b" \t\r\n\f\v"
_ESCAPES: Final = {b"%2b": b"+", b"%2f": b"/", b"%3d": b"=", b"%0a": b"", b"%0d": b"", b"%20": b"", b"%09": b""}
_ESCAPE: Final = re.compile(rb"%[0-9A-Fa-f]{2}")
_TAIL: Final = re.compile(r"(?:=|%3[Dd]|%0[AaDd9]|%20|\s)*\Z")
_TAIL_CHARS: Final = 64


@dataclass(frozen=True, slots=True)
class InlineData:
    """Base64 in a text, from the character `start`; the text is not copied."""

    text: str
    start: int
    where: str

    @property
    def most_bytes(self) -> int:
        """No fewer bytes than it can decode to."""
        return (len(self.text) - self.start) * 3 // 4


def check_counts(sources: Sequence[MediaSource], limits: Mapping[Modality, int]) -> None:
    """Refuse a request with too many items of a modality. Raises InvalidMedia, which names the first too many."""
    counts = Counter(source.modality for source in sources)
    seen: Counter[str] = Counter()
    for source in sources:
        seen[source.modality] += 1
        most = limits.get(source.modality, 0)
        if seen[source.modality] > most:
            name = f"{source.modality}{'' if source.modality == 'audio' or most == 1 else 's'}"
            raise InvalidMedia(source.where, f"at most {most} {name} per request, got {counts[source.modality]}")


def inline_data(source: MediaSource) -> InlineData | None:
    """The base64 of a source; None if its location is a URL to fetch, or no URL at all.

    Raises:
        InvalidMedia: a data URL that is not base64.
    """
    text = source.location
    if source.bare_base64:
        return InlineData(text, 0, source.where)
    start = len(text) - len(text.lstrip()) if text[:1].isspace() else 0
    if text[start : start + 5].lower() != "data:":
        return None
    comma = text.find(",", start, start + _HEADER_CHARS)
    if comma < 0:
        raise InvalidMedia(source.where, "the data: URL has no comma before its data")
    # The declared type is not looked at: what the data is shows in the data.
    if text[start:comma].rpartition(";")[2].strip().lower() != "base64":
        raise InvalidMedia(source.where, "only base64 data: URLs, as data:image/png;base64,…")
    return InlineData(text, comma + 1, source.where)


def check_size(data: InlineData, limit: int) -> None:
    """Refuse what will be larger than `limit` bytes, without decoding it. Raises MediaTooLarge."""
    if data.most_bytes - 2 <= limit:
        return
    text = data.text
    chars = len(text) - data.start - 2 * text.count("%", data.start)
    chars -= sum(text.count(chr(blank), data.start) for blank in _BLANKS)
    # Three more: padding, however it is written, may be counted in full.
    if chars * 3 // 4 - 3 > limit:
        raise too_large(data.where, limit)


def too_large(where: str, limit: int) -> MediaTooLarge:
    """The refusal of an item of more than `limit` bytes."""
    return MediaTooLarge(where, f"larger than {limit} bytes; send a smaller file")


def decode_base64(data: InlineData, limit: int) -> bytes:
    """The bytes. For large data a matter of milliseconds, so it belongs into a thread; other threads get their turn.

    Raises:
        InvalidMedia: not base64, or nothing in it.
        MediaTooLarge: more than `limit` bytes.
    """
    check_size(data, limit)
    text, end = data.text, _end_without_padding(data)
    # Neither joins pieces nor copies at the end, which would hold up other threads for as long as they take together.
    decoded, rest = BytesIO(), b""
    try:
        for start in range(data.start, end, _AT_ONCE):
            clean, rest = _cleaned(rest + text[start : min(start + _AT_ONCE, end)].encode("ascii"))
            whole = len(clean) // 4 * 4
            decoded.write(binascii.a2b_base64(clean[:whole], strict_mode=True))
            rest = clean[whole:] + rest
        decoded.write(binascii.a2b_base64(rest + b"=" * (-len(rest) % 4), strict_mode=True))
    except ValueError:  # binascii.Error and UnicodeEncodeError
        raise InvalidMedia(data.where, "data is not valid base64") from None
    if not decoded.tell():
        raise InvalidMedia(data.where, "data is empty")
    if decoded.tell() > limit:
        raise too_large(data.where, limit)
    return decoded.getvalue()


def _end_without_padding(data: InlineData) -> int:
    """Where the data ends, without what pads it: half of the clients leave padding out, others wrap lines behind it."""
    start = max(data.start, len(data.text) - _TAIL_CHARS)
    found = _TAIL.search(data.text, start)
    return found.start() if found else len(data.text)


def _cleaned(raw: bytes) -> tuple[bytes, bytes]:
    """Characters of the plain alphabet, and what belongs to an escape whose end is not here yet."""
    rest = b""
    if b"%" in raw:
        cut = raw.rfind(b"%", max(0, len(raw) - 2))
        if cut >= 0:
            raw, rest = raw[:cut], raw[cut:]
        raw = _ESCAPE.sub(lambda found: _ESCAPES.get(found[0].lower(), found[0]), raw)
    clean = raw.translate(_PLAIN, _BLANKS)
    # What is left of padding inside the data would end it without an error.
    if b"=" in clean:
        raise ValueError("padding inside the data")
    return clean, rest
