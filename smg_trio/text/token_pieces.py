"""What each token id contributes to the text, for the two decoders that work token by token.

A tokenizer's decoder is a small program over token strings. Two of them, which cover nearly all served
models, give each token its own bytes whatever stands beside it:

* **byte level** (GPT-2, Llama 3, Qwen, DeepSeek, gpt-oss): each character of a token names one byte;
* **byte fallback** (sentencepiece: Llama 2, Mistral, Gemma): ``▁`` is a space, ``<0xNN>`` is a byte,
  and possibly one leading space of the whole text is dropped.

For these a table replaces decoding a window twice per token. Every other decoder (WordPiece, Metaspace,
CTC, ...) has no pieces: `find_pieces` returns None and `detokenizer` falls back on the library's stream.
Tables fill as ids are met, so that nothing is paid at load time; two threads filling the same entry write
the same value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from smg_trio.text.components import component_steps

if TYPE_CHECKING:
    import tokenizers

PieceKind = Literal["byte_level", "byte_fallback"]

REPLACEMENT: Final = "\ufffd"
_WORD_BORDER: Final = "▁"


def _byte_alphabet() -> dict[str, int]:
    """The byte-level alphabet: visible Latin-1 stands for itself, the rest for U+0100 and up, in order."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    alphabet = {chr(byte): byte for byte in visible}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}


SPELLED_BYTE: Final = "<(?=0x[0-9A-F]{2}>)"
"""Where a text spells a byte token: cut behind this, it does not become one. For tokenizers that would let it."""

BYTE_ALPHABET: Final = _byte_alphabet()
"""The byte that each character of a byte-level token names."""


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a byte-level token; one foreign character makes the whole token stand for itself."""
    try:
        return bytes([BYTE_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode("utf-8", "replace")


def fallback_byte(token: str) -> bytes | None:
    """The byte a ``<0xNN>`` token stands for, or None for any other token."""
    if len(token) != 6 or not token.startswith("<0x") or token[5] != ">":
        return None
    try:
        return bytes([int(token[3:5], 16)])
    except ValueError:
        return None


class TokenPieces:
    """Per-id pieces of one tokenizer.

    Attributes:
        kind: which of the two decoders.
        strips_leading_space: whether one space at the very start of the whole text is dropped.
        keeping, skipping: id -> text of pieces that may be released immediately when nothing is held;
            ``skipping`` has special tokens as ``""``. Ids not met yet, and pieces that are or end in
            part of a character, are absent: ask `release_keeping` / `release_skipping`.
        special_ids: the ids `skipping` leaves out.
    """

    __slots__ = ("_backend", "_is_byte", "_raw", "keeping", "kind", "skipping", "special_ids", "strips_leading_space")

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        kind: PieceKind,
        special_ids: frozenset[int],
        *,
        strips_leading_space: bool,
    ) -> None:
        self._backend = backend
        self._raw: dict[int, bytes] = {}
        self._is_byte: dict[int, bool] = {}
        self.kind: PieceKind = kind
        self.special_ids = special_ids
        self.strips_leading_space = strips_leading_space
        self.keeping: dict[int, str] = {}
        self.skipping: dict[int, str] = dict.fromkeys(special_ids, "")

    def raw(self, token_id: int) -> bytes:
        """Bytes of one id, special or not; empty for an id outside the vocabulary."""
        found = self._raw.get(token_id)
        if found is None:
            token = self._token(token_id)
            if token is None:
                return b""
            found = self._raw[token_id] = self._bytes_of(token)
        return found

    def is_byte(self, token_id: int) -> bool:
        """Whether the id is a ``<0xNN>`` token of a byte-fallback vocabulary."""
        known = self._is_byte.get(token_id)
        if known is None:
            token = self._token(token_id)
            known = self.kind == "byte_fallback" and token is not None and fallback_byte(token) is not None
            if token is not None:
                self._is_byte[token_id] = known
        return known

    def fill(self, token_id: int, *, skip: bool) -> str | None:
        """Text of an id absent from the table, entered there if it may be released immediately; else None."""
        if self._token(token_id) is None:
            return ""
        if self.is_byte(token_id):
            return None
        text = self.raw(token_id).decode("utf-8", "replace")
        if text.endswith(REPLACEMENT):
            return None
        table = self.skipping if skip else self.keeping
        table[token_id] = text
        return text

    def _token(self, token_id: int) -> str | None:
        if not 0 <= token_id < 2**32:
            return None
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def _bytes_of(self, token: str) -> bytes:
        if self.kind == "byte_level":
            return byte_level_bytes(token)
        byte = fallback_byte(token)
        return token.replace(_WORD_BORDER, " ").encode("utf-8", "replace") if byte is None else byte


def find_pieces(backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> TokenPieces | None:
    """The piece table of a tokenizer, or None if its decoder does not work token by token."""
    if backend.decoder is None:
        return None
    steps = component_steps(backend, "decoder")
    kinds = [step["type"] for step in steps]
    if kinds in (["ByteLevel"], ["ByteLevel", "Fuse"]):
        return TokenPieces(backend, "byte_level", special_ids, strips_leading_space=False)
    if kinds[:3] != ["Replace", "ByteFallback", "Fuse"] or not _is_word_border(steps[0]):
        return None
    if len(steps) == 3:
        return TokenPieces(backend, "byte_fallback", special_ids, strips_leading_space=False)
    if len(steps) == 4 and _is_one_space_strip(steps[3]):
        return TokenPieces(backend, "byte_fallback", special_ids, strips_leading_space=True)
    return None


def _is_word_border(step: dict[str, Any]) -> bool:
    return (step["pattern"], step["content"]) == ({"String": _WORD_BORDER}, " ")


def _is_one_space_strip(step: dict[str, Any]) -> bool:
    return (step["type"], step.get("content"), step.get("start"), step.get("stop")) == ("Strip", " ", 1, 0)
