"""Writes ``docs/ops/dashboard.json``, a Grafana dashboard of one or more gateways.

A panel is a title, a unit, and queries with their legends; where it stands follows from the order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "docs" / "ops" / "dashboard.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
GATEWAY = 'job="$job", instance=~"$instance"'
NO_PROBES = f'{GATEWAY}, path!~"/health|/liveness|/readiness|/ping"'
MODEL = f'{GATEWAY}, model=~"$model"'


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        queries: (legend, PromQL) pairs.
        unit: Grafana's name of it.
        wide: columns of 24.
        single: shown as one number instead of over time.
        meaning: what the panel's corner says.
        top: of the axis, where there is a natural one.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    wide: int = 8
    single: bool = False
    meaning: str = ""
    top: float | None = None


def rate(metric: str, by: str, labels: str = MODEL) -> str:
    """Per second, summed up by labels."""
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def quantile(share: float, metric: str, labels: str = MODEL) -> str:
    """A quantile of a histogram, over everything chosen."""
    return f"histogram_quantile({share}, {rate(metric + '_bucket', 'le', labels)})"


def quantiles(metric: str, labels: str = MODEL) -> tuple[tuple[str, str], ...]:
    """Median, and what one in twenty and one in a hundred exceed."""
    return tuple((f"p{round(share * 100)}", quantile(share, metric, labels)) for share in (0.5, 0.95, 0.99))


def gauge(metric: str, labels: str = GATEWAY) -> str:
    """A gauge as it is."""
    return f"{metric}{{{labels}}}"


RANK = "{{worker}} rank {{dp_rank}}"
PROCESS = "{{instance}} {{process}}"
ROWS: dict[str, tuple[Panel, ...]] = {
    "At a glance": (
        Panel(
            title="Workers ready", wide=4, single=True,
            queries=(("", f"sum({gauge('smg_worker_health')})"),),
        ),
        Panel(
            title="Requests", unit="reqps", wide=4, single=True,
            queries=(("", f"sum(rate(smg_router_requests_total{{{MODEL}}}[$__rate_interval]))"),),
        ),
        Panel(
            title="Responses that are errors (5xx)", unit="percentunit", wide=4, single=True,
            queries=(
                (
                    "",
                    f'(sum(rate(smg_http_responses_total{{{NO_PROBES}, status_code=~"5.."}}[$__rate_interval])) or '
                    f"vector(0)) / sum(rate(smg_http_responses_total{{{NO_PROBES}}}[$__rate_interval]))",
                ),
            ),
        ),
        Panel(
            title="Time to first token, p95", unit="s", wide=4, single=True,
            queries=(("", quantile(0.95, "smg_router_ttft_seconds")),),
        ),
        Panel(
            title="Tokens generated", unit="short", wide=4, single=True, meaning="Per second.",
            queries=(
                ("", f'sum(rate(smg_router_tokens_total{{{MODEL}, token_type="output"}}[$__rate_interval]))'),
            ),
        ),
        Panel(
            title="Version", wide=4, single=True,
            queries=(("{{version}}", f"max by (version) ({gauge('smg_build_info')})"),),
        ),
    ),
    "Requests": (
        Panel(
            title="Inference requests", unit="reqps",
            queries=(("{{endpoint}}", rate("smg_router_requests_total", "endpoint")),),
        ),
        Panel(
            title="HTTP responses", unit="reqps",
            queries=(("{{status_code}}", rate("smg_http_responses_total", "status_code", GATEWAY)),),
        ),
        Panel(
            title="Failed answers", unit="reqps", meaning="Streams that failed after their first token included.",
            queries=(("{{error_type}}", rate("smg_router_request_errors_total", "error_type")),),
        ),
        Panel(
            title="Answers in progress",
            queries=(
                ("in progress", f"sum({gauge('smg_admission_inflight')})"),
                ("waiting for a place", f"sum({gauge('smg_admission_queue_depth')})"),
                ("places", f"sum({gauge('smg_admission_limit')})"),
            ),
        ),
        Panel(
            title="Refused at the door", unit="reqps", meaning="The queue was full, or the wait in it too long.",
            queries=(
                ("{{reason}}", rate("smg_admission_queue_rejected_total", "reason", GATEWAY)),
                ("overload", rate("smg_worker_overload_shed_total", "stage", GATEWAY)),
            ),
        ),
        Panel(
            title="Age of what is in progress",
            queries=(
                ("from {{gt}} s", f"sum by (gt) ({gauge('smg_http_inflight_request_age_count')})"),
            ),
        ),
    ),
    "Latency": (
        Panel(title="Time to first token", unit="s", queries=quantiles("smg_router_ttft_seconds")),
        Panel(
            title="Time between tokens", unit="s", queries=quantiles("smg_router_itl_seconds"),
            meaning="Between two outputs of an answer as the client gets them.",
        ),
        Panel(title="Whole answers", unit="s", queries=quantiles("smg_router_request_duration_seconds")),
        Panel(
            title="Mean time per output token", unit="s", queries=quantiles("smg_router_tpot_seconds"),
            meaning="One value per answer.",
        ),
        Panel(
            title="Where the time goes", unit="s", meaning="Mean of each stage.",
            queries=(
                (
                    "{{stage}}",
                    f"{rate('smg_router_stage_duration_seconds_sum', 'stage', GATEWAY)} / "
                    f"{rate('smg_router_stage_duration_seconds_count', 'stage', GATEWAY)}",
                ),
            ),
        ),
        Panel(
            title="HTTP requests by route, p95", unit="s",
            queries=(
                (
                    "{{path}}",
                    f"histogram_quantile(0.95, "
                    f"{rate('smg_http_request_duration_seconds_bucket', 'path, le', GATEWAY)})",
                ),
            ),
        ),
    ),
    "Tokens": (
        Panel(
            title="Tokens per second",
            queries=(
                ("{{token_type}}", rate("smg_router_tokens_total", "token_type")),
                ("input, from prefix caches", f"sum({rate('smg_router_cached_tokens_total', 'model')})"),
            ),
        ),
        Panel(
            title="Prompts from engines' prefix caches", unit="percentunit", top=1.0,
            queries=(
                (
                    "{{model}}",
                    f"{rate('smg_router_cached_tokens_total', 'model')} / "
                    + rate("smg_router_tokens_total", "model", f'{MODEL}, token_type="input"'),
                ),
            ),
        ),
        Panel(
            title="Pieces of prompts from the tokenizer's cache", unit="percentunit", top=1.0,
            queries=(
                (
                    "hits",
                    f'sum(rate(smg_tokenizer_cache_lookups_total{{{GATEWAY}, result="hit"}}[$__rate_interval])) / '
                    f"sum(rate(smg_tokenizer_cache_lookups_total{{{GATEWAY}}}[$__rate_interval]))",
                ),
            ),
        ),
    ),
    "Engines": (
        Panel(title="Running, by their word", queries=((RANK, gauge("smg_engine_running_requests", MODEL)),)),
        Panel(title="Waiting, by their word", queries=((RANK, gauge("smg_engine_waiting_requests", MODEL)),)),
        Panel(
            title="KV cache in use", unit="percentunit", top=1.0,
            queries=((RANK, gauge("smg_engine_token_usage", MODEL)),),
        ),
        Panel(title="In flight, by our count", queries=((RANK, gauge("smg_engine_inflight_requests", MODEL)),)),
        Panel(title="Ready", top=1.0, queries=((RANK, gauge("smg_engine_ready", MODEL)),)),
        Panel(
            title="Engines lost", meaning="Per hour.",
            queries=((RANK, f"increase(smg_engine_losses_total{{{MODEL}}}[1h])"),),
        ),
    ),
    "Resilience": (
        Panel(
            title="Circuit breakers", meaning="0 closed, 1 open, 2 half open.", top=2.0,
            queries=(("{{worker}}", gauge("smg_worker_cb_state")),),
        ),
        Panel(
            title="Further attempts", unit="reqps",
            queries=(
                ("{{endpoint}}", rate("smg_worker_retries_total", "endpoint", GATEWAY)),
                ("{{endpoint}} given up", rate("smg_worker_retries_exhausted_total", "endpoint", GATEWAY)),
            ),
        ),
        Panel(
            title="Requests that engines failed", unit="reqps",
            queries=(("{{worker}} {{error_type}}", rate("smg_worker_errors_total", "worker, error_type", GATEWAY)),),
        ),
    ),
    "Images and videos": (
        Panel(
            title="Items read", unit="reqps",
            queries=(("{{modality}} {{origin}}", rate("smg_media_items_total", "modality, origin", GATEWAY)),),
        ),
        Panel(
            title="Items refused", unit="reqps",
            queries=(("{{reason}}", rate("smg_media_refused_total", "reason", GATEWAY)),),
        ),
        Panel(
            title="Time to decode and resize", unit="s", meaning="The wait for the decoding process included.",
            queries=quantiles("smg_media_stage_seconds", f'{GATEWAY}, stage="process"'),
        ),
        Panel(
            title="Memory that they hold", unit="bytes",
            queries=(("{{instance}}", gauge("smg_media_in_flight_bytes")),),
        ),
    ),
    "Process": (
        Panel(
            title="Event loop lag", unit="s", meaning="How late the loop does what is due.",
            queries=quantiles("smg_event_loop_lag_seconds", GATEWAY),
        ),
        Panel(title="Memory", unit="bytes", queries=((PROCESS, gauge("process_resident_memory_bytes")),)),
        Panel(
            title="Processors in use",
            queries=((PROCESS, f"rate(process_cpu_seconds_total{{{GATEWAY}}}[$__rate_interval])"),),
        ),
        Panel(
            title="HTTP connections",
            queries=(
                ("open", f"sum({gauge('smg_http_connections_active')})"),
                ("idle", f"sum({gauge('smg_http_connections_idle')})"),
            ),
        ),
        Panel(
            title="Outputs waiting to become text",
            meaning="Above a few per answer the gateway lags behind its engines.",
            queries=(("{{instance}}", gauge("smg_detokenizer_pending_outputs")),),
        ),
        Panel(
            title="Open files",
            queries=(
                (PROCESS, gauge("process_open_fds")),
                (f"{PROCESS} limit", gauge("process_max_fds")),
            ),
        ),
        Panel(
            title="Connections by process", meaning="With --processes: HTTP connections that each has open.",
            queries=((PROCESS, gauge("smg_process_connections")),),
        ),
        Panel(
            title="Answers by process", meaning="With --processes.",
            queries=((PROCESS, gauge("smg_process_answers")),),
        ),
        Panel(
            title="Processes started again", meaning="With --processes, per hour.",
            queries=(("{{instance}}", f"increase(smg_process_restarts_total{{{GATEWAY}}}[1h])"),),
        ),
    ),
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The whole dashboard, as Grafana imports it."""
    return {
        "uid": "smg-trio",
        "title": "smg-trio",
        "description": "Gateways in front of LLM engines: requests, latency, engines, the process itself.",
        "tags": ["smg-trio", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "panels": _panels(),
    }


def _variables() -> list[dict[str, Any]]:
    def chosen(name: str, query: str, *, several: bool) -> dict[str, Any]:
        return {
            "name": name, "type": "query", "datasource": SOURCE, "refresh": 2, "sort": 1, "definition": query,
            "query": {"query": query, "refId": name}, "multi": several, "includeAll": several,
            "current": {"text": "All", "value": "$__all"} if several else {},
        }  # fmt: skip

    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "data source", "current": {}},
        chosen("job", "label_values(smg_build_info, job)", several=False),
        chosen("instance", 'label_values(smg_build_info{job="$job"}, instance)', several=True),
        chosen("model", 'label_values(smg_worker_pool_size{job="$job"}, model)', several=True),
    ]


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
            }
        )
        x, y = 0, y + 1
        for panel in row:
            height = 4 if panel.single else 8
            if x + panel.wide > WIDTH:
                x, y = 0, y + height
            position = {"x": x, "y": y, "w": panel.wide, "h": height}
            panels.append(_panel(panel, len(panels) + 1, position))
            x += panel.wide
        y += height
    return panels


def _panel(panel: Panel, number: int, position: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.top is not None:
        defaults["max"] = panel.top
    drawn: dict[str, Any] = {
        "id": number,
        "type": "stat" if panel.single else "timeseries",
        "title": panel.title,
        "description": panel.meaning,
        "datasource": SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query,
                "legendFormat": legend or "__auto", "range": not panel.single, "instant": panel.single,
            }
            for index, (legend, query) in enumerate(panel.queries)
        ],
    }  # fmt: skip
    if panel.single:
        text = "name" if panel.title == "Version" else "value"
        drawn["options"] = {
            "reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": text, "graphMode": "none", "colorMode": "none",
        }  # fmt: skip
    else:
        drawn["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return drawn


def main() -> None:
    """Write the file."""
    TARGET.write_text(json.dumps(dashboard(), indent=1) + "\n")


if __name__ == "__main__":
    main()
