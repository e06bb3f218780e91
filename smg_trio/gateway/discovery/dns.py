"""Workers behind HTTP that are found by DNS: one for each address that a name has.

For a headless Service of Kubernetes, Consul, or any name with an address per server.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from smg_trio.core.http_addresses import HttpAddress
    from smg_trio.gateway.discovery.found_workers import FoundWorkers

logger = logging.getLogger("smg_trio.gateway")

EMPTY_ANSWERS: Final = 3
"""So many answers without an address, one after the other, are believed: one may be an outage of DNS."""
LOOKUP_LIMIT_S: Final = 5.0

Lookup = Callable[[str, int], Awaitable[set[str]]]


async def look_up(host: str, port: int) -> set[str]:
    """The addresses of a name, IPv4 and IPv6. Raises OSError; cancelled, the answer is dropped."""
    try:
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
            return set()  # as a Service without pods is answered
        raise
    return {str(address[0]) for *_, address in found}


class DnsWorkers:
    """Keeps the workers of one name as its addresses are. `run` it beside the registry.

    Args:
        workers: those that it adds and drains.
        address: name and port.
        refresh_s: seconds between two looks.
    """

    def __init__(
        self, workers: FoundWorkers, address: HttpAddress, *, refresh_s: float, lookup: Lookup = look_up
    ) -> None:
        self._workers = workers
        self._address = address
        self._refresh_s = refresh_s
        self._lookup = lookup
        self._empty = 0
        self._failing = False

    async def run(self) -> None:
        """Look until cancelled; the workers stay."""
        while True:
            await self._settle(await self._addresses())
            await trio.sleep(self._refresh_s)

    async def _addresses(self) -> set[str] | None:
        """What the name has now; None if that cannot be found out."""
        name = self._address.host
        try:
            with trio.fail_after(LOOKUP_LIMIT_S):
                found = await self._lookup(name, self._address.port)
        except (OSError, trio.TooSlowError) as error:
            self._workers.failed()
            if not self._failing:
                logger.warning("%s cannot be looked up: %s; its workers stay", name, error or "no answer")
            self._failing = True
            return None
        if self._failing:
            logger.info("%s can be looked up again", name)
        self._failing = False
        return found

    async def _settle(self, addresses: set[str] | None) -> None:
        if addresses is None:
            return
        self._empty = 0 if addresses else self._empty + 1
        if not addresses and self._empty < EMPTY_ANSWERS:
            return
        labels = {"discovered_by": f"dns://{self._address.host}:{self._address.port}"}
        await self._workers.settle({self._url(address): labels for address in sorted(addresses)})

    def _url(self, address: str) -> str:
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{self._address.port}{self._address.base_path}"
