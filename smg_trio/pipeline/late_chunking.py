"""Late chunking: a text is embedded as a whole, and answered with one vector for every so many of its tokens. Pure.

The engine (vLLM since 0.33) takes the mean of the vectors of each chunk's tokens. Which part of the text a chunk is,
only the tokenizing side knows: rules are those of vLLM 0.33's API server (``entrypoints/pooling/token_embed``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smg_trio.api.openai.embeddings import Chunk
from smg_trio.core.errors import EngineRejected, InvalidRequest

if TYPE_CHECKING:
    from smg_trio.text.tokenizer import Tokenizer


def chunks_of(
    tokenizer: Tokenizer, text: str, token_ids: Sequence[int], size: int, *, add_special_tokens: bool
) -> list[Chunk]:
    """Where each chunk stands among the tokens and in the text.

    Args:
        tokenizer: the model's.
        text: what was tokenized.
        token_ids: int[T], what it became.
        size: tokens per chunk.
        add_special_tokens: as it was tokenized.

    Raises InvalidRequest where the tokenizer cannot say which characters its tokens are.
    """
    ids, offsets = tokenizer.encode_with_offsets(text, add_special_tokens=add_special_tokens)
    if ids != list(token_ids):
        raise InvalidRequest("Late chunking needs text whose tokens stand for parts of it.", param="input")
    return [Chunk((start, min(start + size, len(ids))), _range(offsets[start : start + size]))
            for start in range(0, len(ids), size)]  # fmt: skip


def _range(offsets: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The characters that some tokens stand for; None if they stand for none, as special tokens do."""
    written = [(start, end) for start, end in offsets if start < end]
    if not written:
        return None
    return min(start for start, _ in written), max(end for _, end in written)


def rows_of(values: Sequence[float], count: int) -> list[Sequence[float]]:
    """`values` as that many vectors: float[count, D]. Raises EngineRejected if they cannot be."""
    if not values or len(values) % count:
        raise EngineRejected(f"The engine did not answer with {count} vectors.")
    size = len(values) // count
    return [values[start : start + size] for start in range(0, len(values), size)]
