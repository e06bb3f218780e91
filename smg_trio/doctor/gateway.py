"""The running gateway's own word on whether it is ready."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any

from smg_trio.doctor.findings import Check, Finding, Status
from smg_trio.gateway.security.exposure import is_everywhere

if TYPE_CHECKING:
    from smg_trio.settings.settings import Settings

_LIMIT_S = 5.0


def read_readiness(settings: Settings) -> tuple[int, dict[str, Any]] | str:
    """Ask the gateway of these settings: status and body of ``/readiness``, or why there is none. Blocking, 5 s."""
    host = "127.0.0.1" if settings.host == "*" or is_everywhere(settings.host) else settings.host
    try:
        connection = _connection(settings, host)
        try:
            connection.request("GET", "/readiness")
            response = connection.getresponse()
            body = json.loads(response.read())
            return (response.status, body) if isinstance(body, dict) else "the answer is no JSON object"
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"


def _connection(settings: Settings, host: str) -> http.client.HTTPConnection:
    if settings.tls_cert_path is None:
        return http.client.HTTPConnection(host, settings.port, timeout=_LIMIT_S)
    # It may be known by another name, and signed by an authority that is not known here; nothing is sent that matters.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, settings.port, timeout=_LIMIT_S, context=context)


def check_readiness(address: str, answer: tuple[int, dict[str, Any]] | str) -> Finding:
    """What the answer means. Pure."""
    subject = f"{address} /readiness"
    if isinstance(answer, str):
        remedy = "Look at the gateway's log; with --tls-client-ca-path nobody without a certificate can ask."
        return Finding(Check.GATEWAY, Status.WARNING, subject, f"no answer that can be read ({answer})", remedy)
    status, body = answer
    workers = f"{body.get('healthy_workers', '?')} of {body.get('total_workers', '?')} workers"
    if status == 200:
        return Finding(Check.GATEWAY, Status.OK, subject, f"ready, {workers}")
    reason = ": ".join(str(body[name]) for name in ("reason", "detail") if body.get(name)) or f"status {status}"
    remedy = "See docs/troubleshooting.md for this reason; `smg-trio top` and /workers say more."
    return Finding(Check.GATEWAY, Status.PROBLEM, subject, f"not ready: {reason} ({workers}).", remedy)
