"""Binds the sockets of one worker, and takes away what they leave in the file system."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from smg_trio.worker.socket_directory import SocketPathLock, ensure_socket_directory, remove_stale_socket

if TYPE_CHECKING:
    from smg_trio.core.workers import WorkerSpec
    from smg_trio.wire.addresses import SocketPair, WorkerAddresses
    from smg_trio.worker.links import Link, OutputLink, Transport

logger = logging.getLogger("smg_trio.worker")

_UNBIND_LIMIT_S = 1.0
"""It takes a millisecond. Who comes next finds the port free, and no engine says HELLO to a socket that ends."""


@asynccontextmanager
async def bound_worker(
    spec: WorkerSpec, addresses: WorkerAddresses, pairs: int, transport: Transport
) -> AsyncIterator[tuple[Link, OutputLink, Link]]:
    """Bind input, output and handshake socket, and lock their path; in the end they are closed and their files removed.

    ``pairs``: how many processes have socket pairs beside each other. Raises ConfigError, OSError.
    """
    ensure_socket_directory(addresses.path)
    lock = SocketPathLock(addresses.path)
    lock.acquire()
    links: list[Link] = []
    try:
        for path in filter(None, (addresses.input_path, addresses.output_path)):
            if remove_stale_socket(path):
                logger.info("Removing stale ipc socket %s from a previous gateway run", path)
        logger.info(
            "Binding ZMQ client for worker %s (handshake=%s, engines=%d)",
            spec.url,
            addresses.handshake,
            spec.engine_count,
        )
        links.append(transport.bind_input(addresses.input))
        output = transport.bind_output(addresses.output)
        links.append(output)
        handshake = transport.bind_handshake(addresses.handshake)
        links.append(handshake)
        logger.info("bound local transport sockets")
        try:
            yield links[0], output, handshake
        finally:
            with trio.move_on_after(_UNBIND_LIMIT_S, shield=True):
                await handshake.stop_listening()
    finally:
        for link in links:
            link.close()
        if links:
            # libzmq leaves socket files behind; they are ours to remove while the lock is. Those of other processes
            # too, but only in the end: they go on when this one has to bind anew.
            ending = trio.current_effective_deadline() == float("-inf")
            for index in range(0 if addresses.remote else pairs if ending else 1):
                _remove(addresses.pair(index))
        lock.release()


@asynccontextmanager
async def bound_pair(pair: SocketPair, transport: Transport) -> AsyncIterator[tuple[Link, OutputLink]]:
    """Bind a front's own sockets; closed at the end. Raises ConfigError, OSError.

    The keeper has the lock, and removes their files in the end: a front that outlives its keeper must not take those of
    the one that came after.
    """
    ensure_socket_directory(pair.input_path)
    links: list[Link] = []
    try:
        _remove(pair)
        links.append(transport.bind_input(pair.input))
        output = transport.bind_output(pair.output)
        links.append(output)
        yield links[0], output
    finally:
        for link in links:
            link.close()


def _remove(pair: SocketPair) -> None:
    remove_stale_socket(pair.input_path)
    remove_stale_socket(pair.output_path)
