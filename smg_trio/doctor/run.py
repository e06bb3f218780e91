"""Runs the checks and prints the report."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from smg_trio.core.http_addresses import is_http_url
from smg_trio.doctor.discovery import check_discovery
from smg_trio.doctor.engines import check_engines, check_lost_engines, handshake_port
from smg_trio.doctor.environment import (
    check_engine_python,
    check_file_limit,
    check_security,
    check_versions,
    read_file_limit,
    read_versions,
    read_written_file,
    written_files,
)
from smg_trio.doctor.findings import Check, Finding, Status, as_json, as_text, problems
from smg_trio.doctor.gateway import check_readiness, read_readiness
from smg_trio.doctor.host import Host, read_host
from smg_trio.doctor.model import check_model
from smg_trio.doctor.ports import bind_error, check_clashes, check_port, is_gateway, port_owners, wanted_ports
from smg_trio.doctor.sockets import (
    check_served,
    check_socket_path,
    is_served,
    read_socket_path,
    serving_pids,
)
from smg_trio.worker.address_checks import addresses_of

if TYPE_CHECKING:
    from smg_trio.core.errors import ConfigError
    from smg_trio.gateway.plugin_set import PluginSet
    from smg_trio.settings.settings import Settings
    from smg_trio.wire.addresses import WorkerAddresses


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The launch that is looked at.

    Attributes:
        settings: None if they cannot be had; then `problems` says why.
        plugins: what the settings name, None without settings.
        file: the settings file, if there is one.
        problems: in the settings, with their origin.
        warnings: about them.
        engine_python: the interpreter of the engine's environment, if named.
    """

    settings: Settings | None
    plugins: PluginSet | None = None
    file: str | None = None
    problems: Sequence[ConfigError] = ()
    warnings: Sequence[str] = ()
    engine_python: str | None = None


async def run_doctor(launch: Launch, *, as_json_text: bool = False) -> int:
    """Check and print; the exit code: 0, or 1 if there is a problem. Cancelled, nothing is left behind."""
    # What loading a model logs is among the findings.
    logging.getLogger("smg_trio").addHandler(logging.NullHandler())
    findings = await look(launch)
    sys.stdout.write(json.dumps(as_json(findings), indent=2) + "\n" if as_json_text else as_text(findings))
    return 1 if problems(findings) else 0


async def look(launch: Launch) -> list[Finding]:
    """Every finding, in the order of the checks."""
    findings = [*_settings_findings(launch), *check_versions(*read_versions())]
    settings = launch.settings
    if launch.engine_python is not None:
        backend = (settings.backend if settings else None) or "vllm"
        findings.append(await check_engine_python(launch.engine_python, backend))
    if settings is None or launch.plugins is None:
        return findings
    findings.append(check_file_limit(settings, *read_file_limit(), os.cpu_count() or 1))
    findings += await check_security(settings, launch.plugins)
    findings += [read_written_file(option, path) for option, path in written_files(settings).items()]
    findings += await check_model(settings, launch.plugins)
    findings += await check_discovery(settings)
    return findings + await trio.to_thread.run_sync(_connections, settings)


def _settings_findings(launch: Launch) -> Iterator[Finding]:
    subject = launch.file or "command line and environment"
    for warning in launch.warnings:
        yield Finding(Check.SETTINGS, Status.WARNING, subject, warning)
    for problem in launch.problems:
        where = f"{problem.option} (from {problem.origin})" if problem.origin else problem.option
        yield Finding(Check.SETTINGS, Status.PROBLEM, where, problem.problem, problem.remedy or "Change it.")
    if not launch.problems:
        yield Finding(Check.SETTINGS, Status.OK, subject, "valid")


def _connections(settings: Settings) -> list[Finding]:
    """Sockets, ports, engines and the running gateway, of one look at the host."""
    zmq_urls = [url for url in settings.worker_urls if not is_http_url(url)]
    every = {url: addresses_of(url, settings) for url in zmq_urls}
    workers = {url: addresses for url, addresses in every.items() if not addresses.remote}
    host = read_host()
    findings, gateway = _sockets(workers, host)
    ports = list(wanted_ports(settings, list(every.values())))
    if not workers:
        owners = port_owners(settings.port, host)
        gateway = {pid for pid in owners if is_gateway(host.processes[pid].words)}
    findings += check_clashes(ports)
    findings += [check_port(port, bind_error(port.host, port.port), host, gateway) for port in ports]
    for url, addresses in workers.items():
        findings.append(check_engines(url, addresses, settings, host, is_served(addresses, host)))
    findings += check_lost_engines(host, [handshake_port(addresses) for addresses in workers.values()])
    if settings.port and any(host.is_of(host.processes[pid], gateway) for pid in port_owners(settings.port, host)):
        findings.append(check_readiness(str(ports[0]), read_readiness(settings)))
    return findings


def _sockets(workers: dict[str, WorkerAddresses], host: Host) -> tuple[list[Finding], set[int]]:
    """Findings about socket paths, and the pids of the gateway that serves them."""
    findings: list[Finding] = []
    gateway: set[int] = set()
    for url, addresses in workers.items():
        path = read_socket_path(addresses)
        pids = serving_pids(addresses, path, host)
        gateway |= pids
        findings += check_socket_path(url, path, host.uid)
        findings += check_served(url, addresses, pids, host)
    return findings, gateway
