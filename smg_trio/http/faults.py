"""What goes wrong with a request before the app has it, or while its body is read. Pure.

A protocol says what went wrong: it raises a `RequestFault`, whose class holds status and code. How the answer looks is
for the owner of the responses to say, who is told of every answer too: see `FaultAnswers`, and `serve`. The connection
is closed after it, because after any of these the server no longer knows where the next request would begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from smg_trio.core.errors import ClientFault, SmgError

if TYPE_CHECKING:
    from smg_trio.http.asgi import Headers


class RequestFault(ClientFault):
    """The request breaks HTTP framing or syntax."""

    code = "bad_request"


class RequestTimeout(RequestFault):
    """The request's head or body did not arrive in time."""

    code = "request_timeout"
    status = 408


class RequestTooLarge(RequestFault):
    """The request body is larger than the server takes."""

    code = "request_too_large"
    status = 413

    def __init__(self, max_body_bytes: int, when: str = "") -> None:
        super().__init__(f"The request body is larger than {max_body_bytes} bytes{when}.")


class ExpectationFailed(RequestFault):
    """An ``Expect`` header other than ``100-continue``."""

    code = "expectation_failed"
    status = 417


class WebSocketVersionRefused(RequestFault):
    """A WebSocket handshake of a version other than 13."""

    code = "websocket_version_not_supported"
    status = 426
    headers = MappingProxyType({"sec-websocket-version": "13", "upgrade": "websocket"})


class HeadersTooLarge(RequestFault):
    """The request head has too many bytes or lines."""

    code = "headers_too_large"
    status = 431


class MethodNotAllowed(RequestFault):
    """The path exists for other methods, or no path allows the method."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, message: str, allowed: Sequence[str]) -> None:
        super().__init__(message)
        self.headers = {"allow": ", ".join(allowed)}


class MethodUnknown(RequestFault):
    """A method or transfer coding this server does not implement."""

    code = "not_implemented"
    status = 501


class TooManyConnections(RequestFault):
    """The connection cap is reached."""

    code = "too_many_connections"
    status = 503
    retryable = True


class VersionUnsupported(RequestFault):
    """Neither HTTP/1.0 nor HTTP/1.1."""

    code = "http_version_not_supported"
    status = 505


class AppFailed(SmgError):
    """The app raised, or returned without an answer."""

    def __init__(self) -> None:
        super().__init__("The server had an error while processing the request.")


@dataclass(frozen=True, slots=True)
class PartialRequest:
    """As much as was read of a request that the app does not answer; nothing of it has to be valid.

    Attributes:
        method: ``WEBSOCKET`` for a WebSocket handshake; empty if it was not read.
        path: empty if it was not read.
        headers: lower-case names.
    """

    method: str = ""
    path: str = ""
    headers: Sequence[tuple[bytes, bytes]] = ()


NOTHING_READ: Final = PartialRequest()


class FaultAnswer(NamedTuple):
    """The answer to a fault. Its headers say nothing of length, date and connection."""

    status: int
    headers: Headers
    body: bytes


AnswerFault = Callable[[SmgError, PartialRequest], FaultAnswer]
OnFault = Callable[[SmgError, PartialRequest, FaultAnswer], None]


def plain_answer(fault: SmgError, request: PartialRequest) -> FaultAnswer:  # noqa: ARG001 - see `AnswerFault`
    """The fault's message as plain text, for a server whose owner has nothing better to say."""
    headers = [(name.encode(), value.encode()) for name, value in fault.headers.items()]
    headers.append((b"content-type", b"text/plain; charset=utf-8"))
    return FaultAnswer(fault.status, headers, fault.message.encode())


def tell_nobody(fault: SmgError, request: PartialRequest, answer: FaultAnswer) -> None:
    """For a server whose owner does not care."""


class FaultAnswers:
    """Makes the answers to one server's faults, and counts them.

    Attributes:
        count: how many there were.
    """

    __slots__ = ("_answer", "_on_fault", "count")

    def __init__(self, answer: AnswerFault = plain_answer, on_fault: OnFault = tell_nobody) -> None:
        self._answer = answer
        self._on_fault = on_fault
        self.count = 0

    def to(self, fault: SmgError, request: PartialRequest) -> FaultAnswer:
        """The answer to `fault`, which is about to be given."""
        self.count += 1
        answer = self._answer(fault, request)
        self._on_fault(fault, request, answer)
        return answer
