"""Bodies of the worker API."""

from __future__ import annotations

import json
from contextlib import suppress
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.api.errors import MalformedJson
from smg_trio.api.worker_specs import (
    accepted_value,
    check_same_url,
    parse_worker_body,
    parse_worker_id,
    parse_worker_patch,
    runtime_warning,
    worker_error_response,
    worker_location,
    worker_spec,
)
from smg_trio.api.workers import application_value, worker_value
from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import Conflict, InvalidRequest, NotFound
from smg_trio.core.workers import (
    BreakerOverrides,
    HealthOverrides,
    OverloadOverrides,
    PendingWorker,
    RetryOverrides,
    WorkerSnapshot,
    WorkerSpec,
    WorkerState,
)

URL = "ipc:///run/e0"


def body(**fields):
    """A parsed body with a URL and those fields."""
    return parse_worker_body(json.dumps({"url": URL} | fields).encode())


def refusal(**fields) -> str:
    """Why such a body is refused at once."""
    with pytest.raises(InvalidRequest) as caught:
        body(**fields)
    return caught.value.message


def test_every_field_of_a_zmq_worker_is_taken():
    parsed = body(
        runtime_type="tokenspeed",
        zmq_handshake_address="tcp://127.0.0.1:4444",
        dp_size=4,
        labels={"model_path": "/models/m", "tool_parser": "qwen"},
        priority=10,
        cost=0.5,
        api_key="secret",
        health={"failure_threshold": 1, "check_interval_secs": 2, "drain_settle_secs": 0, "disable_health_check": True},
        overload={"waiting_requests": 4, "token_usage": 0.5},
        resilience={"cb_failure_threshold": 2, "disable_circuit_breaker": False, "max_retries": 9, "jitter_factor": 0},
    )
    spec = worker_spec(parsed, "id", model_id=None, vocab_size=100)
    assert spec == WorkerSpec(
        worker_id="id",
        url=URL,
        model_id="/models/m",
        protocol=EngineProtocol.TOKENSPEED,
        engine_count=4,
        handshake_address="tcp://127.0.0.1:4444",
        vocab_size=100,
        labels={"model_path": "/models/m", "tool_parser": "qwen"},
        priority=10,
        cost=0.5,
        api_key="secret",
        health=HealthOverrides(
            failure_threshold=1, check_interval_secs=2.0, drain_settle_secs=0.0, disable_health_check=True
        ),
        overload=OverloadOverrides(waiting_requests=4, token_usage=0.5),
        breaker=BreakerOverrides(failure_threshold=2, disabled=False),
        retry=RetryOverrides(max_retries=9, jitter_factor=0.0),
    )
    assert "secret" not in repr(spec) + repr(parsed)


def test_a_url_is_enough_and_unknown_keys_are_ignored():
    parsed = body(connection_mode="http", http_pool={"x": 1}, kv_role=None, nonsense=[1])
    spec = worker_spec(parsed, "id", model_id="gateway-model")
    assert spec == WorkerSpec(worker_id="id", url=URL, model_id="gateway-model")


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"labels": {"served_model_name": "a", "model_id": "b", "model_path": "c"}, "model_id": "d"}, "a"),
        ({"labels": {"model_id": "b", "model_path": "c"}, "models": [{"id": "e"}]}, "b"),
        ({"labels": {"model_path": "c"}}, "c"),
        ({"model_id": "d", "models": [{"id": "e"}]}, "d"),
        ({"models": [{"id": "e", "aliases": []}, {"id": "f"}]}, "e"),
        ({"models": []}, "gateway-model"),
        ({}, "gateway-model"),
    ],
)
def test_the_model_is_named_by_labels_then_by_the_body_then_by_the_gateway(fields, model):
    assert worker_spec(body(**fields), "id", model_id="gateway-model").model_id == model


@pytest.mark.parametrize(
    ("fields", "default", "protocol"),
    [
        ({}, None, EngineProtocol.VLLM),
        ({}, EngineProtocol.TOKENSPEED, EngineProtocol.TOKENSPEED),
        ({"runtime_type": "unspecified"}, EngineProtocol.TOKENSPEED, EngineProtocol.TOKENSPEED),
        ({"runtime": "tokenspeed"}, EngineProtocol.VLLM, EngineProtocol.TOKENSPEED),
        ({"runtime_type": "vllm", "runtime": "tokenspeed"}, None, EngineProtocol.VLLM),
    ],
)
def test_the_runtime_is_the_body_s_then_the_gateway_s_then_vllm(fields, default, protocol):
    parsed = body(**fields)
    assert worker_spec(parsed, "id", model_id="m", default_protocol=default).protocol is protocol
    guessed = default is None and not set(fields.values()) & {"vllm", "tokenspeed"}
    warning = runtime_warning(parsed, default)
    assert warning.startswith("runtime_type unspecified for ZMQ worker; defaulting to vLLM EngineCore.") is guessed


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"url": "zmq://x"}, "Invalid value for field 'worker_url': zmq://x - URL must start with a lowercase http://"),
        ({"url": "ipc://"}, "ipc:// worker URL must include a socket path"),
        ({"url": "grpc://host:1"}, "ZMQ worker URL must be ipc://<path> or tcp://<host>:<port>, got 'grpc://host:1'."),
        ({"url": "http://host:0"}, "The worker URL 'http://host:0' has port 0, which nothing listens on."),
        ({"url": None}, "missing field `url`"),
        ({"url": 5}, "Invalid value for 'url': expected a string"),
        ({"runtime_type": "ollama"}, "Invalid value for 'runtime_type': must be one of 'unspecified', 'sglang'"),
        ({"worker_type": "boss"}, "Invalid value for 'worker_type'"),
        ({"dp_size": 0}, "Invalid value for 'dp_size': must be at least 1"),
        ({"dp_size": 65537}, "Invalid value for 'dp_size': must be at most 65536"),
        ({"labels": {"a": 1}}, "Invalid value for 'labels.a': expected a string"),
        ({"labels": ["a"]}, "Invalid value for 'labels': expected an object"),
        ({"priority": -1}, "Invalid value for 'priority'"),
        ({"models": "m"}, "Invalid value for 'models'"),
        ({"models": [{}]}, "Invalid value for 'models[0].id'"),
        ({"health": {"failure_threshold": 0}}, "Invalid value for 'health.failure_threshold': must be at least 1"),
        ({"health": {"disable_health_check": "yes"}}, "Invalid value for 'health.disable_health_check'"),
        ({"overload": {"token_usage": 1.5}}, "Invalid value for 'overload.token_usage'"),
        ({"resilience": {"cb_timeout_duration_secs": 0}}, "'resilience.cb_timeout_duration_secs'"),
        ({"resilience": {"max_retries": 0}}, "Invalid value for 'resilience.max_retries': must be at least 1"),
        ({"resilience": {"jitter_factor": 2}}, "Invalid value for 'resilience.jitter_factor': must be at most 1"),
        ({"resilience": {"backoff_multiplier": 0.5}}, "Invalid value for 'resilience.backoff_multiplier'"),
        ({"resilience": {"disable_retry": "no"}}, "Invalid value for 'resilience.disable_retry'"),
    ],
)
def test_what_a_body_says_wrongly_is_refused_at_once(fields, text):
    assert text in refusal(**fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"runtime_type": "sglang"},
            f"ZMQ worker {URL} has unsupported runtime sglang: only vllm and tokenspeed are supported over the ZMQ "
            "direct backend",
        ),
        (
            {"worker_type": "prefill"},
            f"ZMQ worker {URL} cannot serve worker type prefill: the direct-ZMQ backend carries no KV-transfer "
            "metadata and has no encode path, so encode/prefill/decode disaggregation requires a gRPC worker",
        ),
        ({"labels": {"tool_parser": "x"}}, f"worker {URL} declares unknown tool_parser 'x' for model 'm'"),
        ({"labels": {"reasoning_parser": "y"}}, f"worker {URL} declares unknown reasoning_parser 'y' for model 'm'"),
    ],
)
def test_what_no_zmq_worker_can_be_is_refused_in_the_background(fields, text):
    with pytest.raises(InvalidRequest) as caught:
        worker_spec(body(**fields), "id", model_id="m", tool_parsers={"qwen"}, reasoning_parsers={"qwen3"})
    assert caught.value.message == text


def test_a_worker_without_any_model_is_refused():
    with pytest.raises(InvalidRequest, match=f"ZMQ worker {URL} has no model identity: EngineCore does not report"):
        worker_spec(body(), "id", model_id=None)


def test_a_patch_names_only_what_changes():
    patch = parse_worker_patch(b'{"labels": {"a": "1"}, "cost": 2, "url": "ignored", "api_key": "secret"}')
    assert (patch.priority, patch.cost, patch.labels, patch.api_key) == (None, 2.0, {"a": "1"}, "secret")
    before = WorkerSpec(worker_id="id", url=URL, model_id="m", priority=9, labels={"a": "0", "b": "2"})
    after = patch.applied(before)
    assert (after.priority, after.cost, after.labels, after.api_key) == (9, 2.0, {"a": "1", "b": "2"}, "secret")
    assert parse_worker_patch(b"{}").applied(before) == before


def test_a_put_cannot_move_a_worker():
    check_same_url(URL, URL)
    with pytest.raises(
        InvalidRequest, match=r"URL mismatch: worker has URL 'ipc:///run/e0' but request body has 'x'\. "
    ):
        check_same_url(URL, "x")


def test_worker_ids_are_uuids():
    worker_id = str(uuid4())
    assert parse_worker_id(worker_id.upper()) == worker_id
    with pytest.raises(InvalidRequest, match=r"Invalid worker_id 'abc' \(expected UUID\)\. Error: "):
        parse_worker_id("abc")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequest("no"), 400, "BAD_REQUEST"),
        (MalformedJson("no"), 400, "BAD_REQUEST"),
        (NotFound("no"), 404, "WORKER_NOT_FOUND"),
        (Conflict("no"), 409, "WORKER_ALREADY_EXISTS"),
        (RuntimeError("secret"), 500, "INTERNAL_SERVER_ERROR"),
    ],
)
def test_refusals_have_the_worker_api_s_own_shape(error, status, code):
    shown_status, headers, shown = worker_error_response(error)
    message = "internal error" if status == 500 else "no"
    assert (shown_status, json.loads(shown)) == (status, {"error": message, "code": code})
    assert ("content-type", "application/json") in headers


def test_what_is_accepted_is_said_in_the_reference_s_words():
    assert worker_location("i") == "/workers/i"
    assert accepted_value("i", "addition", URL) == {
        "status": "accepted",
        "worker_id": "i",
        "url": URL,
        "location": "/workers/i",
        "message": "Worker addition queued for background processing",
    }
    assert accepted_value("i", "removal") == {
        "status": "accepted",
        "worker_id": "i",
        "message": "Worker removal queued for background processing",
    }


def test_a_refused_application_is_shown_with_its_reason():
    shown = application_value(
        PendingWorker(worker_id="i", url=URL, model_id="m", state=WorkerState.FAILED, reason="because")
    )
    assert (shown["status"], shown["is_healthy"], shown["status_reason"]) == ("failed", False, "because")
    assert "status_reason" not in application_value(PendingWorker(worker_id="i", url=URL))


def test_overrides_are_shown_and_keys_are_not():
    spec = worker_spec(body(api_key="secret", health={"success_threshold": 1}), "i", model_id="m")
    shown = worker_value(WorkerSnapshot(spec, WorkerState.READY, "", 0, False, 0, (), "tcp://x"), 0)
    assert shown["health"] == {"success_threshold": 1}
    assert "overload" not in shown
    assert "secret" not in json.dumps(shown)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=6,
)
KEYS = ["url", "runtime_type", "runtime", "worker_type", "dp_size", "labels", "models", "model_id", "health", "cost",
        "overload", "resilience", "priority", "api_key", "zmq_handshake_address"]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=6), st.booleans())
def test_no_body_is_worse_than_a_refusal(fields, with_url):
    text = json.dumps(fields | ({"url": URL} if with_url else {})).encode()
    for parse in (parse_worker_body, parse_worker_patch):
        with suppress(InvalidRequest):
            parse(text)
