"""``POST /v1/embeddings``: text, token ids or a conversation in, vectors out, as numbers or as base64.

Fields are OpenAI's, with vLLM's ``messages``, ``endianness`` and truncation besides.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from smg_trio.api.errors import load_json
from smg_trio.api.parameters.fields import Reader, one_of, read_fields
from smg_trio.api.parameters.limits import DEFAULT_LIMITS, RequestLimits
from smg_trio.api.pooling import PoolingAnswer, PoolingRequest, list_body, pooling_request

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


def parse_embeddings_request(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> EmbeddingsRequest:
    """Read and validate a body.

    Raises:
        InvalidRequest: naming the parameter; nothing but `SmgError` is ever raised.
        UnsupportedFeature: for media.
    """
    obj = load_json(body)
    found = read_fields(obj, _READERS)
    return EmbeddingsRequest(
        inputs=pooling_request(obj, limits, "embed"),
        base64=found.get("encoding_format") == "base64",
        byte_order=_ENDIANNESS[found.get("endianness", "native")],
    )


def embeddings_body(answer: PoolingAnswer, request: EmbeddingsRequest, vectors: Sequence[Sequence[float]]) -> bytes:
    """The answer: one vector float[D] per input, in order."""
    return list_body(
        answer,
        [
            {"object": "embedding", "embedding": packed(vector, request.byte_order) if request.base64 else list(vector)}
            for vector in vectors
        ],
    )


def packed(vector: Sequence[float], byte_order: str) -> str:
    """A vector as base64 text."""
    return b64encode(struct.pack(f"{byte_order}{len(vector)}f", *vector)).decode("ascii")


_READERS: dict[str, Reader] = {
    "encoding_format": one_of(("float", "base64")),
    "embed_dtype": one_of(("float32",)),
    "endianness": one_of(_ENDIANNESS),
}
