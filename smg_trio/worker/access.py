"""Who may connect to the sockets of ``tcp://`` workers, by address.

Engines can neither authenticate nor encrypt, so the network has to be private; this keeps strangers out who can reach
it by mistake. libzmq asks a handler inside the process (ZAP, https://rfc.zeromq.org/spec/27) for each new connection
before the connection is used.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio
import zmq

from smg_trio.worker.log_throttle import LogThrottle
from smg_trio.worker.socket_poller import POLLIN, SocketPoller

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smg_trio.worker.links import Network

logger = logging.getLogger("smg_trio.worker")

ACCESS_DOMAIN = b"smg-trio-workers"
_HANDLER = "inproc://zeromq.zap.01"
_NOBLOCK = int(zmq.NOBLOCK)

PRIVATE_NETWORKS: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10",
        "::1/128", "fc00::/7", "fe80::/10",
    )
)  # fmt: skip
"""Loopback, private and link-local addresses, and those that providers and overlay networks share (RFC 6598)."""


def is_allowed(address: str, networks: Iterable[Network]) -> bool:
    """Whether an address, as libzmq writes it, is in one of the networks. Pure."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in network for network in networks)


def is_public(endpoint: str) -> bool:
    """Whether an endpoint is bound to an address that is not of a private network. Pure."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    return host != "*" and not is_allowed(host, (*PRIVATE_NETWORKS, ipaddress.ip_network("::/128")))


async def guard_connections(
    context: zmq.Context[zmq.Socket[bytes]], networks: Sequence[Network], task_status: trio.TaskStatus[None]
) -> None:
    """Answer libzmq's questions until cancelled; one per context. What has been let in stays when it ends."""
    refused = LogThrottle()
    with context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.bind(_HANDLER)
        poller = SocketPoller(socket)
        task_status.started()
        while True:
            try:
                frames = socket.recv_multipart(_NOBLOCK)
            except zmq.Again:
                await poller.wait(POLLIN)
                continue
            reply, address = _answer(frames, networks)
            socket.send_multipart(reply, _NOBLOCK)
            if address:
                for line in refused.note(f"connection from {address} to a tcp:// worker", trio.current_time()):
                    logger.warning("refused a %s: --zmq-allow-peers does not name its address", line)


def _answer(frames: list[bytes], networks: Sequence[Network]) -> tuple[list[bytes], str]:
    """The reply to a question, and the address that is refused; empty for one that is let in.

    Question: routing id, empty, version, request id, domain, address, identity, mechanism, credentials.
    """
    route, _, version, request_id, _, address = frames[:6]
    text = address.decode("ascii", "replace")
    allowed = is_allowed(text, networks)
    status, words = (b"200", b"OK") if allowed else (b"400", b"not allowed")
    return [route, b"", version, request_id, status, words, b"", b""], "" if allowed else text
