"""Token pieces: which decoders have them, and what one token is in bytes."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from smg_trio.text.token_pieces import byte_level_bytes, fallback_byte, find_pieces

REPLACE = decoders.Replace("▁", " ")
FALLBACK = [REPLACE, decoders.ByteFallback(), decoders.Fuse()]


def test_the_byte_level_alphabet_is_the_librarys_own() -> None:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    assert sorted(byte_level_bytes(char) for char in alphabet) == [bytes([byte]) for byte in range(256)]
    backend = Backend(models.WordLevel({char: i for i, char in enumerate(alphabet)}, unk_token="!"))
    backend.decoder = decoders.ByteLevel()
    for char in alphabet:
        whole = backend.decode([backend.token_to_id(char)])
        assert byte_level_bytes(char).decode("utf-8", "replace") == whole


def test_a_foreign_character_makes_a_byte_level_token_stand_for_itself() -> None:
    assert byte_level_bytes("Ġé") == b" \xe9"
    assert byte_level_bytes("<｜end｜>") == "<｜end｜>".encode()
    assert byte_level_bytes("a b") == b"a b"


@pytest.mark.parametrize(
    ("token", "byte"),
    [("<0x0A>", b"\n"), ("<0xff>", b"\xff"), ("<0xGG>", None), ("<0x0A", None), ("x", None), ("<0x0A>>", None)],
)
def test_byte_tokens_are_recognised(token: str, byte: bytes | None) -> None:
    assert fallback_byte(token) == byte


@pytest.mark.parametrize(
    ("decoder", "kind", "strips"),
    [
        (decoders.ByteLevel(), "byte_level", False),
        (decoders.Sequence([decoders.ByteLevel()]), "byte_level", False),
        (decoders.Sequence(FALLBACK), "byte_fallback", False),
        (decoders.Sequence([*FALLBACK, decoders.Strip(" ", 1, 0)]), "byte_fallback", True),
        (decoders.Sequence([*FALLBACK, decoders.Strip(" ", 1, 1)]), None, False),
        (decoders.Sequence([decoders.Replace("_", " "), *FALLBACK[1:]]), None, False),
        (decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]), None, False),
        (decoders.Metaspace(), None, False),
        (decoders.WordPiece(), None, False),
        (None, None, False),
    ],
)
def test_only_decoders_that_work_token_by_token_have_pieces(decoder: object, kind: str | None, strips: bool) -> None:
    backend = Backend(models.BPE())
    if decoder is not None:
        backend.decoder = decoder
    pieces = find_pieces(backend, frozenset())
    assert (pieces and pieces.kind) == kind
    assert bool(pieces and pieces.strips_leading_space) == strips
