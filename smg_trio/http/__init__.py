"""The HTTP server under the gateway's app: limits, listeners, HTTP/1.1 of its own, hypercorn for the rest.

`serve` runs an ASGI 3 app (without lifespan) on the sockets of `open_listeners`. HTTP/1.1, with and without TLS, is
read by `h1`, handshakes of WebSockets too; those then, and HTTP/2, are spoken by hypercorn's protocols
(`hypercorn.tcp_server`).

A client that closes its sending side is taken to be gone (`ServerLimits.answer_half_closed` changes that).
"""

from smg_trio.http.asgi import App, Message, Receive, Scope, Send
from smg_trio.http.client_connection import ClientGone
from smg_trio.http.faults import RequestFault, RequestTooLarge
from smg_trio.http.h1.exchange import CANCEL_ON_DISCONNECT, WRITE_BODY
from smg_trio.http.listener import (
    ALPN_PROTOCOLS,
    RunningServer,
    SslContext,
    open_listeners,
    serve,
)
from smg_trio.http.settings import ServerLimits
from smg_trio.http.shutdown import Shutdown
from smg_trio.http.statistics import ServerStatistics

__all__ = [
    "ALPN_PROTOCOLS",
    "CANCEL_ON_DISCONNECT",
    "WRITE_BODY",
    "App",
    "ClientGone",
    "Message",
    "Receive",
    "RequestFault",
    "RequestTooLarge",
    "RunningServer",
    "Scope",
    "Send",
    "ServerLimits",
    "ServerStatistics",
    "Shutdown",
    "SslContext",
    "open_listeners",
    "serve",
]
