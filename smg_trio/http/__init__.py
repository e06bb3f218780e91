"""The HTTP server under the gateway's app: limits, listeners, an HTTP/1.1 lane of its own, hypercorn for the rest.

`serve` runs an ASGI 3 app (without lifespan) on the sockets of `open_listeners`. Plain HTTP/1.1 is read by the
fast lane (`http1`); WebSocket, HTTP/2 and TLS go to hypercorn's protocols on a hardened TCP server, which is
also the fallback for everything (``lane="hypercorn"``).

A client that closes its sending side is taken to be gone (`ServerLimits.answer_half_closed` changes that).
"""

from smg_trio.http.asgi import App, Message, Receive, Scope, Send
from smg_trio.http.client_connection import ClientGone
from smg_trio.http.faults import RequestFault, RequestTooLarge
from smg_trio.http.h1.exchange import CANCEL_ON_DISCONNECT, WRITE_BODY
from smg_trio.http.listener import (
    ALPN_PROTOCOLS,
    Lane,
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
    "Lane",
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
