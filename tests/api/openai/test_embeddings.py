"""Embeddings: bodies, and vectors as numbers or base64."""

from __future__ import annotations

import base64
import json
import struct

import pytest
from openai.types import CreateEmbeddingResponse

from smg_trio.api.openai.embeddings import embeddings_body, parse_embeddings_request
from smg_trio.api.openai.pooled_prompts import PoolingAnswer
from smg_trio.core.errors import InvalidRequest
from smg_trio.core.requests import PoolingParams

ANSWER = PoolingAnswer(response_id="embd-1", model="m", created=7, prompt_tokens=5)


def test_inputs_are_text_or_ids() -> None:
    request = parse_embeddings_request(b'{"model":"m","input":[[1,2],[3]],"dimensions":8,"request_id":"r"}')
    assert request.inputs.pooling == PoolingParams(task="embed", dimensions=8)
    assert request.inputs.completion is not None
    assert request.inputs.completion.prompts == [[1, 2], [3]]
    assert request.inputs.request_id == "r"
    assert not request.base64


def test_vectors_are_numbers_by_default() -> None:
    request = parse_embeddings_request(b'{"input":"a"}')
    body = json.loads(embeddings_body(ANSWER, request, [[0.5, 1.5], [2.0, 3.0]]))
    CreateEmbeddingResponse.model_validate(body, strict=True)
    assert [(entry["index"], entry["embedding"]) for entry in body["data"]] == [(0, [0.5, 1.5]), (1, [2.0, 3.0])]
    assert body["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize(("endianness", "order"), [("little", "<"), ("big", ">"), ("native", "=")])
def test_vectors_are_bytes_on_request(endianness: str, order: str) -> None:
    request = parse_embeddings_request(
        json.dumps({"input": "a", "encoding_format": "base64", "endianness": endianness}).encode()
    )
    body = json.loads(embeddings_body(ANSWER, request, [[0.5, 1.5]]))
    assert struct.unpack(f"{order}2f", base64.b64decode(body["data"][0]["embedding"])) == (0.5, 1.5)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{}", "input"),
        (b'{"input":""}', "input"),
        (b'{"input":[]}', "input"),
        (b'{"input":[[1],"a"]}', "input[1]"),
        (b'{"input":"a","encoding_format":"bytes"}', "encoding_format"),
        (b'{"input":"a","embed_dtype":"fp8_e4m3"}', "embed_dtype"),
        (b'{"input":"a","dimensions":0}', "dimensions"),
        (b'{"input":"a","truncate_prompt_tokens":-2}', "truncate_prompt_tokens"),
    ],
)
def test_refusals_name_the_parameter(body: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_embeddings_request(body)
    assert caught.value.param == param


def test_late_chunking_is_asked_of_every_token() -> None:
    request = parse_embeddings_request(b'{"input":["a b","c"],"late_chunking_params":{"chunk_size":3}}')
    assert request.inputs.pooling == PoolingParams(task="token_embed", late_chunking=3)
    assert parse_embeddings_request(b'{"input":"a","late_chunking_params":null}').inputs.pooling.task == "embed"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"late_chunking_params": 3}, "late_chunking_params"),
        ({"late_chunking_params": {}}, "late_chunking_params.chunk_size"),
        ({"late_chunking_params": {"chunk_size": 0}}, "late_chunking_params.chunk_size"),
        ({"late_chunking_params": {"chunk_size": True}}, "late_chunking_params.chunk_size"),
        ({"late_chunking_params": {"chunk_size": "3"}}, "late_chunking_params.chunk_size"),
        ({"late_chunking_params": {"chunk_size": 1 << 63}}, "late_chunking_params.chunk_size"),
        ({"late_chunking_params": {"chunk_size": 3, "overlap": 1}}, "late_chunking_params.overlap"),
        ({"encoding_format": "base64"}, "encoding_format"),
        ({"dimensions": 3}, "dimensions"),
        ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({"input": [1, 2]}, "input"),
        ({"input": [[1], [2]]}, "input"),
        ({"input": None, "messages": [{"role": "user", "content": "a"}]}, "messages"),
    ],
)
def test_late_chunking_needs_whole_texts_and_numbers(fields: dict[str, object], param: str) -> None:
    body = {"input": "a", "late_chunking_params": {"chunk_size": 3}} | fields
    with pytest.raises(InvalidRequest) as caught:
        parse_embeddings_request(json.dumps(body).encode())
    assert caught.value.param == param
