"""How a tokenizer cuts a text before its model sees it, for two kinds of BPE that nearly all models have.

* **byte level** (GPT-2, Llama 3, Qwen, DeepSeek, gpt-oss): patterns cut the text, each piece is spelled in the alphabet
  of bytes and merged by itself;
* **sentencepiece** (Llama 2, Mistral, Gemma): spaces become ``▁`` and the whole text is merged as one word. Some places
  are never merged across (hardly any vocabulary entry has a ``▁`` behind anything but another): cut there, the parts
  merge to what they are in the whole.

`find_pretokenizer` returns None for every other tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final
from unicodedata import is_normalized

import tokenizers
from tokenizers import models

from smg_trio.text.bpe.character_classes import UNKNOWN_CHARACTER
from smg_trio.text.bpe.split_patterns import Splitter, translate
from smg_trio.text.components import component_steps
from smg_trio.text.token_pieces import BYTE_ALPHABET, SPELLED_BYTE

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What ``ByteLevel`` splits at by itself."""
_CHAR_OF_BYTE: Final = {byte: char for char, byte in BYTE_ALPHABET.items()}
_BORDER: Final = "▁"
_BYTE: Final = re.compile("<0x[0-9A-F]{2}>")
_BYTE_CHARS: Final = 6


class Pretokenizer:
    """Cuts texts without added tokens into pretokens.

    What they join to is the text, up to what the tokenizer's normalizer does. Only for texts of which `knows` is true.

    Attributes:
        spell: a pretoken as the model's ``tokenize`` takes it. Raises UnicodeEncodeError for a lone surrogate.
        open: what becomes of a text before all else if nothing is before it, not even an added token.
    """

    def __init__(
        self,
        splitters: Sequence[Splitter],
        spell: Callable[[str], str],
        knows: Callable[[str], bool],
        *,
        normalize: Callable[[str], str] = str,
        open_text: Callable[[str], str] = str,
    ) -> None:
        """`splitters`: what cuts a text, then all pieces of it, and so on."""
        self._first, *self._rest = splitters
        self._normalize = normalize
        self.spell = spell
        self.knows = knows
        self.open = open_text

    def cut(self, text: str) -> list[str]:
        """All pretokens of a text that is not long."""
        return self._cut_on(self._first.pieces(self._normalize(text)), self._rest)

    def _cut_on(self, pieces: list[str], splitters: Sequence[Splitter]) -> list[str]:
        for splitter in splitters:
            pieces = [piece for whole in pieces for piece in splitter.pieces(whole)]
        return pieces

    def cut_in_parts(self, text: str, size: int) -> Iterator[list[str]]:
        """All pretokens of a text, some `size` at a time: what takes long is done between two of these lists."""
        return self._in_parts(self._normalize(text), [self._first, *self._rest], size)

    def _in_parts(self, text: str, splitters: Sequence[Splitter], size: int) -> Iterator[list[str]]:
        first, *rest = splitters
        for pieces in first.pieces_in_parts(text, size):
            short: list[str] = []
            for piece in pieces if rest else ():
                if len(piece) <= size:
                    short.append(piece)
                    continue
                yield self._cut_on(short, rest)
                yield from self._in_parts(piece, rest, size)
                short = []
            yield self._cut_on(short, rest) if rest else pieces


def find_pretokenizer(backend: tokenizers.Tokenizer) -> Pretokenizer | None:
    """What cuts texts as `backend` does; None if that is not known here."""
    model = backend.model
    if not isinstance(model, models.BPE) or model.dropout:
        return None
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    normalizers = component_steps(backend, "normalizer")
    pretokenizers = component_steps(backend, "pre_tokenizer")
    if normalizers and any(token.normalized for token in backend.get_added_tokens_decoder().values()):
        return None
    if pretokenizers and pretokenizers[-1]["type"] == "ByteLevel":
        return _byte_level(normalizers, pretokenizers, model)
    if model.byte_fallback:
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        return _sentencepiece(normalizers, pretokenizers, model, backend.get_vocab(with_added_tokens=False), added)
    return None


# ---- byte level -----------------------------------------------------------------------------------------


def _byte_level(
    normalizers: list[dict[str, Any]], pretokenizers: list[dict[str, Any]], model: models.BPE
) -> Pretokenizer | None:
    *splits, last = pretokenizers
    if last["add_prefix_space"] or any(step["type"] != "NFC" for step in normalizers):
        return None
    if any(model.token_to_id(char) is None for char in BYTE_ALPHABET):
        return None
    sources = [_source(step) for step in splits] + ([_GPT2] if last["use_regex"] else [])
    splitters = [None if source is None else translate(source) for source in sources]
    known = [splitter for splitter in splitters if splitter is not None]
    if not known or len(known) < len(splitters):
        return None
    return Pretokenizer(known, _in_bytes, _knows_composed if normalizers else _knows)


def _source(step: dict[str, Any]) -> str | None:
    if step["type"] != "Split" or step["behavior"] != "Isolated" or step["invert"]:
        return None
    pattern: str | None = step["pattern"].get("Regex")
    return pattern


def _in_bytes(pretoken: str) -> str:
    return "".join([_CHAR_OF_BYTE[byte] for byte in pretoken.encode()])


def _knows(text: str) -> bool:
    return text.isascii() or UNKNOWN_CHARACTER.search(text) is None


def _knows_composed(text: str) -> bool:
    return text.isascii() or (UNKNOWN_CHARACTER.search(text) is None and is_normalized("NFC", text))


# ---- sentencepiece --------------------------------------------------------------------------------------


def _sentencepiece(
    normalizers: list[dict[str, Any]],
    pretokenizers: list[dict[str, Any]],
    model: models.BPE,
    vocabulary: dict[str, int],
    added: set[str],
) -> Pretokenizer | None:
    spaces = _spaces(normalizers, pretokenizers)
    if spaces is None:
        return None
    normalize, open_text, rest = spaces
    whole = _whole_pieces(rest)
    if whole is None or (model.ignore_merges and not _are_reachable(vocabulary.keys() - added, model, whole)):
        return None
    if any(f"<0x{byte:02X}>" not in vocabulary for byte in range(256)) or any(map(_merges_bytes, vocabulary)):
        return None
    cuts_bytes = any(step["pattern"] == {"Regex": SPELLED_BYTE} for step in rest)
    knows = _spells_no_byte if model.ignore_merges or cuts_bytes else _any
    splitters = [*whole, Splitter(_between_borders(vocabulary))]
    return Pretokenizer(splitters, str, knows, normalize=normalize, open_text=open_text)


def _spaces(
    normalizers: list[dict[str, Any]], pretokenizers: list[dict[str, Any]]
) -> tuple[Callable[[str], str], Callable[[str], str], list[dict[str, Any]]] | None:
    """How spaces become ``▁`` and where one is put in front of a text, and the steps after that; None if otherwise.

    Returns what normalizes every text, what is done to a text at the very start, and further pre-tokenizers.
    """
    kinds = [step["type"] for step in normalizers]
    if kinds not in ([], ["Replace"], ["Prepend", "Replace"]):
        return None
    if kinds and (normalizers[-1]["pattern"] != {"String": " "} or normalizers[-1]["content"] != _BORDER):
        return None
    metaspaces = list(takewhile(lambda step: step["type"] == "Metaspace" and not step["split"], pretokenizers))
    rest = pretokenizers[len(metaspaces) :]
    schemes = [(step["replacement"], step["prepend_scheme"]) for step in metaspaces]
    if not metaspaces and kinds:
        prefix = normalizers[0]["prepend"] if len(kinds) > 1 else ""
        return lambda text: _bordered(prefix + text), str, rest
    if len(kinds) < 2 and schemes == [(_BORDER, "always")]:
        return lambda text: _bordered(_with_space(text)), str, rest
    if len(kinds) < 2 and schemes == [(_BORDER, "first")]:
        return _bordered, _with_space, rest
    if len(kinds) == 1 and schemes == [(" ", "first"), (_BORDER, "never")]:  # as text.formats.sentencepiece has it
        return _bordered, lambda text: " " + text, rest
    return None


def _bordered(text: str) -> str:
    return text.replace(" ", _BORDER)


def _with_space(text: str) -> str:
    return text if text.startswith((" ", _BORDER)) else " " + text


def _whole_pieces(pretokenizers: list[dict[str, Any]]) -> list[Splitter] | None:
    """What cuts out pieces that are never merged; None if a step is of another kind."""
    splitters = []
    for step in pretokenizers:
        if step["type"] != "Split" or step["invert"]:
            return None
        if step["pattern"] == {"String": " "}:
            continue  # that one finds nothing: there are no spaces left
        if step["pattern"] == {"Regex": SPELLED_BYTE}:
            continue  # that one finds nothing in texts that `_spells_no_byte` lets pass
        source = _source(step)
        splitter = None if source is None else translate(source)
        if splitter is None:
            return None
        splitters.append(splitter)
    return splitters


def _are_reachable(entries: Iterable[str], model: models.BPE, whole: Sequence[Splitter]) -> bool:
    """Whether taking a pretoken that is an entry as that entry, without merging, is no more than a short cut.

    Only then does it not matter that pretokens here are parts of the library's. What is cut out stands alone anyway.
    """
    model.ignore_merges = False
    try:
        return all(
            len(model.tokenize(entry)) == 1
            or _BYTE.fullmatch(entry) is not None
            or any(splitter.finds(entry) for splitter in whole)
            for entry in entries
        )
    finally:
        model.ignore_merges = True


def _any(text: str) -> bool:  # noqa: ARG001 - one of several tests
    return True


def _spells_no_byte(text: str) -> bool:
    return _BYTE.search(text) is None


def _merges_bytes(entry: str) -> bool:
    return len(entry) > _BYTE_CHARS and _BYTE.search(entry) is not None


def _between_borders(vocabulary: Iterable[str]) -> str:
    """Cuts before every run of ``▁`` that no entry crosses, and around line breaks if no longer entry has one."""
    crossing: set[str] = set()
    breaks = True
    for entry in vocabulary:
        if _BORDER in entry:
            crossing.update(entry[place - 1] for place in range(1, len(entry)) if entry[place] == _BORDER)
        if "\n" in entry and entry != "\n":
            breaks = False
    crossing.discard(_BORDER)
    other = rf"[^{_BORDER}\n]" if breaks else f"[^{_BORDER}]"
    more = f"(?:(?<=[{''.join(map(re.escape, sorted(crossing)))}]){_BORDER}+{other}*)*" if crossing else ""
    return rf"{_BORDER}*{other}+{more}|{_BORDER}+" + (r"|\n" if breaks else "")
