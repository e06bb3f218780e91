"""Engine administration over HTTP: what vLLM's development and LoRA endpoints are asked, and what they answer.

Options come in the query string (``/sleep?level=1``), a LoRA adapter in a JSON body.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from smg_trio.api.errors import load_json
from smg_trio.api.parameters.fields import (
    Reader,
    boolean,
    filled_string,
    integer,
    one_of,
    read_fields,
    refuse,
    string,
    within,
)

PAUSE_MODES: Final = ("abort", "wait", "keep")
WAKE_TAGS: Final = ("weights", "kv_cache", "scheduling")


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepRequest:
    """``/sleep``: level 0 only pauses, 1 drops the KV cache and offloads weights, 2 drops both.

    Attributes:
        mode: what happens to running requests.
    """

    level: int = 1
    mode: str = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeRequest:
    """``/wake_up``: what to bring back (memory: ``weights``, ``kv_cache``; ``scheduling``); None is all of it."""

    tags: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRequest:
    """``/pause``: what happens to running requests, and whether the caches are emptied."""

    mode: str = "abort"
    clear_cache: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReset:
    """``/reset_prefix_cache``: whether running requests lose theirs, and whether the connector's goes too."""

    reset_running_requests: bool = False
    reset_external: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """``/start_profile``, ``/stop_profile``: overrides of one profiling session.

    Attributes:
        url: the only worker meant; None is all of them.
    """

    url: str | None = None
    profile_prefix: str | None = None
    delay_iterations: int | None = None
    max_iterations: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraRequest:
    """``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``.

    Attributes:
        path: of the weights; None to unload.
        adapter_id: the engine's number for it, where the client names one.
        load_inplace: replace an adapter of the same name.
        base_model: the model it adapts; "" is the only one there is.
    """

    name: str
    path: str | None = None
    adapter_id: int | None = None
    load_inplace: bool = False
    is_3d_weight: bool = False
    base_model: str = ""


def parse_sleep(query: Mapping[str, str]) -> SleepRequest:
    """Read the query of ``/sleep``. Raises InvalidRequest naming the parameter."""
    return SleepRequest(**read_fields(query, SLEEP_READERS))


def parse_pause(query: Mapping[str, str]) -> PauseRequest:
    """Read the query of ``/pause``. Raises InvalidRequest naming the parameter."""
    return PauseRequest(**read_fields(query, PAUSE_READERS))


def parse_wake(tags: Sequence[str]) -> WakeRequest:
    """Read the ``tags`` of ``/wake_up``, which may be repeated. Raises InvalidRequest."""
    for index, tag in enumerate(tags):
        one_of(WAKE_TAGS)(tag, f"tags[{index}]")
    return WakeRequest(tags=tuple(tags) or None)


def parse_cache_reset(query: Mapping[str, str]) -> CacheReset:
    """Read the query of ``/reset_prefix_cache``. Raises InvalidRequest naming the parameter."""
    return CacheReset(**read_fields(query, RESET_READERS))


def parse_profile(body: bytes) -> ProfileRequest:
    """Read the body of ``/start_profile`` or ``/stop_profile``; none is no overrides.

    Raises InvalidRequest naming the parameter.
    """
    return ProfileRequest(**read_fields(load_json(body or b"{}"), PROFILE_READERS))


def parse_load_lora(body: bytes) -> LoraRequest:
    """Read the body of ``/v1/load_lora_adapter``. Raises InvalidRequest naming the parameter."""
    found = read_fields(load_json(body), LORA_READERS)
    for name in ("lora_name", "lora_path"):
        if name not in found:
            raise refuse(name, "is required")
    return LoraRequest(
        name=found["lora_name"],
        path=found["lora_path"],
        adapter_id=found.get("lora_int_id"),
        load_inplace=found.get("load_inplace", False),
        is_3d_weight=found.get("is_3d_lora_weight", False),
        base_model=found.get("base_model_name", ""),
    )


def parse_unload_lora(body: bytes) -> LoraRequest:
    """Read the body of ``/v1/unload_lora_adapter``. Raises InvalidRequest naming the parameter."""
    found = read_fields(load_json(body), LORA_READERS)
    if "lora_name" not in found:
        raise refuse("lora_name", "is required")
    return LoraRequest(name=found["lora_name"], adapter_id=found.get("lora_int_id"))


def sleeping_body(level: int) -> bytes:
    """What ``/sleep`` answers."""
    return _body({"status": "sleeping", "level": level})


def awake_body(tags: Sequence[str] | None, *, fully: bool) -> bytes:
    """What ``/wake_up`` answers; ``fully``: nothing is left asleep."""
    return _body({"status": "awake" if fully else "sleeping", "tags": None if tags is None else list(tags)})


def is_sleeping_body(is_sleeping: bool) -> bytes:
    """What ``/is_sleeping`` answers."""
    return _body({"is_sleeping": is_sleeping})


def status_body(status: str) -> bytes:
    """What ``/pause`` and ``/resume`` answer."""
    return _body({"status": status})


def is_paused_body(is_paused: bool) -> bytes:
    """What ``/is_paused`` answers."""
    return _body({"is_paused": is_paused})


def flushed_body(*, flushed: Sequence[str], skipped: int, failed: Sequence[tuple[str, str]]) -> bytes:
    """What ``/flush_cache`` answers: which workers' prefix caches are empty now.

    Clients of the Rust gateways look for the workers that were asked in ``total_http_workers`` unless they use gRPC.
    The gateways' own ZMQ workers cannot be asked, so there is no field for those.

    Args:
        flushed: URLs of workers whose engines have done it.
        skipped: workers whose engine protocol has no way to ask.
        failed: URL and reason of each worker that would not.
    """
    message = f"Flushed the caches of {len(flushed)} workers"
    if skipped:
        message += f" ({skipped} ZMQ workers skipped: no cache-flush RPC)"
    if failed:
        message += f"; failed: {', '.join(url for url, _ in failed)}"
    value = {
        "status": "partial_success" if failed else "success",
        "message": message,
        "workers_flushed": len(flushed),
        "total_http_workers": len(flushed) + len(failed),
        "total_grpc_workers": 0,
        "total_zmq_workers_skipped": skipped,
        "total_workers": len(flushed) + skipped + len(failed),
    }
    if failed:
        value |= _outcome(flushed, failed)
    return _body(value)


def profiled_body(action: str, successful: Sequence[str], failed: Sequence[tuple[str, str]]) -> bytes:
    """What ``/start_profile`` and ``/stop_profile`` answer.

    Args:
        action: ``start`` or ``stop``.
        successful: URLs of workers.
        failed: URL and reason of each worker that would not.
    """
    value = {
        "status": "partial_success" if failed else "success",
        "message": f"Profile {action}: {len(successful)} succeeded, {len(failed)} failed",
        "workers_profiled": len(successful),
        "total_workers": len(successful) + len(failed),
    }
    return _body(value | _outcome(successful, failed))


def _outcome(successful: Sequence[str], failed: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "successful": list(successful),
        "failed": [{"worker": url, "error": reason} for url, reason in failed],
    }


def cache_reset_body(success: bool) -> bytes:
    """What ``/reset_prefix_cache`` answers."""
    return _body({"success": success})


def lora_text(name: str, *, loaded: bool) -> str:
    """What loading or unloading an adapter answers, as plain text."""
    return f"Success: LoRA adapter '{name}' {'added' if loaded else 'removed'} successfully."


def _body(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


SLEEP_READERS: dict[str, Reader] = {"level": within(integer, 0, 2), "mode": one_of(PAUSE_MODES)}
PAUSE_READERS: dict[str, Reader] = {"mode": one_of(PAUSE_MODES), "clear_cache": boolean}
RESET_READERS: dict[str, Reader] = {"reset_running_requests": boolean, "reset_external": boolean}
PROFILE_READERS: dict[str, Reader] = {
    "url": filled_string,
    "profile_prefix": filled_string,
    "delay_iterations": within(integer, 0),
    "max_iterations": within(integer, 0),
}
LORA_READERS: dict[str, Reader] = {
    "lora_name": filled_string,
    "lora_path": filled_string,
    "lora_int_id": within(integer, 1),
    "load_inplace": boolean,
    "is_3d_lora_weight": boolean,
    "base_model_name": string,
}
