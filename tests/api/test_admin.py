"""Engine administration: options are read strictly, answers are vLLM's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from smg_trio.api import admin
from smg_trio.core.errors import InvalidRequest


def test_options_come_in_the_query_or_the_body() -> None:
    assert admin.parse_sleep({}) == admin.SleepRequest(level=1, mode="abort")
    assert admin.parse_sleep({"level": "2", "mode": "wait"}) == admin.SleepRequest(level=2, mode="wait")
    assert admin.parse_wake([]).tags is None
    assert admin.parse_wake(["weights", "kv_cache"]).tags == ("weights", "kv_cache")
    assert admin.parse_cache_reset({"reset_external": "true"}) == admin.CacheReset(reset_external=True)
    assert admin.parse_profile(b"") == admin.ProfileRequest()
    assert admin.parse_profile(b'{"max_iterations":3}').max_iterations == 3


def test_adapters_are_named_and_found() -> None:
    loaded = admin.parse_load_lora(b'{"lora_name":"a","lora_path":"/x","load_inplace":true}')
    assert loaded == admin.LoraRequest(name="a", path="/x", load_inplace=True)
    assert admin.parse_unload_lora(b'{"lora_name":"a","lora_int_id":3}') == admin.LoraRequest(name="a", adapter_id=3)


@pytest.mark.parametrize(
    ("read", "given", "param"),
    [
        (admin.parse_sleep, {"level": "3"}, "level"),
        (admin.parse_sleep, {"mode": "x"}, "mode"),
        (admin.parse_wake, ["x"], "tags[0]"),
        (admin.parse_cache_reset, {"reset_external": "perhaps"}, "reset_external"),
        (admin.parse_profile, b'{"delay_iterations":-1}', "delay_iterations"),
        (admin.parse_load_lora, b'{"lora_name":"a"}', "lora_path"),
        (admin.parse_load_lora, b'{"lora_name":"","lora_path":"/x"}', "lora_name"),
        (admin.parse_unload_lora, b"{}", "lora_name"),
    ],
)
def test_refusals_name_the_parameter(read: Callable[[Any], object], given: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(given)
    assert caught.value.param == param


def test_answers_are_vllms() -> None:
    assert json.loads(admin.sleeping_body(1)) == {"status": "sleeping", "level": 1}
    assert json.loads(admin.awake_body(None, fully=True)) == {"status": "awake", "tags": None}
    assert json.loads(admin.awake_body(("weights",), fully=False)) == {"status": "sleeping", "tags": ["weights"]}
    assert json.loads(admin.is_sleeping_body(True)) == {"is_sleeping": True}
    assert json.loads(admin.cache_reset_body(False)) == {"success": False}
    assert admin.lora_text("a", loaded=True) == "Success: LoRA adapter 'a' added successfully."
    assert admin.lora_text("a", loaded=False) == "Success: LoRA adapter 'a' removed successfully."


def test_pausing_is_read_and_answered() -> None:
    assert admin.parse_pause({}) == admin.PauseRequest(mode="abort", clear_cache=True)
    assert admin.parse_pause({"mode": "keep", "clear_cache": "false"}) == admin.PauseRequest(
        mode="keep", clear_cache=False
    )
    with pytest.raises(InvalidRequest):
        admin.parse_pause({"mode": "later"})
    assert json.loads(admin.status_body("paused")) == {"status": "paused"}
    assert json.loads(admin.is_paused_body(True)) == {"is_paused": True}


def test_flushing_says_how_many_workers_it_reached() -> None:
    whole = json.loads(admin.flushed_body(flushed=["ipc:///a", "ipc:///b"], skipped=1, failed=[]))
    assert (whole["status"], whole["workers_flushed"], whole["total_workers"]) == ("success", 2, 3)
    assert (whole["total_http_workers"], whole["total_grpc_workers"], whole["total_zmq_workers_skipped"]) == (2, 0, 1)
    assert "failed" not in whole
    assert "1 ZMQ workers skipped" in whole["message"]
    partly = json.loads(admin.flushed_body(flushed=["ipc:///a"], skipped=0, failed=[("ipc:///e", "busy")]))
    assert (partly["status"], partly["total_workers"]) == ("partial_success", 2)
    assert "ipc:///e" in partly["message"]
    assert (partly["successful"], partly["failed"]) == (["ipc:///a"], [{"worker": "ipc:///e", "error": "busy"}])


def test_profiling_names_those_that_failed_and_why() -> None:
    body = json.loads(admin.profiled_body("start", ["ipc:///a"], [("ipc:///b", "off")]))
    assert body["message"] == "Profile start: 1 succeeded, 1 failed"
    assert (body["successful"], body["failed"]) == (["ipc:///a"], [{"worker": "ipc:///b", "error": "off"}])


def test_an_adapter_may_name_the_model_it_adapts() -> None:
    assert admin.parse_load_lora(b'{"lora_name":"a","lora_path":"/x","base_model_name":"m"}').base_model == "m"
