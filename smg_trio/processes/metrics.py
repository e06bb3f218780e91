"""One metrics page for several processes: what they count is added up. Pure.

Prometheus asks the keeper, which asks every front for its page. Counters, histograms and gauges of what is going on are
summed; what is known of workers and engines is the keeper's word, which sees all processes' counts; what a process says
of itself (``process_*``, ``python_*``) gets a label with its number. Totals of fronts that have ended stay in the sums:
no counter goes down.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from prometheus_client.utils import floatToGoString

_OWN: Final = ("process_", "python_")
"""Of each process by itself."""
_KEEPERS: Final = (
    "smg_build_info",
    "smg_engine_",
    "smg_worker_pool_size",
    "smg_worker_health",
    "smg_worker_requests_active",
    "smg_workers_overloaded",
)
"""Of workers and engines, which are the same for every process; the keeper sees the counts of all."""
_FRONTS: Final = ("smg_admission_", "smg_http_rate_limit")
"""Of admission: the keeper's own queue only paces what fronts begin."""
_LARGEST: Final = (
    "smg_worker_cb_state",
    "smg_worker_cb_consecutive",
    "smg_admission_limit",
    "smg_admission_queue_limit",
    "smg_http_request_body_limit_bytes",
    "vllm:num_requests_",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
    "vllm:engine_sleep_state",
    "vllm:lora_requests_info",
)
"""What is no count: the largest is shown, which of a breaker's states is the worst. Of vLLM's gauges, too: every
process sees the engines whole, and beside them its own queue."""
_ACCUMULATING: Final = frozenset({"counter", "histogram", "summary"})


@dataclass(slots=True)
class Family:
    """One metric: its lines of explanation, and its samples by name and labels as they are written."""

    head: list[str] = field(default_factory=list)
    kind: str = "untyped"
    samples: dict[str, float] = field(default_factory=dict)


def parse(text: str) -> dict[str, Family]:
    """The families of a page that `prometheus_client` made, in order."""
    families: dict[str, Family] = {}
    family = Family()
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, name, rest = (*line.split(" ", 3), "")[:4]
            if word == "HELP":
                family = families.setdefault(name, Family())
            else:
                family = families.setdefault(name, family if name in families else Family())
                family.kind = rest
            family.head.append(line)
        elif line:
            key, _, value = line.rpartition(" ")
            family.samples[key] = float(value)
    return families


def rendered(families: dict[str, Family]) -> str:
    """The page of these families."""
    lines: list[str] = []
    for family in families.values():
        lines += family.head
        lines += [f"{key} {_number(value)}" for key, value in family.samples.items()]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


class MergedMetrics:
    """Puts pages together, and remembers what fronts that have ended had counted."""

    def __init__(self) -> None:
        self._ended: dict[str, Family] = {}

    def front_ended(self, name: str, page: str) -> None:
        """A front has ended; `page`: its metrics when it was last asked, empty if it never was."""
        for family_name, family in parse(page).items():
            if family.kind in _ACCUMULATING and not family_name.startswith((*_KEEPERS, *_OWN)):
                kept = self._ended.setdefault(family_name, Family(list(family.head), family.kind))
                _add(kept, family)

    def merged(self, keeper: str, fronts: dict[str, str]) -> str:
        """One page of the keeper's and those of the fronts by their numbers."""
        pages = {"0": parse(keeper)} | {name: parse(page) for name, page in fronts.items()}
        found: dict[str, Family] = {}
        for process, page in pages.items():
            for name, family in page.items():
                self._take(found, process, name, family)
        for name, family in self._ended.items():
            _add(found.setdefault(name, Family(list(family.head), family.kind)), family)
        return rendered(found)

    def _take(self, found: dict[str, Family], process: str, name: str, family: Family) -> None:
        if process != "0" and name.startswith(_KEEPERS):
            return
        into = found.setdefault(name, Family(list(family.head), family.kind))
        if name.startswith(_OWN):
            into.samples |= {_labelled(key, process): value for key, value in family.samples.items()}
        elif process == "0" and name.startswith(_FRONTS):
            return
        elif name.startswith(_LARGEST):
            for key, value in family.samples.items():
                into.samples[key] = max(value, into.samples.get(key, value))
        elif name.endswith("_created"):
            for key, value in family.samples.items():
                into.samples[key] = min(value, into.samples.get(key, value))
        else:
            _add(into, family)


def _add(into: Family, family: Family) -> None:
    for key, value in family.samples.items():
        into.samples[key] = into.samples.get(key, 0.0) + value


def _labelled(key: str, process: str) -> str:
    if key.endswith("}"):
        return f'{key[:-1]},process="{process}"}}'
    return f'{key}{{process="{process}"}}'


def process_metrics(*, restarts: int, connections: dict[str, int], answers: dict[str, int]) -> str:
    """What the keeper knows of the fronts, as lines of a page; counts by the number of the process."""
    per_process = (
        ("smg_process_connections", "HTTP connections that the process has open.", connections),
        ("smg_process_answers", "Answers of the process that hold an admission slot.", answers),
    )
    lines = [
        "# HELP smg_processes Processes that accept connections.",
        "# TYPE smg_processes gauge",
        f"smg_processes {_number(float(len(connections)))}",
        "# HELP smg_process_restarts_total Processes that ended and were started again.",
        "# TYPE smg_process_restarts_total counter",
        f"smg_process_restarts_total {_number(float(restarts))}",
    ]
    for name, text, counts in per_process:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        lines += [f'{name}{{process="{process}"}} {_number(float(count))}' for process, count in counts.items()]
    return "\n".join(lines) + "\n"
