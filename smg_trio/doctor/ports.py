"""Ports that a launch binds: free, or taken by whom."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smg_trio.doctor.findings import Check, Finding, Status
from smg_trio.gateway.security.exposure import is_everywhere

if TYPE_CHECKING:
    from smg_trio.doctor.host import Host
    from smg_trio.settings.settings import Settings
    from smg_trio.wire.addresses import WorkerAddresses


@dataclass(frozen=True, slots=True)
class WantedPort:
    """A port that a launch binds; `remedy`: how another is chosen."""

    purpose: str
    host: str
    port: int
    remedy: str

    @property
    def everywhere(self) -> bool:
        """Whether it is bound on every interface."""
        return self.host == "*" or is_everywhere(self.host)

    def __str__(self) -> str:
        host = "*" if self.everywhere else self.host
        return f"{self.purpose} {host}:{self.port}"


def wanted_ports(settings: Settings, workers: Sequence[WorkerAddresses]) -> Iterator[WantedPort]:
    """Every port of a launch. Pure."""
    yield WantedPort("HTTP", settings.host, settings.port, "choose another with --port")
    metrics = (settings.prometheus_host, settings.prometheus_port)
    yield WantedPort("metrics", *metrics, "choose another with --prometheus-port")
    if settings.health_check_port:
        yield WantedPort("probes", settings.host, settings.health_check_port, "choose another with --health-check-port")
    for addresses in workers:
        if addresses.remote:
            remedy = "name another port with --worker-urls: it and the two after it must be free"
            for purpose in ("handshake", "input", "output"):
                host, _, port = str(getattr(addresses, purpose)).removeprefix("tcp://").rpartition(":")
                yield WantedPort(purpose, host.strip("[]"), int(port), remedy)
            continue
        host, _, port = addresses.handshake.removeprefix("tcp://").rpartition(":")
        if port.isdecimal():
            remedy = "name another path with --worker-urls (the port is derived from it), or --zmq-handshake-address"
            yield WantedPort("handshake", host.strip("[]"), int(port), remedy)


def bind_error(host: str, port: int) -> OSError | None:
    """Why a port cannot be bound, found out by binding it for a moment without listening; None if it can be.

    Blocking; quick unless the host is a name that has to be asked for.
    """
    try:
        infos = socket.getaddrinfo(
            None if host in {"", "*"} else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        return error
    for family, _, _, _, address in infos:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # As the gateway does: connections that ended a moment ago are no hindrance.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno != errno.EAFNOSUPPORT:
                return error
    return None


def check_port(wanted: WantedPort, error: OSError | None, host: Host, gateway: Collection[int]) -> Finding:
    """What the attempt to bind a port means. Pure.

    Args:
        wanted: the port.
        error: of `bind_error`.
        host: who is running.
        gateway: pids of the running gateway of this launch, empty if none runs.
    """
    subject = str(wanted)
    if error is None:
        text = "free" if wanted.port else "the system chooses a free port"
        return Finding(Check.PORTS, Status.OK, subject, text)
    if error.errno == errno.EADDRINUSE:
        return _taken(wanted, host, gateway)
    remedy = wanted.remedy[:1].upper() + wanted.remedy[1:] + "."
    if error.errno in (errno.EACCES, errno.EPERM):
        text = f"this user may not listen there: {error.strerror}."
        return Finding(Check.PORTS, Status.PROBLEM, subject, text, f"{remedy} Ports below 1024 need a privilege.")
    return Finding(
        Check.PORTS, Status.PROBLEM, subject, f"cannot be listened on: {error.strerror or error}.",
        "Name an address of this host.",
    )  # fmt: skip


def _taken(wanted: WantedPort, host: Host, gateway: Collection[int]) -> Finding:
    owners = host.holders({one.inode for one in host.listeners(wanted.port)})
    who = ", ".join(map(str, owners)) or "a process that cannot be seen from here"
    if owners and all(host.is_of(owner, gateway) for owner in owners):
        return Finding(Check.PORTS, Status.OK, str(wanted), f"served by the running gateway, {who}")
    if owners or not gateway:
        remedy = f"Stop it, or {wanted.remedy}."
        return Finding(Check.PORTS, Status.PROBLEM, str(wanted), f"taken by {who}.", remedy)
    return Finding(
        Check.PORTS, Status.WARNING, str(wanted), f"taken by {who}, perhaps the running gateway",
        "Run the doctor as the gateway's user, or as root.",
    )  # fmt: skip


def check_clashes(ports: Sequence[WantedPort]) -> Iterator[Finding]:
    """Ports of one launch that exclude each other. Pure."""
    for at, one in enumerate(ports):
        for other in ports[:at]:
            overlap = one.host == other.host or one.everywhere or other.everywhere
            if one.port and one.port == other.port and overlap:
                remedy = one.remedy[:1].upper() + one.remedy[1:] + "."
                yield Finding(Check.PORTS, Status.PROBLEM, str(one), f"is the port for {other} too.", remedy)


def port_owners(port: int, host: Host) -> set[int]:
    """The pids of those who listen on a port. Pure."""
    return {process.pid for process in host.holders({one.inode for one in host.listeners(port)})}


def is_gateway(words: Sequence[str]) -> bool:
    """Whether a command line starts a gateway. Pure."""
    names = {os.path.basename(word) for word in words[:4]}
    return bool(names & {"smg-trio", "smg_trio"}) and bool({"launch", "serve", "demo"} & set(words))
