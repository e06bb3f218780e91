from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from smg_trio.processes.metrics import MergedMetrics, parse, rendered


class Page:
    """What one process counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("smg_requests", "Requests.", ["path"], registry=self.registry)
        self.latency = Histogram("smg_latency", "Latency.", buckets=(0.1, 1.0), registry=self.registry)
        self.open = Gauge("smg_connections", "Open.", registry=self.registry)
        self.breaker = Gauge("smg_worker_cb_state", "Breaker.", ["worker"], registry=self.registry)
        self.ready = Gauge("smg_engine_ready", "Ready.", registry=self.registry)
        self.memory = Gauge("process_resident_memory_bytes", "Memory.", registry=self.registry)

    def text(self) -> str:
        return generate_latest(self.registry).decode()


def values(page: str) -> dict[str, float]:
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_a_page_survives_being_taken_apart() -> None:
    page = Page()
    page.requests.labels('a "quoted" # path\\').inc(3)
    page.latency.observe(0.5)
    page.breaker.labels("w").set(float("inf"))
    assert rendered(parse(page.text())) == page.text()


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=3))
def test_counts_are_added_up_and_what_is_no_count_is_not(counts: list[int]) -> None:
    pages = [Page() for _ in counts]
    for index, (page, count) in enumerate(zip(pages, counts, strict=True)):
        page.requests.labels("/x").inc(count)
        page.latency.observe(count)
        page.open.set(count)
        page.breaker.labels("w").set(index % 2)
        page.ready.set(index == 0)
        page.memory.set(100 + index)
    merged = values(MergedMetrics().merged(pages[0].text(), {"1": pages[1].text(), "2": pages[2].text()}))
    assert merged["smg_requests_total[('path', '/x')]"] == sum(counts)
    assert merged["smg_latency_count[]"] == 3
    assert merged["smg_latency_sum[]"] == sum(counts)
    assert merged["smg_connections[]"] == sum(counts)
    assert merged["smg_worker_cb_state[('worker', 'w')]"] == 1
    assert merged["smg_engine_ready[]"] == 1
    assert [merged[f"process_resident_memory_bytes[('process', '{index}')]"] for index in range(3)] == [100, 101, 102]


def test_no_counter_goes_down_when_a_front_ends() -> None:
    metrics, keeper, front = MergedMetrics(), Page(), Page()
    front.requests.labels("/x").inc(7)
    front.open.set(3)
    last = front.text()
    metrics.front_ended("1", last)
    successor = Page()
    successor.requests.labels("/x").inc(2)
    for fronts in ({}, {"1": successor.text()}):
        merged = values(metrics.merged(keeper.text(), fronts))
        assert merged["smg_requests_total[('path', '/x')]"] == (9 if fronts else 7)
        assert merged["smg_connections[]"] == 0
