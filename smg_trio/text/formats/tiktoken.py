"""``tiktoken.model`` and ``*.tiktoken``: a vocabulary of ranks, whose pattern and special tokens are in a model's code.

That code is not run. What it says is written down here for the tokenizer classes that are known; a file of any other
class is refused.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from smg_trio.text.formats.built import BuiltTokenizer, UnsupportedFormat, surround, text_setting
from smg_trio.text.formats.byte_ranks import byte_level_tokenizer

SpecialTokens = Callable[[int, Mapping[str, Any]], dict[str, int]]
"""From the number of tokens in the vocabulary and ``tokenizer_config.json`` to special tokens with their ids."""

_CL100K: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_ONE_DIGIT: Final = _CL100K.replace("{1,3}", "")
_KIMI: Final = (
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class TiktokenRules:
    """What the code of one tokenizer class adds to its vocabulary file.

    Attributes:
        pattern: what cuts texts into words.
        special: its special tokens.
        model_types: of ``config.json``, for models whose settings do not name the class.
        composes: whether texts are normalized to NFC first.
        prefix: special tokens in front of every text.
        named: what the class calls which token, unless ``tokenizer_config.json`` does.
    """

    pattern: str
    special: SpecialTokens
    model_types: tuple[str, ...]
    composes: bool = False
    prefix: tuple[str, ...] = ()
    named: Sequence[tuple[str, str]] = ()


def _listed(first: int, settings: Mapping[str, Any]) -> dict[str, int]:
    """All that ``added_tokens_decoder`` lists behind the vocabulary."""
    listed = settings.get("added_tokens_decoder")
    entries: dict[str, Any] = listed if isinstance(listed, dict) else {}
    found = {text_setting(entries, key): int(key) for key in entries if key.isdecimal() and int(key) >= first}
    return {token: number for token, number in found.items() if token is not None}


def _visible(settings: Mapping[str, Any]) -> set[str]:
    listed = settings.get("added_tokens_decoder")
    entries = listed.values() if isinstance(listed, dict) else ()
    return {str(entry.get("content")) for entry in entries if isinstance(entry, dict) and entry.get("special") is False}


def _reserved_256(first: int, settings: Mapping[str, Any]) -> dict[str, int]:
    named = {number: token for token, number in _listed(first, settings).items()}
    return {named.get(number, f"<|reserved_token_{number}|>"): number for number in range(first, first + 256)}


def _in_order(*tokens: str) -> SpecialTokens:
    return lambda first, settings: {token: first + number for number, token in enumerate(tokens)}


_EXTRAS: Final = tuple(f"<|extra_{number}|>" for number in range(205))

RULES: Final[Mapping[str, TiktokenRules]] = {
    # Kimi K2, Kimi-VL, Kimi Linear, Moonlight: tokenization_kimi.py, tokenization_moonshot.py
    "TikTokenTokenizer": TiktokenRules(
        _KIMI,
        _reserved_256,
        ("kimi_k2", "kimi_k25", "kimi_k3", "kimi_linear", "kimi_vl"),
        named=(("bos_token", "[BOS]"), ("eos_token", "[EOS]")),
    ),
    # Qwen 1: tokenization_qwen.py
    "QWenTokenizer": TiktokenRules(
        _ONE_DIGIT,
        _in_order("<|endoftext|>", "<|im_start|>", "<|im_end|>", *_EXTRAS),
        ("qwen",),
        composes=True,
        named=(("eos_token", "<|endoftext|>"),),
    ),
    # Hunyuan A13B, Hunyuan-Large: tokenization_hy.py
    "HYTokenizer": TiktokenRules(
        _ONE_DIGIT,
        _in_order("<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", *_EXTRAS),
        ("hunyuan", "hunyuan_v1_moe"),
        composes=True,
        named=(("bos_token", "<|startoftext|>"), ("eos_token", "<|eos|>"), ("pad_token", "<|pad|>")),
    ),
    # GLM-4-9B: tokenization_chatglm.py; the vocabulary is called tokenizer.model
    "ChatGLM4Tokenizer": TiktokenRules(_CL100K, _listed, ("chatglm",), prefix=("[gMASK]", "<sop>")),
}


def is_tiktoken(start: bytes) -> bool:
    """Whether a file that starts like this holds a tiktoken vocabulary: lines of a token in base64 and its rank."""
    fields = start.partition(b"\n")[0].split()
    try:
        return len(fields) == 2 and fields[1].isdigit() and b64decode(fields[0], validate=True) != b""
    except Base64Error:
        return False


def load_tiktoken(file: Path, settings: Mapping[str, Any], model_type: str | None) -> BuiltTokenizer:
    """Reads a vocabulary whose class is known. Blocking, 1 s.

    Args:
        file: the vocabulary.
        settings: content of ``tokenizer_config.json``.
        model_type: of ``config.json``.

    Raises:
        UnsupportedFormat: its pattern is not known.
        OSError, ValueError: the file cannot be read, or is not what it should be.
    """
    rules = _rules_for(file, settings, model_type)
    ranks: dict[bytes, int] = {}
    for line in file.read_bytes().splitlines():
        if line:
            token, rank = line.split()
            ranks.setdefault(b64decode(token, validate=True), int(rank))
    special = rules.special(len(ranks), settings)
    backend = byte_level_tokenizer(ranks, rules.pattern, special, visible=_visible(settings), composes=rules.composes)
    if rules.prefix and all(token in special for token in rules.prefix):
        surround(backend, rules.prefix, [], between=[])
    return BuiltTokenizer(backend, {name: token for name, token in rules.named if token in special})


def _rules_for(file: Path, settings: Mapping[str, Any], model_type: str | None) -> TiktokenRules:
    name = settings.get("tokenizer_class")
    if isinstance(name, str) and name in RULES:
        return RULES[name]
    for rules in RULES.values():
        if name is None and model_type in rules.model_types:
            return rules
    raise UnsupportedFormat(
        f"'{file}' is a tiktoken vocabulary, but how it cuts texts into words is in the model's code, which is never "
        f"run, and tokenizer_class `{name}` with model_type `{model_type}` is not known. Known classes: "
        f"{', '.join(RULES)}.",
        "Name a directory that has a tokenizer.json of this model with --tokenizer-path. If the code is that of a "
        "known class, write that name as tokenizer_class into tokenizer_config.json.",
    )
