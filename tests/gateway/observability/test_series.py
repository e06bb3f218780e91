from __future__ import annotations

from time import perf_counter

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from smg_trio.core.events import Usage
from smg_trio.gateway.observability.generation_metrics import EndpointSeries, GenerationMetrics, RouterFamilies
from smg_trio.gateway.observability.series import CounterFamily, HistogramFamily
from tests.gateway.observability.generations import ObservedGeneration


def samples(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@settings(max_examples=50)
@given(st.lists(st.floats(0, 20) | st.sampled_from([0.1, 1.0, 10.0])))
def test_a_histogram_shows_what_the_library_s_own_would(values: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    series = HistogramFamily(ours, "h", "Meaning.", ("x",), (0.1, 1.0, 10.0)).at("a")
    other = Histogram("h", "Meaning.", ("x",), buckets=(0.1, 1.0, 10.0), registry=theirs).labels("a")
    for value in values:
        series.observe(value)
        other.observe(value)
    assert samples(ours) == samples(theirs)


def test_series_are_made_once_and_dropped_by_a_label() -> None:
    registry = CollectorRegistry()
    family = CounterFamily(registry, "c", "Meaning.", ("model", "kind"))
    family.at("m", "a").inc()
    family.at("m", "a").inc(2)
    family.at("n", "a").inc()
    assert samples(registry)["c_total", (("kind", "a"), ("model", "m"))] == 3
    family.drop("model", "m")
    assert list(samples(registry)) == [("c_total", (("kind", "a"), ("model", "n")))]


def test_the_gaps_of_an_answer_add_up_to_the_time_between_first_and_last_output() -> None:
    registry = CollectorRegistry()
    metrics = GenerationMetrics(EndpointSeries(RouterFamilies(registry), "m", "chat"), 0.0)
    metrics.catch_up(Usage(7, 0))
    labels = {
        "backend_type": "regular",
        "connection_mode": "zmq",
        "endpoint": "chat",
        "model": "m",
        "router_type": "zmq",
    }
    where = tuple(sorted(labels.items()))
    assert samples(registry)["smg_router_itl_seconds_count", where] == 0
    began = perf_counter()
    metrics.first_output(1.0)
    for tokens in range(1, 1_001):
        metrics.note_output()
        if tokens % 100 == 0:
            metrics.catch_up(Usage(7, tokens, tokens))
    elapsed = perf_counter() - began
    metrics.generation_ended(ObservedGeneration(), Usage(7, 1_000, 1_000), (), 2.0)
    found = samples(registry)
    assert found["smg_router_itl_seconds_count", where] == 1_000
    assert 0 < found["smg_router_itl_seconds_sum", where] <= elapsed
    assert found["smg_router_cached_tokens_total", where] == 1_000
    assert found["smg_router_tokens_total", tuple(sorted((labels | {"token_type": "input"}).items()))] == 7
    assert found["smg_router_tokens_total", tuple(sorted((labels | {"token_type": "output"}).items()))] == 1_000
