"""Every request vector, written from the core request it stands for, and compared field by field.

What differs by design is stated here once: fields that only an engine's own front end acts on are not
sent, defaults are left out, sets are compared as sets.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.media import MediaFeature, MediaTensor, PixelForm
from smg_trio.core.requests import (
    GenerationRequest,
    LoraAdapter,
    PoolingParams,
    RepetitionDetection,
    SamplingParams,
    StructuredKind,
    StructuredOutput,
)
from smg_trio.core.tensors import TensorValue
from smg_trio.wire.codec import codec_for

from .loading import TOKENSPEED_VERSIONS, VLLM_VERSIONS, Vector, label, vectors

VLLM = codec_for(EngineProtocol.VLLM)
TOKENSPEED = codec_for(EngineProtocol.TOKENSPEED)
INFO = EngineInfo(max_model_len=4096, supports_lora=True)
VOCAB = 1024

# vLLM's engine core does not act on these (`detokenize`, `n` and the like are its front end's).
FRONT_END_ONLY = {
    "stop", "bad_words", "n", "detokenize", "skip_special_tokens", "spaces_between_special_tokens",
    "include_stop_str_in_output", "output_kind", "stream_interval", "output_text_buffer_length",
}  # fmt: skip
SAMPLING_DEFAULTS = {"max_tokens": 16, "stop_token_ids": [], "_all_stop_token_ids": []}
POOLING_DEFAULTS: list[Any] = [None] * 5 + [False, None, None, None, 2, None]
REQUEST_DEFAULTS: list[Any] = [None] * 11 + [0, 0, 0, None, False, None, None, None, False, None, None]


def sampling(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 16, **changes})


def vllm_request(request_id: str, **changes: Any) -> GenerationRequest:
    fields: dict[str, Any] = {
        "request_id": request_id,
        "prompt_token_ids": [1, 2, 3],
        "arrival_time": 1700000000.5,
        "sampling": sampling(),
        **changes,
    }
    return GenerationRequest(**fields)


def constrained(request_id: str, kind: StructuredKind, value: Any, backend: str | None) -> GenerationRequest:
    constraint = StructuredOutput(kind=kind, value=value, backend=backend)
    return vllm_request(request_id, sampling=sampling(temperature=0.0, max_tokens=40, structured_output=constraint))


FULL_SAMPLING = sampling(
    presence_penalty=0.5, frequency_penalty=-0.25, repetition_penalty=1.1, temperature=0.7, top_p=0.9,
    top_k=40, min_p=0.05, seed=1234, stop_token_ids=(7, 9), max_tokens=256, min_tokens=4, logprobs=5,
    prompt_logprobs=2, eos_token_id=3, all_stop_token_ids=frozenset({9, 3, 7}),
    logit_bias={11: -2.5, 12: 100.0}, allowed_token_ids=(1, 2, 3),
    extra_args={"kv_transfer_params": {"do_remote_decode": True}},
    bad_words_token_ids=((100,), (101, 102)), skip_reading_prefix_cache=True, thinking_token_budget=64,
    repetition_detection=RepetitionDetection(max_pattern_size=20, min_pattern_size=1, min_count=3),
)  # fmt: skip
IMAGE = TensorValue("float32", (2, 3), struct.pack("<6f", *[1.0] * 6))
FEATURE = MediaFeature(
    modality="image", identifier="hash-1", offset=1, length=2, is_embed=None, embeds=2,
    tensors={PixelForm.NORMALISED: (MediaTensor("pixel_values", IMAGE, "batched"),)},
)  # fmt: skip
EMBEDS = TensorValue("float32", (4, 64), struct.pack("<256f", *range(256)))
OBJECT_SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
ANY_TEXT_TAG = '{"type": "structural_tag", "format": {"type": "any_text"}}'

VLLM_REQUESTS: dict[str, GenerationRequest] = {
    "req_add_minimal": vllm_request("req-1"),
    "req_add_short_prefix": vllm_request("req-short", sampling=sampling(temperature=0.0, max_tokens=8)),
    "req_add_bad_words": vllm_request("req-bw", sampling=sampling(bad_words_token_ids=((100,), (101,)))),
    "req_add_cache_salt": vllm_request("req-salt", cache_salt="tenant-A"),
    "req_add_dp_wave": vllm_request("req-dp", rank=1),
    "req_add_full_sampling": vllm_request(
        "req-full", sampling=FULL_SAMPLING, cache_salt="salt-1", rank=1, priority=-5,
        trace_headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        external_request_id="cmpl-abc",
    ),
    "req_add_greedy_with_eos": vllm_request("req-1", sampling=sampling(
        temperature=0.0, max_tokens=8, stop_token_ids=(7,), eos_token_id=3, all_stop_token_ids=frozenset({3, 7})
    )),
    "req_add_ignore_eos": vllm_request("req-1", sampling=sampling(
        temperature=0.0, max_tokens=8, ignore_eos=True, all_stop_token_ids=frozenset({3, 7})
    )),
    "req_add_logit_bias": vllm_request("req-lb", sampling=sampling(logit_bias={50: -100.0, 51: 1.5})),
    "req_add_logprobs": vllm_request("req-lp", sampling=sampling(temperature=0.0, max_tokens=4, logprobs=5)),
    "req_add_prompt_logprobs": vllm_request(
        "req-plp", sampling=sampling(temperature=0.0, max_tokens=1, prompt_logprobs=2)
    ),
    "req_add_lora": vllm_request(
        "req-lora", lora=LoraAdapter(name="my-lora", adapter_id=7, path="/models/lora7")
    ),
    "req_add_priority": vllm_request("req-prio", priority=10),
    "req_add_stop_token_ids": vllm_request("req-stop", sampling=sampling(
        stop_token_ids=(5, 6), min_tokens=2, all_stop_token_ids=frozenset({5, 6})
    )),
    "req_add_multimodal": vllm_request("req-mm", media=(FEATURE,)),
    "req_add_prompt_embeds": vllm_request("req-emb", prompt_token_ids=(), extra={"prompt_embeds": EMBEDS}),
    "req_add_so_json": constrained("req-so-json", "json", OBJECT_SCHEMA, None),
    "req_add_so_json_dict": constrained("req-so-json_dict", "json", {"type": "object"}, None),
    "req_add_so_json_object": constrained("req-so-json_object", "json_object", True, None),
    "req_add_so_regex": constrained("req-so-regex", "regex", "[a-c]{3}", None),
    "req_add_so_choice": constrained("req-so-choice", "choice", ("alpha", "beta"), None),
    "req_add_so_grammar": constrained("req-so-grammar", "grammar", 'root ::= "yes" | "no"', None),
    "req_add_so_structural_tag": constrained("req-so-structural_tag", "structural_tag", ANY_TEXT_TAG, None),
    "req_add_so_guidance_auto": constrained("req-so-g", "json", '{"type":"object"}', "guidance"),
}  # fmt: skip


def vllm_case(vector: Vector) -> tuple[GenerationRequest, int]:
    request = VLLM_REQUESTS[vector.name]
    if vector.name == "req_add_full_sampling" and vector.folder != "vllm-0.27.1":
        assert request.sampling is not None
        request = replace(request, sampling=replace(request.sampling, extra_sampling={"watermarking": True}))
    wave = {"req_add_dp_wave": 4, "req_add_full_sampling": 3}.get(vector.name, 0)
    return request, wave


def comparable_sampling(wire: dict[str, Any]) -> dict[str, Any]:
    fields = {**SAMPLING_DEFAULTS, **{k: v for k, v in wire.items() if k not in FRONT_END_ONLY}}
    # The decoder's own default: prompt logprobs switch reads of the prefix cache off.
    fields.setdefault("skip_reading_prefix_cache", "prompt_logprobs" in fields)
    fields["_all_stop_token_ids"] = set(fields["_all_stop_token_ids"])
    if constraint := fields.get("structured_outputs"):
        fields["structured_outputs"] = comparable_constraint(constraint)
    return fields


def comparable_constraint(wire: dict[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in wire.items() if value and key != "_backend_was_auto"}
    if isinstance(fields.get("json"), str):
        fields["json"] = json.loads(fields["json"])
    if fields["_backend"] == "xgrammar" and "choice" in fields:
        # xgrammar compiles no choice: it goes out as a grammar.
        fields["grammar"] = "root ::= " + " | ".join(f'"{choice}"' for choice in fields.pop("choice"))
    return fields


def comparable_vllm(payload: bytes) -> list[Any]:
    fields = msgpack.unpackb(payload, strict_map_key=False)
    fields += REQUEST_DEFAULTS[len(fields) :]
    if fields[3] is not None:
        fields[3] = comparable_sampling(fields[3])
    if fields[6] is not None:
        # Beyond these three everything is a default, at positions that differ between versions.
        assert not any(fields[6][3:])
        fields[6] = fields[6][:3]
    return fields


@pytest.mark.parametrize("vector", vectors("req_add", VLLM_VERSIONS), ids=label)
def test_a_vllm_request_is_written_as_its_own_front_end_writes_it(vector: Vector) -> None:
    request, wave = vllm_case(vector)
    if not request.media:  # the vector's has a shape that no model takes
        VLLM.check(request, INFO, VOCAB)
    frames = VLLM.encode_add(request, wave=wave)
    assert frames[0] == vector.frames[0]
    assert comparable_vllm(frames[1]) == comparable_vllm(vector.frames[1])
    assert frames[2:] == vector.frames[2:]


POOLING = {
    "req_pool_token_embed": PoolingParams(task="token_embed", skip_reading_prefix_cache=True),
    "req_pool_late_chunking": PoolingParams(task="token_embed", skip_reading_prefix_cache=True, late_chunking=4),
}


@pytest.mark.parametrize("vector", vectors("req_pool", VLLM_VERSIONS), ids=label)
def test_a_pooling_request_is_written_as_its_own_front_end_writes_it(vector: Vector) -> None:
    request = vllm_request("req-1", sampling=None, pooling=POOLING[vector.name])
    VLLM.check(request, replace(INFO, engine_version=vector.folder.removeprefix("vllm-")), VOCAB)
    written, real = (comparable_vllm(frames[1]) for frames in (VLLM.encode_add(request), vector.frames))
    written[4] += POOLING_DEFAULTS[len(written[4]) :]
    assert written == real


@pytest.mark.parametrize("vector", vectors("req_abort", (*VLLM_VERSIONS, *TOKENSPEED_VERSIONS)), ids=label)
def test_an_abort_is_the_same_to_the_byte(vector: Vector) -> None:
    codec = VLLM if vector.folder in VLLM_VERSIONS else TOKENSPEED
    assert codec.encode_abort(("req-1", "req-2")) == vector.frames


@pytest.mark.parametrize("vector", vectors("req_start_dp_wave", VLLM_VERSIONS), ids=label)
def test_a_wave_start_is_the_same_to_the_byte(vector: Vector) -> None:
    wave, exclude = vector.generic()
    assert VLLM.encode_start_wave(wave, exclude) == vector.frames


@pytest.mark.parametrize("vector", vectors("req_utility", VLLM_VERSIONS), ids=label)
def test_a_utility_call_is_the_same_to_the_byte(vector: Vector) -> None:
    client, call_id, method, args = vector.generic()
    assert client == 0
    assert VLLM.encode_utility(call_id, method, args) == vector.frames


def tokenspeed_request(request_id: str, ids: list[int], **changes: Any) -> GenerationRequest:
    return GenerationRequest(request_id=request_id, prompt_token_ids=ids, sampling=sampling(**changes))


def tokenspeed_constrained(kind: StructuredKind, value: Any) -> GenerationRequest:
    constraint = StructuredOutput(kind=kind, value=value)
    return tokenspeed_request("req-so", [1], temperature=0.0, structured_output=constraint)


TOKENSPEED_REQUESTS: dict[str, GenerationRequest] = {
    "req_add_minimal": tokenspeed_request("req-1", [1, 2, 3]),
    "req_add_greedy": tokenspeed_request("req-1", [1, 2, 3], temperature=0.0, max_tokens=8),
    "req_add_shortest": tokenspeed_request("req-short2", [1, 2, 3], temperature=0.0, max_tokens=8),
    "req_add_smg_prefix": tokenspeed_request("req-short", [1, 2, 3], temperature=0.0, max_tokens=8),
    "req_add_logprob": tokenspeed_request("req-lp", [1, 2], max_tokens=4, logprobs=0),
    "req_add_dp_rank": tokenspeed_request("req-dp", [1]),
    "req_add_n2_rejected": tokenspeed_request("req-n2", [1]),
    "req_add_full": tokenspeed_request(
        "req-full", [1, 2, 3], max_tokens=64, min_tokens=2, stop_token_ids=(2, 7), temperature=0.7, top_p=0.9,
        top_k=40, min_p=0.05, frequency_penalty=0.5, presence_penalty=-0.5, repetition_penalty=1.1,
        logit_bias={11: -2.5}, seed=1234, thinking_token_budget=100, logprobs=0,
    ),
    "req_add_so_json_schema": tokenspeed_constrained("json", '{"type":"object"}'),
    "req_add_so_regex": tokenspeed_constrained("regex", "[a-c]{3}"),
    "req_add_so_ebnf": tokenspeed_constrained("choice", ("yes", "no")),
    "req_add_so_structural_tag": tokenspeed_constrained(
        "structural_tag", '{"type":"structural_tag","format":{"type":"any_text"}}'
    ),
}  # fmt: skip
TOKENSPEED_TAIL: list[Any] = [False, -1, 0, None, False, None, None, None, False, 0.0] + [None] * 9
TOKENSPEED_SAMPLING: list[Any] = [
    None, None, None, 1.0, 1.0, -1, 0.0, 0.0, 0.0, 1.0, 0, None, None, None, None, False, True, True, False,
    None, None, None, None, None, None, 1, None, 0, False,
]  # fmt: skip
# Never sent: skip_special_tokens, spaces_between_special_tokens, no_stop_trim, stream_interval (text is
# the gateway's, and it wants every token), logprobs (`return_logprob` decides), n (one sequence each).
TOKENSPEED_GATEWAY_SIDE = (16, 17, 18, 21, 24, 25)


def normalised(raw: list[Any]) -> list[Any]:
    """What the engine makes of a sampling array before it samples (0.1.1's rules)."""
    fields = raw + TOKENSPEED_SAMPLING[len(raw) :]
    for position in TOKENSPEED_GATEWAY_SIDE:
        fields[position] = None
    fields[2] = set(fields[2] or ())
    if fields[3] < 1e-6:
        fields[3], fields[5] = 1.0, 1
    if fields[5] == -1:
        fields[5] = 1 << 30
    if fields[5] == 1:
        fields[23] = 0
    fields[26], fields[28] = [], True
    return fields


def comparable_tokenspeed(payload: bytes) -> list[Any]:
    fields = msgpack.unpackb(payload, strict_map_key=False)
    fields += TOKENSPEED_TAIL[len(fields) - 6 :]
    fields[5] = normalised(fields[5])
    # Always streamed, and a pinned rank is left to the routing.
    fields[10], fields[24] = True, None
    return fields


@pytest.mark.parametrize("vector", vectors("req_add", TOKENSPEED_VERSIONS), ids=label)
def test_a_tokenspeed_request_means_what_its_own_front_end_means(vector: Vector) -> None:
    request = TOKENSPEED_REQUESTS[vector.name]
    TOKENSPEED.check(request, INFO, VOCAB)
    frames = TOKENSPEED.encode_add(request)
    written, wanted = comparable_tokenspeed(frames[1]), comparable_tokenspeed(vector.frames[1])
    if wanted[5][0] is None:
        # The gateway always states the length.
        wanted[5][0] = 16
    assert frames[0] == vector.frames[0]
    assert len(frames) == 2
    assert written == wanted


def test_the_tokenspeed_short_form_is_the_reference_prefix_but_for_the_seed() -> None:
    (vector,) = [v for v in vectors("req_add_smg_prefix", TOKENSPEED_VERSIONS) if v.folder.endswith("0.1.1")]
    written = msgpack.unpackb(TOKENSPEED.encode_add(TOKENSPEED_REQUESTS[vector.name])[1])
    wanted = vector.generic()
    assert written[5][23] == 0
    wanted[5][23] = 0
    assert written == wanted
