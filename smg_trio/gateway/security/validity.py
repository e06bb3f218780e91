"""From when until when certificates are valid, read out of PEM text: Python's ssl module does not tell.

A certificate is DER (X.690): nested values of a tag, a length and content. On the way to the validity (RFC 5280, 4.1)
lie a version that may be left out, a serial number, an algorithm and the issuer.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION = 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18


class Validity(NamedTuple):
    """Seconds since the epoch."""

    begins: float
    ends: float


def soonest_end(pem: str) -> Validity | None:
    """The validity of the certificate that ends first; None if there is none that can be read."""
    found = []
    for text in _PEM.findall(pem):
        try:
            found.append(_validity(ssl.PEM_cert_to_DER_cert(text)))
        except (ValueError, IndexError):
            continue
    return min(found, key=lambda one: one.ends, default=None)


def _validity(der: bytes) -> Validity:
    ((_, certificate),) = _values(der)
    _, to_be_signed = next(_values(certificate))
    fields = _values(to_be_signed)
    tag, _ = next(fields)
    for _ in range(3 if tag == _VERSION else 2):  # serial number, algorithm, issuer
        next(fields)
    begins, ends = _values(next(fields)[1])
    return Validity(_seconds(*begins), _seconds(*ends))


def _values(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each value. Raises IndexError, ValueError for what is no DER."""
    position = 0
    while position < len(content):
        tag, length = content[position], content[position + 1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(content[position : position + size])
            position += size
        if position + length > len(content):
            raise ValueError("a value ends beyond what holds it")
        yield tag, content[position : position + length]
        position += length


def _seconds(tag: int, content: bytes) -> float:
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        text = ("20" if text[:2] < "50" else "19") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"tag {tag} is no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
