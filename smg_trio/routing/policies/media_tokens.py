"""Prompts as policies see them: the tokens that stand for media are replaced by ones made of the media's identifiers.

All pictures of a size have the same placeholders. With these in their place two pictures are no common prefix, and a
picture that was sent before is one, so that it goes where its encoded form may still be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import unpack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smg_trio.core.media import MediaFeature

_BEYOND_VOCABULARIES = 1 << 31
_WORDS = 8


def with_media(token_ids: Sequence[int], media: Sequence[MediaFeature]) -> list[int]:
    """int[T], of 32 bits each: `token_ids` with every range of `media` told apart by what is in it."""
    told_apart = list(token_ids)
    for feature in media:
        words = _words(feature.identifier)
        repeated = words * (feature.length // _WORDS + 1)
        told_apart[feature.offset : feature.offset + feature.length] = repeated[: feature.length]
    return told_apart


def _words(identifier: str) -> list[int]:
    digest = blake2b(identifier.encode(), digest_size=4 * _WORDS).digest()
    return [word | _BEYOND_VOCABULARIES for word in unpack(f"<{_WORDS}I", digest)]
