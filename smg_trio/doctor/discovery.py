"""Whether workers can be found: the names of --discover, and the pods of --service-discovery. Asks DNS and the API."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import ConfigError
from smg_trio.doctor.findings import Check, Finding, Status
from smg_trio.gateway.discovery.dns import LOOKUP_LIMIT_S, Lookup, look_up
from smg_trio.gateway.discovery.kubernetes import SERVICE_ACCOUNT, cluster_access, open_api
from smg_trio.gateway.discovery.kubernetes_api import ApiFailure
from smg_trio.gateway.discovery.pods import Pod, read_pod, wanted_workers
from smg_trio.settings.workers import discovered_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from smg_trio.core.http_addresses import HttpAddress
    from smg_trio.gateway.discovery.kubernetes import ClusterAccess
    from smg_trio.gateway.discovery.kubernetes_api import PodList
    from smg_trio.settings.settings import Settings

_SHOWN = 5


async def check_discovery(
    settings: Settings,
    environment: Mapping[str, str] = os.environ,
    folder: Path = SERVICE_ACCOUNT,
    lookup: Lookup = look_up,
) -> list[Finding]:
    """What would be found now; nothing where the settings name nothing to be found. Cancelled, nothing is left."""
    findings = [await _check_name(address, lookup) for address in discovered_names(settings)]
    if not settings.service_discovery:
        return findings
    if not settings.selector:
        words = "finds nothing without --selector"
        return [*findings, _pods(Status.WARNING, words, "Name the pods' labels: --selector app=llm.")]
    try:
        access = cluster_access(settings, environment, folder)
    except ConfigError as error:
        return [*findings, _pods(Status.PROBLEM, error.problem, error.remedy)]
    return [*findings, await check_pods(access, settings)]


async def _check_name(address: HttpAddress, lookup: Lookup) -> Finding:
    subject = f"dns://{address.host}:{address.port}"
    remedy = "Workers are added when it has some; until then there are none of it."
    try:
        with trio.fail_after(LOOKUP_LIMIT_S):
            found = sorted(await lookup(address.host, address.port))
    except (OSError, trio.TooSlowError) as error:
        words = f"cannot be looked up ({error or 'no answer in time'})"
        return Finding(Check.DISCOVERY, Status.WARNING, subject, words, remedy)
    if not found:
        return Finding(Check.DISCOVERY, Status.WARNING, subject, "has no address", remedy)
    return Finding(Check.DISCOVERY, Status.OK, subject, _listed(found))


async def check_pods(access: ClusterAccess, settings: Settings) -> Finding:
    """What the API lists now: one request."""
    found = await _list(access, settings.selector)
    if isinstance(found, ApiFailure):
        words = f"the API of Kubernetes cannot be asked: {found}"
        remedy = "The service account needs get, list and watch for pods: see deploy/kubernetes/front."
        return _pods(Status.PROBLEM, words, remedy)
    pods = [pod for pod in map(_read, found.items) if pod is not None]
    ready = [pod for pod in pods if pod.ready]
    where = f"in namespace {access.namespace} with {','.join(settings.selector)}"
    if not ready:
        remedy = "Workers are added when pods are ready; is the selector that of the pods?"
        return _pods(Status.WARNING, f"{len(pods)} pods {where}, none ready", remedy)
    urls = sorted(wanted_workers(ready, settings.service_discovery_port))
    return _pods(Status.OK, f"{len(ready)} of {len(pods)} pods {where} ready: {_listed(urls)}")


async def _list(access: ClusterAccess, selector: Sequence[str]) -> PodList | ApiFailure:
    client, api = open_api(access, selector)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        try:
            return await api.list()
        except ApiFailure as failure:
            return failure
        finally:
            nursery.cancel_scope.cancel()


def _read(value: object) -> Pod | None:
    try:
        return read_pod(value)
    except ValueError:
        return None


def _pods(status: Status, text: str, remedy: str = "") -> Finding:
    return Finding(Check.DISCOVERY, status, "--service-discovery", text, remedy)


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
