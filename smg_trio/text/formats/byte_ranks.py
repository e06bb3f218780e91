"""A byte-level BPE tokenizer from tokens with ranks, as tiktoken and tekken vocabularies are written. Pure.

tiktoken merges whatever two neighbours make a token, the one with the lowest rank first; `tokenizers` merges pairs from
a list, the first in the list first. So the list has every pair that makes a token, in order of the ranks.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from smg_trio.text.formats.built import add_token
from smg_trio.text.token_pieces import BYTE_ALPHABET

_ALPHABET = {byte: char for char, byte in BYTE_ALPHABET.items()}


def byte_level_tokenizer(
    ranks: Mapping[bytes, int],
    pattern: str,
    special: Mapping[str, int],
    *,
    visible: Container[str] = (),
    first_id: int = 0,
    composes: bool = False,
) -> tokenizers.Tokenizer:
    """Builds the tokenizer.

    Args:
        ranks: rank of each token; all 256 single bytes are among them.
        pattern: what cuts texts into words, in the dialect that tiktoken and Oniguruma share.
        special: special tokens with their ids.
        visible: those of `special` that decoded text shows: found in texts as a whole, but not special.
        first_id: id of rank 0.
        composes: whether texts are normalized to NFC first.

    Raises:
        ValueError: single bytes are missing.
    """
    missing = sum(bytes([byte]) not in ranks for byte in range(256))
    if missing:
        raise ValueError(f"{missing} of the 256 single bytes are missing in the vocabulary")
    names = {token: "".join([_ALPHABET[byte] for byte in token]) for token in ranks}
    vocabulary = {name: ranks[token] + first_id for token, name in names.items()}
    model = models.BPE(vocabulary | dict(special), _merges(ranks, names), ignore_merges=True)
    backend = tokenizers.Tokenizer(model)
    if composes:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    for token in sorted(special, key=lambda token: special[token]):
        add_token(backend, token, special=token not in visible)
    return backend


def _merges(ranks: Mapping[bytes, int], names: Mapping[bytes, str]) -> list[tuple[str, str]]:
    """All pairs that make a token. Of those that make the same one, the pair with the longer left part comes first.

    It is the one further left where two such pairs overlap in a run of equal characters, and so tiktoken's choice.
    """
    found = []
    get = names.get
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left = get(token[:cut])
            if left is not None:
                right = get(token[cut:])
                if right is not None:
                    found.append((rank, -cut, left, right))
    found.sort()
    return [(left, right) for _, _, left, right in found]
