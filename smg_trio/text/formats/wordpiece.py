"""``vocab.txt``: WordPiece vocabularies of BERT and its kin, built as transformers' ``BertTokenizer`` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from smg_trio.text.formats.built import BuiltTokenizer, UnsupportedFormat, add_token, flag, surround, text_setting

_CLASSES: Final = frozenset(
    {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "LayoutLMTokenizer",
     "ConvBertTokenizer", "RetriBertTokenizer", "DPRQuestionEncoderTokenizer", "DPRContextEncoderTokenizer",
     "SqueezeBertTokenizer", "NomicBertTokenizer", "PreTrainedTokenizer", "TokenizersBackend", ""}
)  # fmt: skip
_DEFAULTS: Final = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def load_wordpiece(file: Path, settings: Mapping[str, Any]) -> BuiltTokenizer:
    """Reads a vocabulary. Blocking, 0.1 s.

    Args:
        file: one token per line; a token's id is its line.
        settings: content of ``tokenizer_config.json``.

    Raises:
        UnsupportedFormat: its tokenizer class cuts texts by other rules.
        OSError, ValueError: the file cannot be read, or lacks the tokens around a text.
    """
    name = str(settings.get("tokenizer_class") or "").removesuffix("Fast")
    if name not in _CLASSES:
        raise UnsupportedFormat(
            f"'{file}' is the vocabulary of the class `{name}`, whose rules are not known here.",
            "Convert it to tokenizer.json (transformers' save_pretrained does), or pass a directory that has one with "
            "--tokenizer-path.",
        )
    vocabulary = _read(file)
    named = {key: text_setting(settings, key) or default for key, default in _DEFAULTS.items()}
    for key in ("unk_token", "cls_token", "sep_token"):
        if named[key] not in vocabulary:
            raise ValueError(f"the vocabulary has no {named[key]}")
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=named["unk_token"]))
    strip_accents = settings.get("strip_accents")
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=flag(settings, "tokenize_chinese_chars", True),
        strip_accents=strip_accents if isinstance(strip_accents, bool) else None,
        lowercase=flag(settings, "do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    named = {key: text for key, text in named.items() if text in vocabulary}
    for text in named.values():
        add_token(backend, text)
    surround(backend, [named["cls_token"]], [named["sep_token"]], between=[])
    return BuiltTokenizer(backend, named)


def _read(file: Path) -> dict[str, int]:
    # Not splitlines: some vocabularies have tokens such as U+2028, which it would take for the end of a line.
    lines = file.read_text(encoding="utf-8").split("\n")
    if lines[-1] == "":
        lines.pop()
    return {token.rstrip("\r"): number for number, token in enumerate(lines)}
