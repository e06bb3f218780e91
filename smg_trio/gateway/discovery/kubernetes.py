"""Workers behind HTTP that are pods of Kubernetes: they come when a pod is ready and go when it ends."""

from __future__ import annotations

import logging
import os
import ssl
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from random import random
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import trio

from smg_trio.core.errors import ConfigError, Conflict, NotFound, SmgError
from smg_trio.core.http_addresses import HttpAddress
from smg_trio.core.workers import WorkerSpec
from smg_trio.gateway.discovery.kubernetes_api import WATCH_S, ApiFailure, PodsApi, VersionGone
from smg_trio.gateway.discovery.pods import NAME_LABEL, UID_LABEL, Pod, read_pod, uid_of
from smg_trio.upstream.client import UpstreamClient, UpstreamLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smg_trio.routing.registry import Registry
    from smg_trio.settings.settings import Settings

logger = logging.getLogger("smg_trio.gateway")

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
COALESCE_S: Final = 1.0
"""Events of so long a time are acted on together: a rollout is many."""
_FIRST_BACKOFF_S: Final = 1.0
_LONGEST_BACKOFF_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """How the API server is reached.

    Attributes:
        folder: with files ``token``, ``ca.crt`` and ``namespace``, as a pod of Kubernetes has it.
        tls: None for the folder's authority.
    """

    address: HttpAddress
    namespace: str
    folder: Path = SERVICE_ACCOUNT
    tls: ssl.SSLContext | None = None

    def read_token(self) -> str:
        """The token as it is now. Raises OSError."""
        return (self.folder / "token").read_text().strip()


def cluster_access(settings: Settings, environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """How a pod reaches the API of its cluster. Raises ConfigError outside of one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdigit():
        raise ConfigError(
            "--service-discovery",
            "works in a pod of Kubernetes only: KUBERNETES_SERVICE_HOST is not set.",
            "Elsewhere, name workers with --worker-urls, or by DNS with --discover.",
        )
    try:
        namespace = settings.service_discovery_namespace or (folder / "namespace").read_text().strip()
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    except OSError as error:
        raise ConfigError(
            "--service-discovery",
            f"needs the service account's files in {folder}: {error.strerror}.",
            "Leave automountServiceAccountToken on for the pod.",
        ) from None
    return ClusterAccess(address=HttpAddress("https", host, int(port)), namespace=namespace, folder=folder, tls=tls)


@dataclass(slots=True)
class _Found:
    """What has become of a pod: its workers' ids by URL."""

    pod: Pod
    workers: dict[str, str] = field(default_factory=dict)


class KubernetesWorkers:
    """Keeps workers as the pods are that a selector names. `run` it beside the registry.

    Args:
        selector: ``name=value`` pairs.
        port: of pods without the annotation.
        key: what the workers are sent as key.
        coalesce_s, backoff_s: see the module constants; tests shorten them.
    """

    def __init__(
        self,
        registry: Registry,
        access: ClusterAccess,
        *,
        selector: tuple[str, ...],
        port: int,
        key: str | None,
        coalesce_s: float = COALESCE_S,
        backoff_s: float = _FIRST_BACKOFF_S,
    ) -> None:
        self._registry = registry
        limits = UpstreamLimits(silence_s=2 * WATCH_S)  # a watch without news is no failure
        self._client = UpstreamClient(access.address, "the API of Kubernetes", limits, tls=access.tls)
        self._api = PodsApi(self._client, access.namespace, selector, access.read_token)
        self._port = port
        self._key = key
        self._coalesce_s = coalesce_s
        self._first_backoff_s = backoff_s
        self._pods: dict[str, Pod] = {}
        self._found: dict[str, _Found] = {}
        self._changed = trio.Event()

    async def run(self) -> None:
        """Follow the pods for ever. Cancelled, the workers stay."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._client.run)
            nursery.start_soon(self._act)
            await self._follow()

    async def _follow(self) -> None:
        backoff_s, failing = self._first_backoff_s, False
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list()
                if failing:
                    logger.info("the API of Kubernetes answers again")
                backoff_s, failing = self._first_backoff_s, False
                began = trio.current_time()
                async with aclosing(self._api.watch(version)) as events:
                    async for kind, value, at in events:
                        version = at or version
                        self._take(kind, value)
                # Servers end a watch after minutes; one that ends all of them is not asked without pause.
                await trio.sleep_until(began + self._first_backoff_s)
            except VersionGone:
                version = ""
            except ApiFailure as error:
                if not failing:
                    logger.warning("pods cannot be followed: %s; workers stay as they are", error)
                failing, version = True, ""
                await trio.sleep(backoff_s * (0.5 + random() / 2))
                backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)

    async def _list(self) -> str:
        found = await self._api.list()
        self._pods = {}
        for value in found.items:
            self._note(value)
        self._wake()
        return found.version

    def _take(self, kind: str, value: Any) -> None:
        if kind == "DELETED":
            try:
                self._pods.pop(uid_of(value), None)
            except ValueError:
                return
        elif kind in ("ADDED", "MODIFIED"):
            self._note(value)
        else:
            return
        self._wake()

    def _note(self, value: Any) -> None:
        try:
            pod, uid = read_pod(value), uid_of(value)
        except ValueError as error:
            logger.warning("the API of Kubernetes lists %s", error)
            return
        if pod is None:
            self._pods.pop(uid, None)
            return
        before = self._pods.get(uid)
        if pod.complaint and (before is None or before.complaint != pod.complaint):
            logger.warning("pod %s: %s; port %d is used", pod.name, pod.complaint, self._port)
        self._pods[uid] = pod

    def _wake(self) -> None:
        self._changed.set()

    async def _act(self) -> None:
        while True:
            await self._changed.wait()
            await trio.sleep(self._coalesce_s)
            self._changed = trio.Event()
            if not await self._settle():
                await trio.sleep(self._first_backoff_s)  # for a worker that has the URL, and drains
                self._wake()

    async def _settle(self) -> bool:
        """Make the workers what the pods are; False if some could not be added yet."""
        for uid in [uid for uid in self._found if uid not in self._pods]:
            self._drop(self._found.pop(uid))
        done = True
        for uid, pod in list(self._pods.items()):  # others may come meanwhile
            if pod.ready and uid not in self._found:
                self._found[uid] = _Found(pod)
            if uid in self._found:
                done &= await self._add(self._found[uid])
        return done

    def _drop(self, found: _Found) -> None:
        logger.info("pod %s ends: its workers are drained", found.pod.name)
        for worker_id in found.workers.values():
            try:
                self._registry.drain(worker_id)
            except NotFound:
                continue

    async def _add(self, found: _Found) -> bool:
        done = True
        for url in found.pod.urls(self._port):
            if url in found.workers:
                continue
            spec = WorkerSpec(
                worker_id=str(uuid4()),
                url=url,
                model_id="",
                api_key=self._key,
                labels={NAME_LABEL: found.pod.name, UID_LABEL: found.pod.uid},
            )
            try:
                await self._registry.add(spec)
            except Conflict:  # a pod before it had the address, and drains; or an operator has named it
                done = False
            except SmgError as error:
                logger.warning("worker %s of pod %s is not added: %s", url, found.pod.name, error)
            else:
                found.workers[url] = spec.worker_id
                logger.info("pod %s is ready: %s is a worker", found.pod.name, url)
        return done


def kubernetes_workers(registry: Registry, settings: Settings, key: str | None) -> KubernetesWorkers | None:
    """What follows the pods that the settings name; None if they name none. Raises ConfigError."""
    if not settings.service_discovery:
        return None
    if not settings.selector:
        logger.warning("--service-discovery without --selector finds nothing")
        return None
    access = cluster_access(settings, os.environ)
    return KubernetesWorkers(
        registry, access, selector=settings.selector, port=settings.service_discovery_port, key=key
    )
