from __future__ import annotations

import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from smg_trio.gateway.observability.http_metrics import path_label
from smg_trio.gateway.observability.metrics import Metrics
from smg_trio.gateway.request_body.incoming import BodyMemory
from smg_trio.pipeline.encoding_cache import EncodingCache
from smg_trio.routing.admission import AdmissionQueue
from smg_trio.routing.registry import Registry
from smg_trio.testing.memory import MemoryNetwork


def lags(metrics: Metrics) -> dict[str, float]:
    families = {family.name: family for family in text_string_to_metric_families(metrics.exposition().decode())}
    found = families["smg_event_loop_lag_seconds"].samples
    return {sample.labels["le"]: sample.value for sample in found if sample.name.endswith("_bucket")}


async def test_the_event_loop_is_looked_at_once_a_second(autojump_clock: trio.testing.MockClock) -> None:
    metrics = Metrics(Registry(MemoryNetwork()), AdmissionQueue(1), EncodingCache(1), BodyMemory(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(metrics.watch_loop)
        await trio.sleep(10.5)
        assert lags(metrics) == dict.fromkeys(lags(metrics), 10.0)
        # Something keeps the loop busy over the next look: for 0.3 s beyond it.
        autojump_clock.jump(0.8)
        await trio.sleep(0.1)
        assert lags(metrics)["0.25"] == 10
        assert lags(metrics)["0.5"] == 11
        nursery.cancel_scope.cancel()


def test_paths_are_labelled_as_the_reference_labels_them() -> None:
    assert path_label("/v1/models/<path:model>") == "/v1/models/{model}"
    assert path_label("/workers/<worker_id>/x/<y>") == "/workers/{worker_id}/x/{y}"
    assert path_label("/generate") == "/generate"
