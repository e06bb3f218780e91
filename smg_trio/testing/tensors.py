"""Arrays as vLLM puts them on the wire: ``[dtype, shape, data]``, and the fake engine's made-up probabilities. Pure.

``data`` is msgpack ext type 3 when it has fewer than 256 bytes, else the index of a further frame (the
payload itself is frame 0). Seen on 0.27.1 and 0.32.0.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import msgpack

INLINE_LIMIT_BYTES = 256
RAW_VIEW = 3

LOGPROB_STEP = 0.5
TOP_LOGPROB = -0.125


class Frames:
    """The aux frames of one message; frame 0 is the payload, put in at the end."""

    __slots__ = ("aux",)

    def __init__(self) -> None:
        self.aux: list[bytes] = []

    def tensor(self, dtype: str, shape: Sequence[int], raw: bytes) -> list[Any]:
        """The wire triple for ``raw`` little-endian C-order bytes."""
        if len(raw) < INLINE_LIMIT_BYTES:
            return [dtype, list(shape), msgpack.ExtType(RAW_VIEW, raw)]
        self.aux.append(raw)
        return [dtype, list(shape), len(self.aux)]


def candidate_rows(
    token_ids: Sequence[int], count: int, vocab_size: int
) -> tuple[array[int], array[float], array[int]]:
    """Made-up candidates: ids[P*(k+1)], logprobs[P*(k+1)], ranks[P] for P tokens and k = ``count``.

    Token t has rank 2 where t % 4 == 0, else 1. Its rivals are t+1, t+2, … (modulo the vocabulary); the value
    at rank r is ``TOP_LOGPROB - LOGPROB_STEP * (r - 1)``. ``count`` -1 is the whole vocabulary.
    """
    columns = vocab_size if count < 0 else min(count, vocab_size)
    ids, logprobs, ranks = array("i"), array("f"), array("q")
    values = [TOP_LOGPROB - LOGPROB_STEP * i for i in range(max(columns, 2))]
    for token in token_ids:
        rank = 1 if token % 4 or vocab_size < 2 else 2
        order = [(token + i) % vocab_size for i in range(columns)]
        if rank == 2 and columns >= 1:
            order[:2] = [(token + 1) % vocab_size, token][: len(order[:2])]
        ids.append(token)
        ids.extend(order)
        logprobs.append(values[rank - 1])
        logprobs.extend(values[:columns])
        ranks.append(rank)
    return ids, logprobs, ranks


def sampled_logprob(token: int) -> float:
    """The made-up log probability of a sampled token: column 0 of `candidate_rows`."""
    return TOP_LOGPROB if token % 4 else TOP_LOGPROB - LOGPROB_STEP


def sample_logprobs(frames: Frames, token_ids: Sequence[int], count: int, vocab_size: int) -> list[Any]:
    """``new_logprobs``: numpy triples and the unused ``cu_num_generated_tokens``."""
    return _numpy_triples(frames, len(token_ids), *candidate_rows(token_ids, count, vocab_size))


def chosen_logprobs(frames: Frames, token_ids: Sequence[int], chosen: Sequence[int]) -> list[Any]:
    """``new_logprobs`` of a request that names token ids: the sampled one, then those, then a column that only pads.

    vLLM has one table for all requests of a step; what a request does not fill has id 0 and minus infinity.
    """
    ids, logprobs, ranks = array("i"), array("f"), array("q")
    for token in token_ids:
        ids.extend([token, *chosen, 0])
        values = [sampled_logprob(token) if other == token else chosen_logprob(other) for other in chosen]
        logprobs.extend([sampled_logprob(token), *values, float("-inf")])
        ranks.append(1)
    return _numpy_triples(frames, len(token_ids), ids, logprobs, ranks)


def chosen_logprob(token: int) -> float:
    """The made-up log probability of a token that was asked for by its id."""
    return -1.0 - token % 8


def _numpy_triples(frames: Frames, rows: int, ids: array[int], logprobs: array[float], ranks: array[int]) -> list[Any]:
    shape = (rows, len(ids) // max(rows, 1))
    return [
        frames.tensor("<i4", shape, ids.tobytes()),
        frames.tensor("<f4", shape, logprobs.tobytes()),
        frames.tensor("<i8", (rows,), ranks.tobytes()),
        None,
    ]


def prompt_logprobs(frames: Frames, prompt: Sequence[int], count: int, vocab_size: int, *, elements: int) -> list[Any]:
    """``new_prompt_logprobs_tensors``: torch triples for positions 1..T-1, padded with nil to ``elements``."""
    ids, logprobs, ranks = candidate_rows(prompt[1:], count, vocab_size)
    rows = len(prompt) - 1
    shape = (rows, len(ids) // max(rows, 1))
    tensors: list[Any] = [
        frames.tensor("int32", shape, ids.tobytes()),
        frames.tensor("float32", shape, logprobs.tobytes()),
        frames.tensor("int32", (rows,), array("i", ranks).tobytes()),
    ]
    return tensors + [None] * (elements - len(tensors))
