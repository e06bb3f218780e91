"""Pods of Kubernetes as workers, against a server that speaks its API: lists, watches, bookmarks, 410, cuts."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import trio
import trustme

from smg_trio.core.errors import ConfigError
from smg_trio.core.http_addresses import HttpAddress
from smg_trio.doctor.discovery import check_discovery, check_pods
from smg_trio.doctor.findings import Status
from smg_trio.gateway.discovery.found_workers import FoundWorkers
from smg_trio.gateway.discovery.kubernetes import ClusterAccess, KubernetesWorkers, cluster_access
from smg_trio.gateway.discovery.pods import NAME_LABEL, UID_LABEL, read_pod
from smg_trio.settings.checks import check_settings
from smg_trio.settings.settings import Settings

from .harness import PATIENCE_S, Bench, open_gateway

PORT = 18_766
GONE = {"kind": "Status", "status": "Failure", "message": "too old resource version", "code": 410}


def pod(name: str, address: str = "127.0.0.7", *, uid: str = "", ready: bool = True, **more: Any) -> dict[str, Any]:
    """A pod as the API shows it."""
    conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True" if ready else "False"}]
    metadata = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": "7", **more.pop("metadata", {})}
    status = {"phase": "Running", "podIP": address, "conditions": conditions, **more.pop("status", {})}
    return {"kind": "Pod", "metadata": metadata, "status": status}


@dataclass
class ApiServer:
    """Answers lists with `pods`, and watches with what it is told to say.

    Attributes:
        asked: (query, token) of each request.
        lists, watches: how many there have been.
        status, watch_status: of all answers, and of those to watches, if it is not 200.
    """

    pods: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[dict[str, list[str]], str]] = field(default_factory=list)
    lists: int = 0
    watches: int = 0
    status: int = 200
    watch_status: int = 200
    port: int = 0
    _watching: list[trio.abc.Stream] = field(default_factory=list)

    async def serve(self, context: ssl.SSLContext | None = None, *, task_status: trio.TaskStatus[None]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        if context is None:
            await trio.serve_listeners(self._connected, listeners, task_status=task_status)
        else:
            secured = [trio.SSLListener(listener, context, https_compatible=True) for listener in listeners]
            await trio.serve_listeners(self._connected, secured, task_status=task_status)

    async def _connected(self, stream: trio.abc.Stream) -> None:
        data = b""
        try:
            async with stream:
                async for piece in stream:
                    data += piece
                    while b"\r\n\r\n" in data:
                        head, _, data = data.partition(b"\r\n\r\n")
                        await self._answer(stream, head.decode())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def _answer(self, stream: trio.abc.Stream, head: str) -> None:
        target = urlsplit(head.split(" ", 2)[1])
        assert unquote(target.path) == "/api/v1/namespaces/serving/pods"
        token = re.search(r"(?im)^authorization: Bearer (\S+)", head)
        query = parse_qs(target.query)
        self.asked.append((query, token[1] if token else ""))
        status = max(self.status, self.watch_status if "watch" in query else 200)
        if status != 200:
            body = json.dumps({"kind": "Status", "code": status}).encode()
            await stream.send_all(b"HTTP/1.1 %d No\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        elif "watch" in query:
            await stream.send_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            self._watching.append(stream)
            self.watches += 1
            await trio.sleep_forever()
        else:
            self.lists += 1
            found = {"kind": "PodList", "metadata": {"resourceVersion": "100"}, "items": self.pods}
            body = json.dumps(found).encode()
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    async def say(self, kind: str, value: dict[str, Any], *, cut: int | None = None) -> None:
        """An event of the watch that is open; `cut`: the connection ends after so many of its bytes."""
        with trio.fail_after(PATIENCE_S):
            while not self._watching:
                await trio.lowlevel.checkpoint()
        line = json.dumps({"type": kind, "object": value}).encode() + b"\n"
        stream, half = self._watching[-1], len(line) // 2
        if cut is not None:
            self._watching.pop()
            await stream.send_all(b"%x\r\n%b" % (len(line), line[:cut]))
            await stream.aclose()
            return
        for part in (line[:half], line[half:]):  # events do not keep to chunks
            await stream.send_all(b"%x\r\n%b\r\n" % (len(part), part))
        if kind == "ERROR":
            self._watching.pop()


@dataclass
class Site:
    bench: Bench
    api: ApiServer
    folder: Path

    def urls(self) -> set[str]:
        return {worker.spec.url for worker in self.bench.gateway.registry.all_workers()}

    def metric(self, name: str, **labels: str) -> float:
        """The value of a metric of discovery; 0 if it is not there."""
        registry = self.bench.gateway.metrics.registry
        return registry.get_sample_value(f"smg_discovery_{name}", {"source": "kubernetes"} | labels) or 0.0

    async def wait_urls(self, *urls: str) -> None:
        with trio.fail_after(PATIENCE_S):
            while self.urls() != set(urls):
                await trio.lowlevel.checkpoint()

    async def wait_settled(self, times: int) -> None:
        """Wait until workers have been compared with pods so often."""
        until = self.metric("sync_duration_seconds_count") + times
        with trio.fail_after(PATIENCE_S):
            while self.metric("sync_duration_seconds_count") < until:
                await trio.lowlevel.checkpoint()

    async def wait(self, what: str, count: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while getattr(self.api, what) < count:
                await trio.lowlevel.checkpoint()


@asynccontextmanager
async def following(tmp_path: Path, *pods: dict[str, Any], watch_status: int = 200) -> AsyncIterator[Site]:
    """A gateway that follows these pods."""
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("first\n")
    api = ApiServer(pods=list(pods), watch_status=watch_status)
    async with open_gateway(tmp_path, connect=False, worker_urls=()) as bench, trio.open_nursery() as nursery:
        await nursery.start(api.serve)
        access = ClusterAccess(address=HttpAddress("http", "127.0.0.1", api.port), namespace="serving", folder=folder)
        found = FoundWorkers(bench.gateway.registry, "kubernetes", key="k", metrics=bench.gateway.metrics.discovery)
        pods_of = KubernetesWorkers(
            found, access, selector=("app=llm", "tier=gpu"), port=PORT, coalesce_s=0, backoff_s=0.01, resync_s=0.05
        )
        nursery.start_soon(pods_of.run)
        yield Site(bench, api, folder)
        nursery.cancel_scope.cancel()


def url(address: str, port: int = PORT) -> str:
    return f"http://{address}:{port}"


async def test_workers_follow_pods(tmp_path: Path) -> None:
    two = {"annotations": {"smg.ai/worker-ports": "8000, 8001"}}
    pods = [pod("a"), pod("b", "127.0.0.8", ready=False), pod("c", "127.0.0.9", metadata=two)]
    async with following(tmp_path, *pods) as site:
        await site.wait_urls(url("127.0.0.7"), url("127.0.0.9", 8000), url("127.0.0.9", 8001))
        (query, token), *_ = site.api.asked
        assert (query["labelSelector"], token) == (["app=llm,tier=gpu"], "first")
        shown = (await site.bench.http.get("/workers")).json()["workers"]
        assert {worker["labels"][NAME_LABEL] for worker in shown} == {"a", "c"}
        assert {worker["labels"][UID_LABEL] for worker in shown} == {"uid-a", "uid-c"}
        assert {worker["source"] for worker in shown} == {"kubernetes"}
        assert site.metric("workers_discovered") == 3
        await site.api.say("MODIFIED", pod("b", "127.0.0.8"))
        await site.api.say("ADDED", pod("d", "fd00::5"))
        await site.api.say("MODIFIED", pod("a", ready=False))  # its health decides
        await site.api.say("MODIFIED", pod("c", "127.0.0.9", metadata=two | {"deletionTimestamp": "2026-12-01"}))
        await site.wait_urls(url("127.0.0.7"), url("127.0.0.8"), url("[fd00::5]"))
        await site.api.say("DELETED", pod("a"))
        await site.api.say("DELETED", pod("d", "fd00::5"))
        await site.wait_urls(url("127.0.0.8"))
        assert site.metric("workers_discovered") == 1
        assert site.metric("registrations_total", result="success") == 5
        assert site.metric("deregistrations_total", reason="reconciled") == 4


async def test_workers_are_where_pods_are_now(tmp_path: Path) -> None:
    async with following(tmp_path, pod("a"), pod("b", "127.0.0.8")) as site:
        await site.wait_urls(url("127.0.0.7"), url("127.0.0.8"))
        evicted = pod("a", status={"phase": "Failed", "podIP": "127.0.0.7"}, ready=False)
        await site.api.say("MODIFIED", evicted)
        await site.wait_urls(url("127.0.0.8"))
        await site.api.say("ADDED", pod("c", "127.0.0.7"))
        await site.wait_urls(url("127.0.0.7"), url("127.0.0.8"))
        await site.api.say("MODIFIED", pod("b", "127.0.0.9"))
        ports = {"annotations": {"smg.ai/worker-ports": "8000"}}
        await site.api.say("MODIFIED", pod("c", "127.0.0.7", metadata=ports))
        await site.wait_urls(url("127.0.0.9"), url("127.0.0.7", 8000))


async def test_a_worker_that_was_removed_comes_back_while_its_pod_is_ready(tmp_path: Path) -> None:
    async with following(tmp_path, pod("a")) as site:
        await site.wait_urls(url("127.0.0.7"))
        (worker,) = site.bench.gateway.registry.all_workers()
        assert (await site.bench.http.delete(f"/workers/{worker.spec.worker_id}")).status_code == 202
        with trio.fail_after(PATIENCE_S):
            while not site.urls() or worker in site.bench.gateway.registry.all_workers():
                await trio.lowlevel.checkpoint()
        await site.wait_urls(url("127.0.0.7"))


async def test_what_was_named_by_hand_is_not_touched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with following(tmp_path) as site:
        added = await site.bench.http.post("/workers", json={"url": url("127.0.0.7")})
        await site.wait_urls(url("127.0.0.7"))
        await site.api.say("ADDED", pod("a"))
        with trio.fail_after(PATIENCE_S):
            while site.metric("registrations_total", result="failed") != 1:
                await trio.lowlevel.checkpoint()
        await site.wait_settled(3)
        assert caplog.text.count("is not added") == 1
        await site.api.say("DELETED", pod("a"))
        await site.wait_settled(3)
        shown = (await site.bench.http.get(f"/workers/{added.json()['worker_id']}")).json()
        assert shown["source"] == "static"


@pytest.mark.parametrize("status", [410, 403])
async def test_an_api_that_refuses_every_watch_is_asked_less_and_less(
    tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "smg_trio.gateway")
    async with following(tmp_path, pod("a"), watch_status=status) as site:
        began = trio.current_time()
        await site.wait("lists", 6)
        assert trio.current_time() - began >= 0.01 * (1 + 2 + 4 + 8 + 16) / 2, "the pauses before these lists"
        assert caplog.text.count("pods cannot be followed") == (status == 403)
        assert site.urls() == {url("127.0.0.7")}
        site.api.watch_status = 200
        await site.wait("watches", 1)
        await site.api.say("ADDED", pod("b", "127.0.0.8"))
        await site.wait_urls(url("127.0.0.7"), url("127.0.0.8"))
        assert caplog.text.count("can be followed again") == (status == 403)
        assert (site.metric("snapshot_errors_total") > 0) == (status == 403)


async def test_a_pod_that_takes_an_address_over_replaces_the_worker(tmp_path: Path) -> None:
    async with following(tmp_path, pod("a", uid="old")) as site:
        await site.wait_urls(url("127.0.0.7"))
        await site.api.say("ADDED", pod("a", uid="new"))
        await site.api.say("DELETED", pod("a", uid="old"))
        with trio.fail_after(PATIENCE_S):
            while [worker.spec.labels[UID_LABEL] for worker in site.bench.gateway.registry.all_workers()] != ["new"]:
                await trio.lowlevel.checkpoint()


async def test_a_forgotten_version_is_listed_anew_and_the_token_read_again(tmp_path: Path) -> None:
    async with following(tmp_path, pod("a")) as site:
        await site.wait("watches", 1)
        assert site.api.asked[-1][0]["resourceVersion"] == ["100"]
        (site.folder / "token").write_text("second")
        site.api.pods = [pod("b", "127.0.0.8")]
        await site.api.say("ERROR", GONE)
        await site.wait_urls(url("127.0.0.8"))
        await site.wait("watches", 2)
        assert site.api.asked[-1][1] == "second"
        site.api.status = 410
        await site.api.say("ERROR", GONE)
        await site.wait("lists", 2)
        with trio.fail_after(PATIENCE_S):
            while len(site.api.asked) < 6:
                await trio.lowlevel.checkpoint()
        assert site.urls() == {url("127.0.0.8")}


async def test_workers_stay_while_the_api_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with following(tmp_path, pod("a")) as site:
        await site.wait_urls(url("127.0.0.7"))
        await site.wait("watches", 1)
        site.api.status = 403
        await site.api.say("ADDED", pod("b", "127.0.0.8"), cut=40)
        with trio.fail_after(PATIENCE_S):
            while len(site.api.asked) < 5:
                await trio.lowlevel.checkpoint()
        assert site.urls() == {url("127.0.0.7")}
        assert caplog.text.count("pods cannot be followed") == 1
        site.api.status, site.api.pods = 200, [pod("b", "127.0.0.8")]
        await site.wait_urls(url("127.0.0.8"))
        await site.api.say("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "900"}})
        await site.api.say("ADDED", pod("c", "127.0.0.9", metadata={"resourceVersion": "901"}), cut=10)
        await site.wait("watches", 3)


async def test_the_doctor_says_what_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    settings = Settings(service_discovery=True, selector=("app=llm",), service_discovery_port=PORT)
    api = ApiServer(pods=[pod("a"), pod("b", "127.0.0.8", ready=False), {"no": "pod"}])
    async with trio.open_nursery() as nursery:
        await nursery.start(api.serve)
        access = ClusterAccess(address=HttpAddress("http", "127.0.0.1", api.port), namespace="serving", folder=tmp_path)
        found = await check_pods(access, settings)
        assert (found.status, url("127.0.0.7") in found.text, "1 of 2 pods" in found.text) == (Status.OK, True, True)
        api.pods = []
        assert (await check_pods(access, settings)).status is Status.WARNING
        api.status = 403
        found = await check_pods(access, settings)
        assert (found.status, "get, list and watch" in found.remedy) == (Status.PROBLEM, True)
        nursery.cancel_scope.cancel()
    (outside,) = await check_discovery(settings, {}, tmp_path)
    assert outside.status is Status.PROBLEM
    (unnamed,) = await check_discovery(Settings(service_discovery=True), {}, tmp_path)
    assert unnamed.status is Status.WARNING


async def test_the_doctor_looks_names_up() -> None:
    async def lookup(host: str, port: int) -> set[str]:
        if host == "broken":
            raise OSError("no server")
        return {f"10.0.0.{number}" for number in range(7)} if host == "full" else set()

    settings = Settings(discover=("dns://full:80", "dns://empty:80", "dns://broken:80"))
    found = await check_discovery(settings, lookup=lookup)
    assert [finding.status for finding in found] == [Status.OK, Status.WARNING, Status.WARNING]
    assert "and 2 more" in found[0].text


def test_what_is_no_pod_is_refused_and_a_wrong_annotation_is_left_out() -> None:
    for value in (None, [], {}, {"metadata": {}}, {"metadata": {"uid": 1, "name": "a"}}):
        with pytest.raises(ValueError, match="uid"):
            read_pod(value)
    assert read_pod(pod("a", status={"podIP": None})) is None
    for text in ("", "80,", "0", "65536", "a", "٣"):
        found = read_pod(pod("a", metadata={"annotations": {"smg.ai/worker-ports": text}}))
        assert found is not None
        assert found.complaint
        assert found.urls(9) == ("http://127.0.0.7:9",)
    waiting = read_pod(pod("a", status={"phase": "Pending"}))
    assert waiting is not None
    assert not waiting.ready


@pytest.mark.parametrize("settings", [{"selector": ("app",)}, {"selector": ("=b",)}, {"service_discovery_port": 0}])
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        check_settings(Settings(**settings))


async def test_a_pod_reaches_the_api_by_its_service_account(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "namespace").write_text("serving\n")
    (tmp_path / "token").write_text("t\n")
    settings = Settings(service_discovery=True, selector=("app=llm",))
    api = ApiServer(pods=[pod("a")])
    async with trio.open_nursery() as nursery:
        await nursery.start(api.serve, context)
        inside = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.port)}
        access = cluster_access(settings, inside, tmp_path)
        assert (await check_pods(access, settings)).status is Status.OK
        assert api.asked[-1][1] == "t"
        trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
        stranger = await check_pods(cluster_access(settings, inside, tmp_path), settings)
        assert stranger.status is Status.PROBLEM, "a server that the cluster's authority does not know"
        assert len(api.asked) == 1, "no token is sent to it"
        nursery.cancel_scope.cancel()
    elsewhere = replace(settings, service_discovery_namespace="other")
    assert cluster_access(elsewhere, inside, tmp_path).namespace == "other"


def test_outside_of_a_cluster_it_is_refused_with_what_to_do(tmp_path: Path) -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    for environment in ({}, inside):
        with pytest.raises(ConfigError) as caught:
            cluster_access(Settings(service_discovery=True), environment, tmp_path)
        assert caught.value.option == "--service-discovery"
