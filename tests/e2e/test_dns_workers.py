"""Workers behind HTTP that come and go with the addresses of a name."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from smg_trio.core.errors import ConfigError
from smg_trio.core.http_addresses import parse_http_url
from smg_trio.gateway.discovery.dns import EMPTY_ANSWERS, DnsWorkers
from smg_trio.gateway.discovery.found_workers import FoundWorkers
from smg_trio.settings.checks import check_settings
from smg_trio.settings.settings import Settings

from .harness import HI, MODEL, PATIENCE_S, open_gateway

PORT = 18_765


class Names:
    """A resolver that answers what it is told; None is a failure.

    Attributes:
        answers: the last one is given from then on.
        asked: how often.
    """

    def __init__(self, *answers: set[str] | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def look_up(self, host: str, port: int) -> set[str]:
        assert (host, port) == ("hosts.internal", PORT)
        self.asked += 1
        await trio.lowlevel.checkpoint()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise OSError("no server")
        return answer

    async def wait_asked(self, count: int) -> None:
        """Wait until so many further answers have been given and used."""
        until = self.asked + count + 1
        with trio.fail_after(PATIENCE_S):
            while self.asked < until:
                await trio.lowlevel.checkpoint()


async def test_workers_come_and_go_with_addresses(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, connect=False, worker_urls=()) as bench, trio.open_nursery() as nursery:
        registry = bench.gateway.registry
        names = Names({"127.0.0.5", "::5"})
        address = parse_http_url(f"http://hosts.internal:{PORT}")
        workers = FoundWorkers(registry, "dns", key="k", metrics=bench.gateway.metrics.discovery)
        found = DnsWorkers(workers, address, refresh_s=0, lookup=names.look_up)
        nursery.start_soon(found.run)

        def urls() -> set[str]:
            return {worker.spec.url for worker in registry.all_workers()}

        await names.wait_asked(1)
        assert urls() == {f"http://127.0.0.5:{PORT}", f"http://[::5]:{PORT}"}
        assert {worker.spec.api_key for worker in registry.all_workers()} == {"k"}
        shown = (await bench.http.get("/workers")).json()["workers"]
        assert {worker["labels"]["discovered_by"] for worker in shown} == {f"dns://hosts.internal:{PORT}"}
        assert {worker["source"] for worker in shown} == {"dns"}
        (removed, _) = registry.all_workers()
        registry.remove(removed.spec.worker_id)
        await names.wait_asked(1)
        assert len(urls()) == 2, "what something else has removed is added again"
        names.answers = [{"127.0.0.5", "127.0.0.6"}]
        await names.wait_asked(1)
        assert urls() == {f"http://127.0.0.5:{PORT}", f"http://127.0.0.6:{PORT}"}
        names.answers = [None, None, None, None, {"127.0.0.6"}]
        await names.wait_asked(4)
        names.answers = [*[set[str]()] * (EMPTY_ANSWERS - 1), {"127.0.0.6"}]
        await names.wait_asked(EMPTY_ANSWERS)
        assert urls() == {f"http://127.0.0.6:{PORT}"}, "neither failures nor a gap is a scale-down"
        errors = bench.gateway.metrics.registry.get_sample_value(
            "smg_discovery_snapshot_errors_total", {"source": "dns"}
        )
        assert errors == 4
        names.answers = [set()]
        await names.wait_asked(EMPTY_ANSWERS + 1)
        assert urls() == set()
        nursery.cancel_scope.cancel()


async def test_requests_reach_what_a_name_stands_for(tmp_path: Path) -> None:
    for name in ("host", "front"):
        (tmp_path / name).mkdir()
    async with open_gateway(tmp_path / "host") as host:
        front_settings = {"worker_urls": (), "discover": (f"dns://localhost:{host.port}",), "model_path": None}
        async with open_gateway(tmp_path / "front", connect=False, **front_settings) as front:
            with trio.fail_after(PATIENCE_S):
                while (await front.http.get("/readiness")).status_code != 200:
                    await trio.lowlevel.checkpoint()
            answer = await front.http.post("/v1/chat/completions", json={"model": MODEL, "messages": HI})
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"] == "Hello world"


@pytest.mark.parametrize("url", ["hosts.internal:80", "dns://hosts.internal", "dns://:80", "dns://a b:80", "dns://h:x"])
def test_a_name_that_cannot_be_looked_up_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_settings(Settings(discover=(url,)))
    assert caught.value.option == "--discover"
