"""Which headers go on: a client's to a worker, a worker's to the client. Pure.

Nothing goes to a worker but what is named here or by the operator, and never what a client authenticates itself with:
the worker has a key of its own. From a worker all goes to the client but what belongs to the connection, what only this
gateway may say, and what is about this gateway's own key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

HOPS: Final = "x-smg-hops"
"""How many gateways a request has gone through."""
MAX_HOPS: Final = 3
_ALWAYS: Final = ("content-type", "accept", "anthropic-version", "anthropic-beta", "x-data-parallel-rank")
_TRACE: Final = ("traceparent", "tracestate")
_HOP_BY_HOP: Final = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "content-length",
    }
)  # fmt: skip
_OURS: Final = frozenset({"server", "date", "x-request-id", "alt-svc", "strict-transport-security", "www-authenticate"})
_OUR_PREFIXES: Final = ("x-smg-", "x-ratelimit-", "anthropic-ratelimit-", "access-control-")


def hops_of(headers: Mapping[str, str]) -> int:
    """How many gateways a request has gone through before this one; 0 for what is no small number."""
    text = headers.get(HOPS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0


def request_headers(
    headers: Mapping[str, str],
    *,
    request_id: str,
    routing_key: str | None,
    trace: Mapping[str, str] | None,
    further: Collection[str] = (),
) -> list[tuple[str, str]]:
    """What a worker is sent of a request, without the worker's key.

    Args:
        headers: the client's, by lower-case name.
        request_id: that of this gateway.
        routing_key: the client's session.
        trace: this gateway's trace context; None where it traces nothing, and the client's own goes on.
        further: names in lower case that the operator adds.
    """
    found = {name: headers[name] for name in (*_ALWAYS, *further) if name in headers}
    found |= {name: headers[name] for name in _TRACE if name in headers} if trace is None else trace
    found["accept-encoding"] = "identity"  # what is read for its usage must not be compressed
    if request_id:
        found["x-request-id"] = request_id
    if routing_key is not None:
        found["x-smg-routing-key"] = routing_key
    found[HOPS] = str(hops_of(headers) + 1)
    return [(name, value) for name, value in found.items() if "\r" not in value and "\n" not in value]


def response_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What the client is sent of a worker's response headers; repeated ones stay repeated."""
    pairs = list(headers)
    named = {one.strip().lower() for name, value in pairs if name == "connection" for one in value.split(",")}
    return [
        (name, value)
        for name, value in pairs
        if name not in _HOP_BY_HOP and name not in _OURS and name not in named and not name.startswith(_OUR_PREFIXES)
    ]
