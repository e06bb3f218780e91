"""Finds free worker ports by binding them for a moment. Blocking calls, all of them tiny."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Callable

from smg_trio.core.errors import ConfigError

_LAST_PORT = 65535
_LONGEST_STEP = 5


def _random_step() -> int:
    return random.randint(1, _LONGEST_STEP)


def find_ports(
    count: int, base: int, is_free: Callable[[int], bool], step: Callable[[], int] = _random_step
) -> list[int]:
    """`count` free ports from `base` upwards.

    Args:
        count: how many, >= 1.
        base: the first one tried.
        is_free: whether a port may be used.
        step: how far to go after a hit; random, so that launchers that start together part soon.

    Raises:
        ConfigError: there are not so many up to 65535.
    """
    found: list[int] = []
    port = base
    while len(found) < count:
        if not 0 < port <= _LAST_PORT:
            raise ConfigError("--worker-base-port", f"Could not find {count} available ports starting from {base}")
        if is_free(port):
            found.append(port)
            port += step()
        else:
            port += 1
    return found


def port_is_free(port: int) -> bool:
    """Whether `port` is free on the loopback addresses at this moment."""
    return _can_bind(socket.AF_INET, "127.0.0.1", port) and _can_bind(socket.AF_INET6, "::1", port)


def _can_bind(family: socket.AddressFamily, host: str, port: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Connections that ended a moment ago do not hinder the engine either.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        # A host without IPv6 has no listener there.
        return error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
    return True
