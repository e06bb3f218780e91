"""Ports for servers that are named before they listen, or come back to where they were."""

from __future__ import annotations

import random
import socket

_BELOW_EPHEMERAL = range(10_000, 19_999)
"""The system gives these to no outgoing connection, and no worker's handshake is derived to them."""


def lasting_port() -> int:
    """A port of the loopback that is free now, and that no client will have by chance in a moment."""
    for port in random.SystemRandom().sample(_BELOW_EPHEMERAL, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")
