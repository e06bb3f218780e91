"""What goes wrong between this gateway and a worker behind HTTP.

Messages name the worker by its id: its URL is the operator's, and errors are shown to clients.
"""

from __future__ import annotations

from smg_trio.core.errors import ClientFault, EngineFault


class UpstreamUnreachable(EngineFault):
    """No connection: refused, unknown host, TLS failure, or none within the limit."""

    code = "upstream_unreachable"
    retryable = True


class UpstreamDisconnected(EngineFault):
    """The connection ended, or what came is no HTTP, before the response had begun."""

    code = "upstream_disconnected"
    retryable = True


class UpstreamTruncated(EngineFault):
    """The response had begun and cannot be read to its end."""

    code = "upstream_truncated"


class UpstreamTimeout(EngineFault):
    """The worker was silent for too long, before its response or in the middle of it."""

    code = "upstream_timeout"
    status = 504


class UpstreamKeyRefused(EngineFault):
    """The worker does not take the key that this gateway has for it: not the client's fault."""

    code = "upstream_key_refused"
    retryable = True


class UpstreamTooLarge(EngineFault):
    """A response that is larger than what is read of one."""

    code = "upstream_too_large"


class UpstreamAnswered(EngineFault):
    """The worker answered with a status that speaks against it (5xx)."""

    code = "upstream_error"


class UpstreamBusy(EngineFault):
    """The worker answered that it does not take the request now (429, 502, 503, 504); another one may."""

    code = "upstream_busy"
    status = 503
    retryable = True


class LoopDetected(ClientFault):
    """The request has gone through more gateways than any sensible chain has."""

    code = "loop_detected"
    status = 508
