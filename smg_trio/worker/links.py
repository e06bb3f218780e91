"""The two interfaces between a worker and its sockets: `Link` (one bound socket) and `Transport` (what binds).

`worker.zmq_links` implements them on libzmq; `testing.memory` in memory, so that lifecycle tests can run
under a mock clock. Both pass the same conformance checks (`testing.conformance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import trio

    from smg_trio.wire.packing import Frame

Network = IPv4Network | IPv6Network


class PeerUnreachable(Exception):
    """A ROUTER was told to send to an identity that has no open connection."""


class LinkClosed(Exception):
    """The link was closed by its owner, also while another task waited on it."""


class Link(Protocol):
    """One bound socket. On ROUTER links frame 0 of every message is the peer's identity.

    One task receives and one task sends; `close` may be called by either.
    """

    async def receive_many(self, limit: int = 64) -> list[list[bytes]]:
        """Wait for and return 1..limit messages, each a list of frames. A checkpoint.

        Cancellation never loses a message. Raises LinkClosed.
        """
        ...

    def origin(self, index: int) -> int | None:
        """The connection that the message at `index` of the last batch came by; None if that is not known.

        Numbers are used again when a connection has ended.
        """
        ...

    def send_nowait(self, frames: Sequence[Frame]) -> None:
        """Hand a message to the socket. Raises trio.WouldBlock (pipe full), PeerUnreachable, LinkClosed.

        Frames beyond the third may be read later: nobody may change what they show.
        """
        ...

    async def send(self, frames: Sequence[Frame]) -> None:
        """Like send_nowait but waits while the pipe is full. If cancelled the message was not sent."""
        ...

    async def wait_peer_lost(self) -> bytes | None:
        """Wait for the next disconnect of a peer; its identity if known, else None. Raises LinkClosed."""
        ...

    def close(self) -> None:
        """Close; what was handed over may linger for 0.1 s in the background. Idempotent. Waiters get LinkClosed."""
        ...


class HandshakeLink(Link, Protocol):
    """The one on a TCP port, which others may want to use next."""

    async def stop_listening(self) -> None:
        """Take no new connections, before `close`. Returns when the port is free. Nothing else may use the link."""
        ...


class OutputLink(Link, Protocol):
    """The PULL, whose messages do not say who sent them."""

    def name_origin(self, origin: int, identity: bytes) -> None:
        """Have disconnects of this connection name their peer by `identity`."""
        ...

    def peers_lost(self) -> list[bytes | None]:
        """Disconnects that `wait_peer_lost` has not told of yet: all that came before the messages received last."""
        ...


class Transport(Protocol):
    """Binds the three sockets of a worker, and connects to those of another process of the gateway.

    Binding raises OSError (address in use, bad path, …).
    """

    async def guard(self, networks: Sequence[Network], *, task_status: trio.TaskStatus[None]) -> None:
        """Let only peers of these networks connect to ``tcp://`` workers, until cancelled; started when it does."""
        ...

    def bind_handshake(self, address: str) -> HandshakeLink:
        """A ROUTER at ``tcp://host:port``."""
        ...

    def bind_input(self, address: str) -> Link:
        """A mandatory ROUTER (requests go out, registrations come in)."""
        ...

    def bind_output(self, address: str) -> OutputLink:
        """A PULL (engine outputs come in); `send_nowait` is not supported."""
        ...

    def dial_input(self, address: str, identity: bytes) -> Link:
        """A DEALER to a ROUTER that `bind_input` bound, now or later: what is sent meanwhile is kept."""
        ...

    def dial_output(self, address: str) -> Link:
        """A PUSH to a PULL that `bind_output` bound, likewise."""
        ...
