"""WebSockets without compression.

hypercorn 0.18 accepts every client's offer of permessage-deflate (`Handshake.accept` in its protocol/ws_stream.py), and
wsproto 1.3 inflates a whole frame before anybody sees its size: 200 KB become 200 MiB, on the loop, whatever the limit
of a message is. There is no setting for it, so the offer is taken out of the request before hypercorn reads it. A frame
that is marked as compressed all the same then breaks the protocol, which ends its connection. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

_OFFER = b"sec-websocket-extensions"


def without_offer(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Request headers without the WebSocket extensions that the client offers."""
    return [(name, value) for name, value in headers if name.lower() != _OFFER]
