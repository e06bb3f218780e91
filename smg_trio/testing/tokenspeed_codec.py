"""TokenSpeed's engine protocol (0.1.0 and 0.1.1) from the engine's side. Pure.

Requests are tagged positional arrays, sampling parameters an untagged one that may be cut anywhere, outputs one
column-oriented array per step. What does not decode is dropped with a warning; what decodes but is out of range
ends with reason "abort" and no tokens. There are no utilities, no waves, no statistics-only messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgpack

from smg_trio.core.outputs import EngineError, FinishReason
from smg_trio.testing import tensors
from smg_trio.testing.commands import Abort, Add, Command, EngineRequest, Malformed
from smg_trio.testing.options import EngineOptions

if TYPE_CHECKING:
    from smg_trio.testing.messages import Message
    from smg_trio.testing.sequences import Load, RunningSequence

REQUEST_TAG = "TokenizedGenerateReqInput"
OUTPUT_TAG = "BatchTokenIDOutSlim"
FORCED_INTERVAL = 50

_REQUEST_FIELDS = (
    "rid",
    "http_worker_ipc",
    "input_text",
    "input_ids",
    "sampling_params",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "token_ids_logprob",
    "stream",
)
_REQUIRED_ELEMENTS = 6

_TOP_K_OFF = (-1, 1 << 30)


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _int(value: Any) -> bool:
    return type(value) is int


def _text(value: Any) -> bool:
    return value is None or type(value) is str


def _int_or_nil(value: Any) -> bool:
    return value is None or type(value) is int


def _flag(value: Any) -> bool:
    return type(value) is bool


def _ints_or_nil(value: Any) -> bool:
    return value is None or (type(value) is list and all(type(item) is int for item in value))


def _texts_or_nil(value: Any) -> bool:
    return _text(value) or (type(value) is list and all(type(item) is str for item in value))


def _map_or_nil(value: Any) -> bool:
    return value is None or type(value) is dict


_SAMPLING_FIELDS: tuple[tuple[str, Any, Callable[[Any], bool]], ...] = (
    ("max_new_tokens", None, _int_or_nil),
    ("stop", None, _texts_or_nil),
    ("stop_token_ids", None, _ints_or_nil),
    ("temperature", 1.0, _number),
    ("top_p", 1.0, _number),
    ("top_k", -1, _int),
    ("min_p", 0.0, _number),
    ("frequency_penalty", 0.0, _number),
    ("presence_penalty", 0.0, _number),
    ("repetition_penalty", 1.0, _number),
    ("min_new_tokens", 0, _int),
    ("json_schema", None, _text),
    ("regex", None, _text),
    ("ebnf", None, _text),
    ("structural_tag", None, _text),
    ("ignore_eos", False, _flag),
    ("skip_special_tokens", True, _flag),
    ("spaces_between_special_tokens", True, _flag),
    ("no_stop_trim", False, _flag),
    ("thinking_budget", None, _int_or_nil),
    ("custom_params", None, _map_or_nil),
    ("stream_interval", None, _int_or_nil),
    ("logit_bias", None, _map_or_nil),
    ("seed", None, _int_or_nil),
    ("logprobs", None, _int_or_nil),
    ("n", 1, _int),
    ("stop_strs", None, _texts_or_nil),
    ("stop_str_max_len", 0, _int),
    ("is_normalized", False, _flag),
)


class _Undecodable(Exception):
    """The real decoder would drop the message."""


class TokenSpeedCodec:
    """The wire of one TokenSpeed engine."""

    init_timeout_s = 600.0
    malformed_is_fatal = False

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._reports_load = not options.engine_version.startswith("0.1.0")
        self._pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack

    def hello(self) -> bytes:
        """HELLO: sent after the model is loaded; ``local`` is True."""
        return self._status("HELLO")

    def ready(self) -> bytes:
        """READY: sent immediately after INIT."""
        return self._status("READY")

    def registration(self) -> bytes:
        """``WireEngineCoreReadyResponse``, 19 keys; ``data_parallel_size`` is the true group size."""
        options = self._options
        tokens = options.num_gpu_blocks * options.block_size
        message: dict[str, Any] = {
            "max_model_len": options.max_model_len,
            "num_gpu_blocks": options.num_gpu_blocks,
            "prefix_granularity": options.block_size,
            "dp_stats_address": None,
            "dtype": "bfloat16",
            "multimodal_encoder_dtype": None,
            "vllm_version": f"tokenspeed-{options.engine_version}",
            "world_size": options.group_size,
            "data_parallel_size": options.group_size,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "data_parallel_rank": options.rank,
            "max_num_seqs": options.max_num_seqs,
            "max_num_batched_tokens": max(8192, options.max_model_len),
            "instance_id": f"fake-engine-{options.rank}",
            "kv_cache_size_tokens": tokens,
            "kv_cache_max_concurrency": None,
            "kv_events_config": None,
        }
        return self._packed(message)

    def addresses(self, init: bytes) -> tuple[list[str], list[str]]:
        """The first input and output address: it uses no others. Raises ValueError where the real engine would."""
        addresses = msgpack.unpackb(init)["addresses"]
        inputs, outputs = addresses.get("inputs", []), addresses.get("outputs", [])
        if not inputs or not outputs:
            raise ValueError("INIT without input or output address")
        return inputs[:1], outputs[:1]

    def decode(self, frames: Sequence[bytes], now: float) -> Command:
        """Decode ``[type, payload, aux…]``."""
        try:
            if len(frames) < 2:
                raise _Undecodable(f"{len(frames)} frames")
            payload = msgpack.unpackb(frames[1], raw=False, strict_map_key=False)
            if frames[0] == b"\x00":
                return Add(self._request(payload, now))
            if frames[0] == b"\x01" and _texts_or_nil(payload) and isinstance(payload, list):
                return Abort(tuple(payload))
            raise _Undecodable(f"unknown message type {frames[0].hex()}")
        except (_Undecodable, ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            return Malformed(f"dropped: {error}")

    def step(self, saying: Sequence[RunningSequence], load: Load | None, now: float) -> Message:
        """One ``BatchTokenIDOutSlim``."""
        chances = [_sampled_logprobs(sequence) for sequence in saying]
        columns: list[Sequence[Any]] = [
            [sequence.request.request_id for sequence in saying],
            [sequence.token_ids for sequence in saying],
            [_reason(sequence.finish) for sequence in saying],
            [len(sequence.request.prompt_token_ids) for sequence in saying],
            [sequence.completion_tokens for sequence in saying],
            [sequence.cached_tokens for sequence in saying],
            chances,
            [sequence.token_ids if chance else [] for sequence, chance in zip(saying, chances, strict=True)],
        ]
        assert load is not None, "there is one front, which is told the load"
        return self._batch(columns, load)

    def idle(self, load: Load, now: float) -> Message | None:
        """Nothing: a message is only sent when there is something to say."""
        return None

    def ended(
        self,
        requests: Sequence[EngineRequest],
        reason: FinishReason,
        load: Load,
        now: float,
        error: EngineError | None = None,
        missing: Sequence[str] = (),
    ) -> Message:
        """Requests ended without tokens; every reason but stop and length is "abort" on this wire."""
        count = len(requests)
        columns: list[list[Any]] = [
            [request.request_id for request in requests],
            [[]] * count,
            [_reason(reason)] * count,
            [len(request.prompt_token_ids) for request in requests],
            [0] * count,
            [0] * count,
            [[]] * count,
            [[]] * count,
        ]
        return self._batch(columns, load)

    def utility_reply(self, call_id: int, failure: str | None, result: Any, now: float) -> Message:
        """This protocol has no utilities. Raises NotImplementedError."""
        raise NotImplementedError("TokenSpeed has no utility calls")

    def wave_complete(self, wave: int, now: float) -> Message:
        """This protocol has no waves. Raises NotImplementedError."""
        raise NotImplementedError("TokenSpeed has no waves")

    def _status(self, status: str) -> bytes:
        return self._packed({"status": status, "local": True, "headless": True, "parallel_config_hash": None})

    def _batch(self, columns: Sequence[Sequence[Any]], load: Load) -> Message:
        row: list[Any] = [OUTPUT_TAG, *columns, self._options.rank]
        if self._reports_load:
            pages = self._options.num_gpu_blocks
            report = [load.running, load.waiting, round(load.kv_usage * pages), pages]
            row += report if self._options.stats else [0, 0, 0, 0]
        row += ["field of a newer engine"] * self._options.extra_fields
        return [self._packed(row)]

    def _packed(self, value: Any) -> bytes:
        packed: bytes = self._pack(value)
        return packed

    def _request(self, payload: Any, now: float) -> EngineRequest:
        fields = _named_fields(payload)
        sampling = _named_sampling(fields["sampling_params"])
        prompt = fields["input_ids"] or []
        request = EngineRequest(
            request_id=fields["rid"],
            prompt_token_ids=prompt,
            max_tokens=self._max_tokens(sampling["max_new_tokens"], len(prompt)),
            min_tokens=sampling["min_new_tokens"],
            eos_token_id=None if sampling["ignore_eos"] else self._options.eos_token_id,
            stop_token_ids=frozenset(() if sampling["ignore_eos"] else sampling["stop_token_ids"] or ()),
            seed=sampling["seed"],
            logprobs=0 if fields["return_logprob"] else None,
            stream_interval=(sampling["stream_interval"] or 1) if fields["stream"] else FORCED_INTERVAL,
            sampling=sampling,
            payload=payload,
            received_at=now,
        )
        request.failure = self._failure(request, fields)
        return request

    def _max_tokens(self, asked: int | None, prompt_tokens: int) -> int:
        room = self._options.max_model_len - prompt_tokens - 1
        return room if asked is None else min(asked, room)

    def _failure(self, request: EngineRequest, fields: Mapping[str, Any]) -> str | None:
        """Why the request ends with "abort" immediately, or None."""
        if not request.prompt_token_ids:
            return "no input_ids"
        if len(request.prompt_token_ids) >= self._options.max_model_len - 1:
            return "the prompt does not fit the context"
        if fields["return_logprob"]:
            if not self._options.output_logprobs:
                return "return_logprob needs --enable-output-logprobs"
            if fields["top_logprobs_num"] > 0 or fields["token_ids_logprob"]:
                return "only the sampled token's logprob exists"
        return next((text for bad, text in _RANGES if bad(request.sampling, self._options)), None)


def _named_fields(payload: Any) -> dict[str, Any]:
    if type(payload) is not list or len(payload) < _REQUIRED_ELEMENTS or payload[0] != REQUEST_TAG:
        raise _Undecodable("not a TokenizedGenerateReqInput array")
    fields: dict[str, Any] = dict(zip(_REQUEST_FIELDS, payload[1:], strict=False))
    fields.setdefault("return_logprob", False)
    fields.setdefault("top_logprobs_num", 0)
    fields.setdefault("token_ids_logprob", None)
    fields.setdefault("stream", False)
    if type(fields["rid"]) is not str or not _ints_or_nil(fields["input_ids"]):
        raise _Undecodable("wrong type of rid or input_ids")
    if type(fields["return_logprob"]) is not bool or type(fields["stream"]) is not bool:
        raise _Undecodable("wrong type of return_logprob or stream")
    if not _int(fields["top_logprobs_num"]) or not _ints_or_nil(fields["token_ids_logprob"]):
        raise _Undecodable("wrong type of a logprob field")
    return fields


def _named_sampling(values: Any) -> dict[str, Any]:
    if type(values) is not list:
        raise _Undecodable("sampling parameters are not an array")
    sampling = {name: default for name, default, _ in _SAMPLING_FIELDS}
    for (name, _, check), value in zip(_SAMPLING_FIELDS, values, strict=False):
        if not check(value):
            raise _Undecodable(f"wrong type {type(value).__name__} of {name}")
        sampling[name] = value
    return sampling


def _sampled_logprobs(sequence: RunningSequence) -> list[float]:
    if sequence.request.logprobs is None:
        return []
    return [tensors.sampled_logprob(token) for token in sequence.token_ids]


def _reason(finish: FinishReason | None) -> str:
    if finish is None:
        return ""
    return finish.value if finish in (FinishReason.STOP, FinishReason.LENGTH) else "abort"


Range = Callable[[Mapping[str, Any], EngineOptions], bool]


def _outside(name: str, low: float, high: float, *, open_low: bool = False) -> Range:
    def bad(sampling: Mapping[str, Any], options: EngineOptions) -> bool:
        value = sampling[name]
        return not ((low < value if open_low else low <= value) and value <= high)

    return bad


def _bad_top_k(sampling: Mapping[str, Any], options: EngineOptions) -> bool:
    return sampling["top_k"] not in _TOP_K_OFF and not 1 <= sampling["top_k"] <= 127


def _bad_minimum(sampling: Mapping[str, Any], options: EngineOptions) -> bool:
    limit = sampling["max_new_tokens"]
    return sampling["min_new_tokens"] < 0 or (limit is not None and sampling["min_new_tokens"] > limit)


def _bad_bias(sampling: Mapping[str, Any], options: EngineOptions) -> bool:
    keys = [str(key) for key in sampling["logit_bias"] or ()]
    return not all(key.isdigit() and int(key) < options.vocab_size for key in keys)


def _many_constraints(sampling: Mapping[str, Any], options: EngineOptions) -> bool:
    return sum(sampling[kind] is not None for kind in ("json_schema", "regex", "ebnf")) > 1


def _bad_json(sampling: Mapping[str, Any], options: EngineOptions) -> bool:
    try:
        for name in ("json_schema", "structural_tag"):
            if sampling[name] is not None:
                json.loads(sampling[name])
    except (ValueError, RecursionError):
        return True
    return False


_RANGES: tuple[tuple[Range, str], ...] = (
    (_outside("temperature", 0, float("inf")), "temperature must be non-negative"),
    (_outside("top_p", 0, 1, open_low=True), "top_p must be in (0, 1]"),
    (_outside("min_p", 0, 1), "min_p must be in [0, 1]"),
    (_bad_top_k, "top_k must be -1 (disable) or in 1..127"),
    (_outside("frequency_penalty", -2, 2), "frequency_penalty must be in [-2, 2]"),
    (_outside("presence_penalty", -2, 2), "presence_penalty must be in [-2, 2]"),
    (_outside("repetition_penalty", 0, 2), "repetition_penalty must be in [0, 2]"),
    (
        lambda sampling, _: sampling["max_new_tokens"] is not None and sampling["max_new_tokens"] < 0,
        "max_new_tokens < 0",
    ),
    (_bad_minimum, "min_new_tokens must be in [0, max_new_tokens]"),
    (lambda sampling, _: sampling["n"] != 1, "n must be 1"),
    (lambda sampling, _: sampling["logprobs"] not in (None, 0), "logprobs must be nil or 0"),
    (_bad_bias, "logit_bias keys must be token ids below the vocabulary size"),
    (_many_constraints, "only one of json_schema, regex and ebnf can be set"),
    (lambda sampling, _: bool(sampling["stop"]), "stop strings need a tokenizer"),
    (_bad_json, "malformed JSON schema"),
)
