"""Connections to addresses that were checked, whatever HTTP library speaks over them.

The name of a URL goes into Host, SNI and the check of the certificate, but is not resolved again, so that a name server
that answers differently the second time gains nothing.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import trio

if TYPE_CHECKING:
    from smg_trio.net.addresses import Address

_PATIENCE_PER_ADDRESS_S: Final = 2.0
"""How long one address of several is tried: of two families one may lead nowhere."""

Stream = TypeVar("Stream")


async def connect_to_one(
    addresses: Sequence[Address],
    connect: Callable[[str, float], Awaitable[Stream]],
    limit_s: float,
    failures: tuple[type[Exception], ...],
) -> Stream:
    """A connection to the first of the addresses that takes one.

    Args:
        addresses: at least one.
        connect: gets an address and how many seconds it may take.
        limit_s: seconds for all of them.
        failures: what `connect` raises for an address that does not answer; that of the last one is raised.
    """
    until = trio.current_time() + limit_s
    *others, last = addresses
    for address in others:
        left = min(until - trio.current_time(), _PATIENCE_PER_ADDRESS_S)
        try:
            return await connect(str(address), max(left, 0))
        except failures:
            continue
    return await connect(str(last), max(until - trio.current_time(), 0))


def client_context() -> ssl.SSLContext:
    """Trusts the system's authorities (``SSL_CERT_FILE`` included) and those of certifi. Reads files.

    Raises ImportError without certifi, which the extras bring that need this.
    """
    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context
