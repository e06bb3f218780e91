"""What a server says of its models and its load, read from the bodies of its probes. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from smg_trio.core.engines import EngineLoad

SMG_TRIO: Final = "smg-trio"
_RUNTIMES: Final = {"vllm": "vllm", "sglang": "sglang", "nvidia": "sglang"}
"""``owned_by`` of the models that a server lists → what it is (SGLang says ``nvidia`` of some builds, as the reference
has it)."""
LOAD_PATHS: Final = {SMG_TRIO: "/v1/loads", "vllm": "/metrics", "sglang": "/metrics"}
"""Where a server of a kind tells its load."""


class BadBody(Exception):
    """Not what the path promises; in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerModel:
    """One model that a server lists. ``max_model_len`` in tokens, None where it does not say."""

    name: str
    max_model_len: int | None = None
    root: str | None = None
    parent: str | None = None
    created: int = 0


@dataclass(frozen=True, slots=True)
class ServerModels:
    """All of them, and what kind of server lists them: ``smg-trio``, ``vllm``, ``sglang`` or ``generic``."""

    models: tuple[ServerModel, ...]
    runtime: str


def read_models(body: bytes) -> ServerModels:
    """The answer of ``GET /v1/models``. Raises BadBody."""
    try:
        cards = json.loads(body)["data"]
        found = tuple(_model(card) for card in cards)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadBody("/v1/models is not a list of models") from None
    first = cards[0] if cards else {}
    if first.get("owned_by") == "self_hosted" and "files" in first:
        return ServerModels(found, SMG_TRIO)
    return ServerModels(found, _RUNTIMES.get(str(first.get("owned_by")).lower(), "generic"))


def _model(card: dict[str, Any]) -> ServerModel:
    name = card["id"]
    if not isinstance(name, str) or not name:
        raise ValueError("a model without a name")
    window, created = card.get("max_model_len"), card.get("created")
    return ServerModel(
        name=name,
        max_model_len=window if isinstance(window, int) else None,
        root=_text(card.get("root")),
        parent=_text(card.get("parent")),
        created=created if isinstance(created, int) else 0,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """All engines of a server together: `total` sums their requests and has the mean of their KV-cache use."""

    total: EngineLoad
    engines: int


def read_loads(body: bytes) -> ServerLoad:
    """The answer of another smg-trio's ``GET /v1/loads``. Raises BadBody."""
    try:
        loads = [
            (int(one["num_running_reqs"]), int(one["num_waiting_reqs"]), float(one["token_usage"]))
            for one in json.loads(body)["loads"]
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadBody("/v1/loads is not a list of loads") from None
    return _summed([one[0] for one in loads], [one[1] for one in loads], [one[2] for one in loads])


_FAMILIES: Final = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
}
"""Names of vLLM's metrics (0.32; the second usage until 0.10) and SGLang's, one series per engine."""
_SAMPLE: Final = re.compile(rb"^(vllm|sglang):[a-z_]+(\{[^}]*\})? +(\S+)", re.MULTILINE)


def read_metrics(body: bytes) -> ServerLoad:
    """The Prometheus text of vLLM or SGLang. Raises BadBody if it has none of their gauges."""
    found: dict[str, list[float]] = {}
    for match in _SAMPLE.finditer(body):
        name = match.group(0).partition(b"{")[0].partition(b" ")[0].decode()
        try:
            found.setdefault(name, []).append(float(match.group(3)))
        except ValueError:
            continue
    values = {what: next((found[name] for name in names if name in found), []) for what, names in _FAMILIES.items()}
    if not values["running"]:
        raise BadBody("/metrics has no running requests of vLLM or SGLang")
    return _summed(values["running"], values["waiting"], values["usage"])


def _summed(running: list[Any], waiting: list[Any], usage: list[float]) -> ServerLoad:
    mean = sum(usage) / len(usage) if usage else 0.0
    return ServerLoad(
        EngineLoad(running=int(sum(running)), waiting=int(sum(waiting)), kv_usage=mean), max(1, len(running))
    )


def read_refusal(body: bytes) -> tuple[str, str]:
    """Code and words of an error body or a failed readiness probe; empty where it has none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(value, dict):
        return "", ""
    error = value.get("error")
    if isinstance(error, dict):
        return str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
    return str(value.get("code") or ""), str(value.get("reason") or value.get("message") or "")
