"""Reads a SentencePiece model file: three messages of protobuf's wire format. Pure.

An own reader on purpose, though libraries exist: `sentencepiece` does not show the normalizer's settings, and its
generated protobuf module comes with version conflicts between `protobuf` and whatever else in the environment pins it.
The wire format does not change, and these are all the fields that a tokenizer is made of
(google/sentencepiece, ``src/sentencepiece_model.proto``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum


class PieceType(IntEnum):
    """What a piece is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of the vocabulary; its id is its place."""

    text: str
    score: float
    type: PieceType


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """A model file's content, by the names of its fields.

    Attributes:
        pieces: the vocabulary.
        is_bpe: BPE; else unigram.
        charsmap: the compiled normalization rules, empty for none.
    """

    pieces: tuple[Piece, ...]
    is_bpe: bool
    byte_fallback: bool
    treat_whitespace_as_suffix: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool

    def first(self, kind: PieceType) -> str | None:
        """Text of the first piece of a type."""
        return next((piece.text for piece in self.pieces if piece.type is kind), None)


_UNIGRAM, _BPE = 1, 2


def read_sentencepiece(data: bytes) -> SentencePieceModel:
    """The content of a model file.

    Raises:
        ValueError: it is not one, or holds a model that is neither BPE nor unigram.
    """
    try:
        top = list(_fields(data))
        pieces = tuple(_piece(value) for number, value in top if number == 1 and isinstance(value, bytes))
        trainer, normalizer = (dict(_fields(_message(top, number))) for number in (2, 3))
    except (IndexError, struct.error, UnicodeDecodeError):
        raise ValueError("not a SentencePiece model") from None
    kind = trainer.get(3, _UNIGRAM)
    if not pieces:
        raise ValueError("not a SentencePiece model")
    if kind not in (_UNIGRAM, _BPE):
        raise ValueError("a SentencePiece model that is neither BPE nor unigram")
    charsmap = normalizer.get(2, b"")
    return SentencePieceModel(
        pieces=pieces,
        is_bpe=kind == _BPE,
        byte_fallback=bool(trainer.get(35, False)),
        treat_whitespace_as_suffix=bool(trainer.get(24, False)),
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        add_dummy_prefix=bool(normalizer.get(3, True)),
        remove_extra_whitespaces=bool(normalizer.get(4, True)),
        escape_whitespaces=bool(normalizer.get(5, True)),
    )


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    text, score, kind = fields.get(1, b""), fields.get(2, b"\0\0\0\0"), fields.get(3, PieceType.NORMAL)
    if isinstance(text, bytes) and isinstance(score, bytes) and isinstance(kind, int):
        return Piece(text.decode(), struct.unpack("<f", score)[0], PieceType(kind))
    raise ValueError("not a SentencePiece model")


def _message(fields: list[tuple[int, int | bytes]], wanted: int) -> bytes:
    return b"".join(value for number, value in fields if number == wanted and isinstance(value, bytes))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: numbers as they are, everything else as bytes."""
    place, end = 0, len(data)
    while place < end:
        key, place = _varint(data, place)
        if key & 7 == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if key & 7 == 2:
            size, place = _varint(data, place)
        elif key & 7 in (1, 5):
            size = 8 if key & 7 == 1 else 4
        else:
            raise ValueError("not a SentencePiece model")
        if place + size > end:
            raise ValueError("a SentencePiece model that is cut off")
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("not a SentencePiece model")
