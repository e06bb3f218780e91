"""SentencePiece models (``tokenizer.model`` and others), built to give the ids of the `sentencepiece` library.

Texts are normalized as the file says: compiled rules, spaces removed or not, one put in front, all of them written
``▁``. In front of *every* text between two control tokens, as the library is called by the slow tokenizer classes, or
of the first one alone where ``tokenizer_config.json`` says ``"legacy": false``.

What differs hardly ever comes. In BPE: a piece of type UNUSED is never part of a merge, and two pieces of equal score
are merged in the vocabulary's order. In unigram: of two segmentations whose scores are equal but for rounding, the
other one may be taken. With compiled rules: `tokenizers` applies them to whole grapheme clusters first, so a joiner
behind a character can keep it as it is. transformers' fast tokenizers, and so the engines, share the last two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from smg_trio.text.formats.built import BuiltTokenizer, UnsupportedFormat, add_token, flag, surround, text_setting
from smg_trio.text.formats.sentencepiece_proto import Piece, PieceType, SentencePieceModel, read_sentencepiece
from smg_trio.text.token_pieces import SPELLED_BYTE

_SPACE: Final = "▁"
_OWN_RULES: Final = frozenset(
    {
        "AlbertTokenizer", "BarthezTokenizer", "BigBirdTokenizer", "ChatGLMTokenizer", "M2M100Tokenizer",
        "MBart50Tokenizer", "MBartTokenizer", "MarianTokenizer", "NllbTokenizer", "PLBartTokenizer", "PegasusTokenizer",
        "RemBertTokenizer", "SeamlessM4TTokenizer", "XGLMTokenizer", "XLMProphetNetTokenizer", "XLNetTokenizer",
    }
)  # fmt: skip
"""Classes that change texts or ids in ways that are not known here."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a tokenizer class numbers a model's pieces and what it puts around texts.

    Attributes:
        pieces: those of the vocabulary, in order of their ids.
        around: special tokens before and behind a text.
        pair: what separates a second text, if not another `before`.
    """

    pieces: Callable[[tuple[Piece, ...], Mapping[str, Any]], list[Piece]]
    around: tuple[tuple[str, ...], tuple[str, ...]]
    pair: tuple[str, ...] | None = None


def _control(*texts: str) -> list[Piece]:
    return [Piece(text, 0.0, PieceType.CONTROL) for text in texts]


def _fairseq(pieces: tuple[Piece, ...], settings: Mapping[str, Any]) -> list[Piece]:
    unknown = Piece("<unk>", 0.0, PieceType.UNKNOWN)
    return [*_control("<s>", "<pad>", "</s>"), unknown, *pieces[3:], *_control("<mask>")]


def _camembert(pieces: tuple[Piece, ...], settings: Mapping[str, Any]) -> list[Piece]:
    unknown = Piece("<unk>", 0.0, PieceType.UNKNOWN)
    unused = Piece("<unk>NOTUSED", -100.0, PieceType.UNUSED)
    return [*_control("<s>NOTUSED", "<pad>", "</s>NOTUSED"), unknown, unused, *pieces[1:], *_control("<mask>")]


def _t5(pieces: tuple[Piece, ...], settings: Mapping[str, Any]) -> list[Piece]:
    count = settings.get("extra_ids", 100)
    count = count if type(count) is int else 100
    return [*pieces, *_control(*(f"<extra_id_{number}>" for number in reversed(range(count))))]


def _deberta(pieces: tuple[Piece, ...], settings: Mapping[str, Any]) -> list[Piece]:
    named = {piece.text for piece in pieces}
    return [*pieces, *([] if "[MASK]" in named else _control("[MASK]"))]


_LAYOUTS: Final[Mapping[str, _Layout]] = {
    "XLMRobertaTokenizer": _Layout(_fairseq, (("<s>",), ("</s>",)), ("</s>",)),
    "CamembertTokenizer": _Layout(_camembert, (("<s>",), ("</s>",)), ("</s>",)),
    "T5Tokenizer": _Layout(_t5, ((), ("</s>",)), ()),
    "DebertaV2Tokenizer": _Layout(_deberta, (("[CLS]",), ("[SEP]",)), ()),
}


def load_sentencepiece(file: Path, settings: Mapping[str, Any]) -> BuiltTokenizer:
    """Reads a model. Blocking, 0.5 to 3 s.

    Args:
        file: the model.
        settings: content of ``tokenizer_config.json``.

    Raises:
        UnsupportedFormat: its tokenizer class does more than is known here.
        OSError, ValueError: the file cannot be read, or is not what it should be.
    """
    name = str(settings.get("tokenizer_class") or "").removesuffix("Fast")
    if name in _OWN_RULES:
        raise UnsupportedFormat(
            f"'{file}' is a SentencePiece model of the class `{name}`, which changes texts or ids in ways not known "
            "here.",
            "Convert it to tokenizer.json (transformers' save_pretrained does), or pass a directory that has one with "
            "--tokenizer-path.",
        )
    model = read_sentencepiece(file.read_bytes())
    layout = _LAYOUTS.get(name)
    pieces = list(model.pieces) if layout is None else layout.pieces(model.pieces, settings)
    backend = tokenizers.Tokenizer(_bpe(pieces, model) if model.is_bpe else _unigram(pieces, model))
    _set_up(backend, pieces, model, legacy=flag(settings, "legacy", True))
    named = _named(model, settings)
    if layout is not None:
        before, after = layout.around
        surround(backend, before, after, between=layout.pair)
    else:
        _surround_by_settings(backend, named, settings, adds_bos=model.is_bpe)
    return BuiltTokenizer(backend, named)


def _named(model: SentencePieceModel, settings: Mapping[str, Any]) -> dict[str, str]:
    """The usual names, where the vocabulary has them as what they say."""
    control = {piece.text for piece in model.pieces if piece.type is PieceType.CONTROL}
    usual = {"bos_token": ("<s>", "<bos>"), "eos_token": ("</s>", "<eos>"), "pad_token": ("<pad>",)}
    named = {name: text for name, texts in usual.items() for text in texts if text in control}
    unknown = model.first(PieceType.UNKNOWN)
    if unknown is not None:
        named["unk_token"] = unknown
    listed = {name: text_setting(settings, name) for name in ("bos_token", "eos_token")}
    return named | {name: text for name, text in listed.items() if text is not None}


def _surround_by_settings(
    backend: tokenizers.Tokenizer, named: Mapping[str, str], settings: Mapping[str, Any], *, adds_bos: bool
) -> None:
    """BOS and EOS as ``tokenizer_config.json`` wants them; where it is silent, models that generate have BOS."""
    wanted = (
        ("bos_token", flag(settings, "add_bos_token", adds_bos)),
        ("eos_token", flag(settings, "add_eos_token", False)),
    )
    before, after = ([named[name]] if adds and name in named else [] for name, adds in wanted)
    before, after = ([text for text in texts if backend.token_to_id(text) is not None] for texts in (before, after))
    if before or after:
        surround(backend, before, after)


# --- model ---------------------------------------------------------------------------------------


def _bpe(pieces: list[Piece], model: SentencePieceModel) -> models.BPE:
    return models.BPE(
        {piece.text: number for number, piece in enumerate(pieces)},
        _merges(pieces),
        unk_token=model.first(PieceType.UNKNOWN),
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
        # Only so does a user-defined piece, which is cut out of the text, stay whole.
        ignore_merges=_splits(model),
    )


def _splits(model: SentencePieceModel) -> bool:
    return model.add_dummy_prefix and model.first(PieceType.USER_DEFINED) is not None


def _merges(pieces: list[Piece]) -> list[tuple[str, str]]:
    """All pairs of pieces that make a third one, the best score first."""
    normal = {
        piece.text: (-piece.score, number) for number, piece in enumerate(pieces) if piece.type is PieceType.NORMAL
    }
    found = []
    for text, rank in normal.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in normal and right in normal:
                found.append((rank, -cut, left, right))
    found.sort()
    return [(left, right) for _, _, left, right in found]


def _unigram(pieces: list[Piece], model: SentencePieceModel) -> models.Unigram:
    unknown = next((number for number, piece in enumerate(pieces) if piece.type is PieceType.UNKNOWN), None)
    scores = [(piece.text, piece.score) for piece in pieces]
    return models.Unigram(scores, unknown, model.byte_fallback)


# --- text ----------------------------------------------------------------------------------------


def _set_up(backend: tokenizers.Tokenizer, pieces: list[Piece], model: SentencePieceModel, *, legacy: bool) -> None:
    if model.treat_whitespace_as_suffix or not model.escape_whitespaces:
        raise ValueError("a SentencePiece model that does not write spaces as '▁' in front of words is not supported")
    user_defined = [piece.text for piece in pieces if piece.type is PieceType.USER_DEFINED]
    backend.normalizer = normalizers.Sequence(_normalizers(model, legacy=legacy))
    steps: list[Any] = []
    if model.add_dummy_prefix and not legacy:
        # The first one puts a space in front of a text that has none by now, and only at the very start.
        steps.append(pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False))
        steps.append(pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="never", split=False))
    if user_defined and _splits(model):
        longest_first = "|".join(map(_escaped, sorted(user_defined, key=len, reverse=True)))
        steps.append(pre_tokenizers.Split(Regex(longest_first), behavior="isolated"))
    if model.byte_fallback and (_splits(model) or not model.is_bpe) and not any(map(_crosses_bytes, pieces)):
        # Else a text that reads <0x0A> would become that byte: these two models look up whole entries.
        steps.append(pre_tokenizers.Split(Regex(SPELLED_BYTE), behavior="merged_with_previous"))
    if steps:
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = _decoder(model)
    for piece in pieces:
        if piece.type is PieceType.CONTROL or piece.type is PieceType.UNKNOWN:
            add_token(backend, piece.text)
    if user_defined and not _splits(model):
        added = [tokenizers.AddedToken(text, normalized=True, special=False) for text in user_defined]
        backend.add_tokens(added)


def _escaped(text: str) -> str:
    """Not `re.escape`, which escapes white space too."""
    return re.sub(r"([\\.^$(){}\[\]|?*+])", r"\\\1", text)


def _crosses_bytes(piece: Piece) -> bool:
    return "<0" in piece.text and piece.type is not PieceType.BYTE


def _normalizers(model: SentencePieceModel, *, legacy: bool) -> list[Any]:
    steps: list[Any] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(r"\A +"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if model.add_dummy_prefix and legacy:
        steps.append(normalizers.Prepend(_SPACE))
    steps.append(normalizers.Replace(" ", _SPACE))
    if model.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(rf"{_SPACE}+\z"), ""))
    return steps


def _decoder(model: SentencePieceModel) -> decoders.Decoder:
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    return decoders.Sequence(steps)
