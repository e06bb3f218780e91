"""``POST /v1/embeddings``: text, token ids or a conversation in, vectors out, as numbers or as base64.

Fields are OpenAI's, with vLLM's ``messages``, ``endianness`` and truncation besides. With ``late_chunking_params``
(vLLM 0.33) each text is answered with a vector for every so many of its tokens.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from smg_trio.api.errors import load_json
from smg_trio.api.openai.pooled_prompts import PoolingAnswer, PoolingRequest, list_body, pooling_request
from smg_trio.api.parameters.fields import (
    INT64_MAX,
    Reader,
    describe,
    described,
    integer,
    mapping,
    object_schema,
    one_of,
    read_fields,
    refuse,
    within,
)
from smg_trio.api.parameters.limits import DEFAULT_LIMITS, RequestLimits

_ENDIANNESS = {"native": "=", "little": "<", "big": ">"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsRequest:
    """A validated request.

    Attributes:
        inputs: what is to be embedded.
        base64: vectors are shown as the bytes of their elements, in base64.
        byte_order: of the elements, which are 32-bit floats, in `struct`'s notation.
    """

    inputs: PoolingRequest
    base64: bool = False
    byte_order: str = "="


class Chunk(NamedTuple):
    """Part of a text: which of its tokens, and which of its characters; None for special tokens alone."""

    token_range: tuple[int, int]
    char_range: tuple[int, int] | None


class ChunkedText(NamedTuple):
    """A text's chunks, and a vector float[D] for each."""

    chunks: Sequence[Chunk]
    vectors: Sequence[Sequence[float]]


def parse_embeddings_request(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> EmbeddingsRequest:
    """Read and validate a body.

    Raises:
        InvalidRequest: naming the parameter; nothing but `SmgError` is ever raised.
        UnsupportedFeature: for media.
    """
    obj = load_json(body)
    found = read_fields(obj, READERS)
    chunk_size = found.get("late_chunking_params")
    if chunk_size is not None:
        return EmbeddingsRequest(inputs=_late_chunking(obj, found, limits, chunk_size))
    return EmbeddingsRequest(
        inputs=pooling_request(obj, limits, "embed"),
        base64=found.get("encoding_format") == "base64",
        byte_order=_ENDIANNESS[found.get("endianness", "native")],
    )


def _late_chunking(
    obj: Mapping[str, Any], found: Mapping[str, Any], limits: RequestLimits, chunk_size: int
) -> PoolingRequest:
    if found.get("encoding_format", "float") != "float":
        raise refuse("encoding_format", "must be 'float' with 'late_chunking_params'")
    for name in ("dimensions", "messages", "truncate_prompt_tokens"):
        if obj.get(name) is not None:
            raise refuse(name, "cannot be combined with 'late_chunking_params'")
    asked = pooling_request(obj, limits, "token_embed")
    assert asked.completion is not None, "there are no messages"
    if not all(isinstance(prompt, str) for prompt in asked.completion.prompts):
        raise refuse("input", "must be text with 'late_chunking_params'")
    return replace(asked, pooling=replace(asked.pooling, late_chunking=chunk_size))


@described(object_schema({"chunk_size": within(integer, 1)}, ("chunk_size",)))
def _chunk_size(value: Any, param: str) -> int:
    for name in mapping(value, param):
        if name != "chunk_size":
            raise refuse(f"{param}.{name}"[:100], "is not known")
    size = value.get("chunk_size")
    if type(size) is not int or not 1 <= size <= INT64_MAX:
        raise refuse(f"{param}.chunk_size", f"must be an integer of at least 1, got {describe(size)}")
    return size


def embeddings_body(answer: PoolingAnswer, request: EmbeddingsRequest, vectors: Sequence[Sequence[float]]) -> bytes:
    """The answer: one vector float[D] per input, in order."""
    return list_body(
        answer,
        [
            {"object": "embedding", "embedding": packed(vector, request.byte_order) if request.base64 else list(vector)}
            for vector in vectors
        ],
    )


def chunks_body(answer: PoolingAnswer, chunk_size: int, texts: Sequence[ChunkedText]) -> bytes:
    """The answer with late chunking: one vector per chunk of each text, in order, and what the chunks are."""
    return list_body(
        answer,
        [
            {
                "object": "embedding",
                "embedding": [list(vector) for vector in text.vectors],
                "late_chunking": {
                    "chunk_size": chunk_size,
                    "input_tokens": text.chunks[-1].token_range[1],
                    "chunks": [chunk._asdict() for chunk in text.chunks],
                    "strategy": "fixed_tokens",
                },
            }
            for text in texts
        ],
    )


def packed(vector: Sequence[float], byte_order: str) -> str:
    """A vector as base64 text."""
    return b64encode(struct.pack(f"{byte_order}{len(vector)}f", *vector)).decode("ascii")


READERS: dict[str, Reader] = {
    "encoding_format": one_of(("float", "base64")),
    "embed_dtype": one_of(("float32",)),
    "endianness": one_of(_ENDIANNESS),
    "late_chunking_params": _chunk_size,
}
