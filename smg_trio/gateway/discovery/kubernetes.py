"""Workers behind HTTP that are pods of Kubernetes: they come when a pod is ready and go when it ends."""

from __future__ import annotations

import logging
import os
import ssl
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from random import random
from typing import TYPE_CHECKING, Any, Final

import trio

from smg_trio.core.errors import ConfigError
from smg_trio.core.http_addresses import HttpAddress
from smg_trio.gateway.discovery.kubernetes_api import OPENED, WATCH_S, ApiFailure, PodsApi, VersionGone
from smg_trio.gateway.discovery.pods import Pod, read_pod, uid_of, wanted_workers
from smg_trio.upstream.client import UpstreamClient, UpstreamLimits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smg_trio.gateway.discovery.found_workers import FoundWorkers
    from smg_trio.settings.settings import Settings

logger = logging.getLogger("smg_trio.gateway")

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
COALESCE_S: Final = 1.0
"""Events of so long a time are acted on together: a rollout is many."""
FIRST_BACKOFF_S: Final = 1.0
RESYNC_S: Final = 60.0
"""So often workers are compared with pods without news: something else may have removed one."""
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


class KubernetesWorkers:
    """Keeps workers as the pods are that a selector names. `run` it beside the registry.

    Args:
        workers: those that it adds and drains.
        selector: ``name=value`` pairs.
        port: of pods without the annotation.
        coalesce_s, backoff_s, resync_s: see the module constants; tests shorten them.
    """

    def __init__(
        self,
        workers: FoundWorkers,
        access: ClusterAccess,
        *,
        selector: tuple[str, ...],
        port: int,
        coalesce_s: float = COALESCE_S,
        backoff_s: float = FIRST_BACKOFF_S,
        resync_s: float = RESYNC_S,
    ) -> None:
        self._workers = workers
        self._client, self._api = open_api(access, selector)
        self._port = port
        self._coalesce_s = coalesce_s
        self._first_backoff_s = backoff_s
        self._resync_s = resync_s
        self._pods: dict[str, Pod] = {}
        self._serving: set[str] = set()
        self._failing = False
        self._changed = trio.Event()

    async def run(self) -> None:
        """Follow the pods until cancelled; the workers stay."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._client.run)
            nursery.start_soon(self._act)
            await self._follow()

    # ---- what the API says ----------------------------------------------------------------------------

    async def _follow(self) -> None:
        """List, then watch on and on; list again when the server has forgotten the version, or after a failure.

        What fails, or has to be listed again, soon after it has begun is begun again after a longer and longer pause:
        an API server that is in trouble is not asked without pause by every gateway of the cluster.
        """
        version, backoff_s = "", self._first_backoff_s
        while True:
            began = trio.current_time()
            try:
                version = await self._watch(version or await self._list())
                # Servers end a watch after minutes; one that ends all of them is not asked without pause.
                await trio.sleep_until(began + self._first_backoff_s)
                backoff_s = self._first_backoff_s
                continue
            except VersionGone:
                version = ""
            except ApiFailure as error:
                version = ""
                self._note_failure(error)
            if trio.current_time() - began > _LONGEST_BACKOFF_S:
                backoff_s = self._first_backoff_s
            await trio.sleep(backoff_s * (0.5 + random() / 2))
            backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)

    def _note_failure(self, error: ApiFailure) -> None:
        self._workers.failed()
        if not self._failing:
            logger.warning("pods cannot be followed: %s; workers stay as they are", error)
        self._failing = True

    async def _list(self) -> str:
        found = await self._api.list()
        self._pods = {}
        for value in found.items:
            self._note(value)
        self._serving &= self._pods.keys()
        self._changed.set()
        return found.version

    async def _watch(self, version: str) -> str:
        """Take what comes until the server ends it; the version that the next watch goes on from."""
        async with aclosing(self._api.watch(version)) as events:
            async for kind, value, at in events:
                version = at or version
                if kind == OPENED and self._failing:
                    logger.info("pods can be followed again")
                    self._failing = False
                self._take(kind, value)
        return version

    def _take(self, kind: str, value: Any) -> None:
        if kind == "DELETED":
            try:
                self._forget(uid_of(value))
            except ValueError:
                return
        elif kind in ("ADDED", "MODIFIED"):
            self._note(value)
        else:
            return
        self._changed.set()

    def _note(self, value: Any) -> None:
        try:
            pod, uid = read_pod(value), uid_of(value)
        except ValueError as error:
            logger.warning("the API of Kubernetes lists %s", error)
            return
        if pod is None:
            self._forget(uid)
            return
        before = self._pods.get(uid)
        if pod.complaint and (before is None or before.complaint != pod.complaint):
            logger.warning("pod %s: %s; port %d is used", pod.name, pod.complaint, self._port)
        self._pods[uid] = pod
        if pod.ready:
            self._serving.add(uid)

    def _forget(self, uid: str) -> None:
        self._pods.pop(uid, None)
        self._serving.discard(uid)

    # ---- what becomes of it ---------------------------------------------------------------------------

    async def _act(self) -> None:
        while True:
            with trio.move_on_after(self._resync_s):  # for workers that something else has removed
                await self._changed.wait()
            await trio.sleep(self._coalesce_s)
            self._changed = trio.Event()
            serving = [pod for uid, pod in self._pods.items() if uid in self._serving]
            if not await self._workers.settle(wanted_workers(serving, self._port)):
                await trio.sleep(self._first_backoff_s)  # for a worker that has the URL, and drains
                self._changed.set()


def open_api(access: ClusterAccess, selector: Sequence[str]) -> tuple[UpstreamClient, PodsApi]:
    """The API of a cluster, and the client that it asks by, which something has to run."""
    limits = UpstreamLimits(silence_s=2 * WATCH_S)  # a watch without news is no failure
    client = UpstreamClient(access.address, "the API of Kubernetes", limits, tls=access.tls)
    return client, PodsApi(client, access.namespace, selector, access.read_token)


def kubernetes_workers(workers: FoundWorkers, settings: Settings) -> KubernetesWorkers | None:
    """What follows the pods that the settings name; None if they name none. Raises ConfigError."""
    if not settings.service_discovery:
        return None
    if not settings.selector:
        logger.warning("--service-discovery without --selector finds nothing")
        return None
    access = cluster_access(settings, os.environ)
    return KubernetesWorkers(workers, access, selector=settings.selector, port=settings.service_discovery_port)
