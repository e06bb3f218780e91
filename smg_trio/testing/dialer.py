"""What a fake engine needs of a network: three ways to connect.

The links are `worker.links.Link`, seen from the connecting side: no identity frame on received messages, none on sent
ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from smg_trio.worker.links import Link


class Dialer(Protocol):
    """Connects like libzmq does: immediately, whether or not anyone is bound yet, and again after a loss.

    What is sent before the connection is up is kept and delivered then.
    """

    def dial_handshake(self, address: str, identity: bytes) -> Link:
        """A DEALER to the handshake ROUTER."""
        ...

    def dial_input(self, address: str, identity: bytes) -> Link:
        """A DEALER to the input ROUTER: requests come in, the registration goes out."""
        ...

    def dial_output(self, address: str) -> Link:
        """A PUSH to the output PULL. Receiving is not supported."""
        ...
