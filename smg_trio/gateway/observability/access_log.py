"""One line per request, when its answer has ended: what was asked, what it cost, how it went. Never what was said.

Logger ``smg_trio.access``, level info; answers of probes that went well are at debug. A request is followed by one
small object, which the answer fills in at its beginning, at its first output and at its end: nothing is done per token,
and nothing at all if nobody would see the line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from contextvars import ContextVar
from typing import Final
from urllib.parse import quote

import trio

from smg_trio.core.events import Usage
from smg_trio.core.log_context import request_id, trace_id
from smg_trio.gateway.http import Response
from smg_trio.gateway.observability.logs import quoted, shown

logger = logging.getLogger("smg_trio.access")

CLIENT_LEFT: Final = 499
"""Status of a request whose client left before there was one."""
_MAX_PATH_CHARS: Final = 200


class Access:
    """One request on its way to its line.

    Attributes:
        model: what answers, if it came to that.
        key: whose key it came with, by name.
        streaming: whether the answer is a stream.
        first_output: when the engine was first heard, on the loop's clock.
        error: code of what ended the answer.
        status, client_left: how it went, once it has ended.
    """

    __slots__ = (
        "_duration_s",
        "_ended",
        "_method",
        "_public",
        "_route",
        "_started",
        "client_left",
        "error",
        "first_output",
        "key",
        "model",
        "status",
        "streaming",
        "usage",
        "worker_urls",
    )

    def __init__(self, method: str, route: str, *, public: bool = False) -> None:
        self._method = method
        self._route = route
        self._public = public
        self._started = trio.current_time()
        self._ended = False
        self._duration_s = 0.0
        self.status = 0
        self.client_left = False
        self.key = ""
        self.model = ""
        self.streaming = False
        self.first_output: float | None = None
        self.usage: Usage | None = None
        self.worker_urls: Collection[str] = ()
        self.error = ""

    def answer_ended(self, usage: Usage, worker_urls: Collection[str]) -> None:
        """What the answer came to."""
        self.usage, self.worker_urls = usage, worker_urls

    def follow(self, response: Response, error: str) -> None:
        """Write the line when `response` has been given: at once, or at the end of a stream."""
        if error:
            self.error = error
        if isinstance(response.body, bytes):
            self.end(response.status)
        else:
            status = response.status
            response.on_end = lambda complete: self.end(status, client_left=not complete)

    def end(self, status: int, *, client_left: bool = False) -> None:
        """Write the line; once."""
        if self._ended:
            return
        self._ended = True
        self.status, self.client_left = status, client_left
        level = logging.DEBUG if self._public and status < 400 else logging.INFO
        if logger.isEnabledFor(level):
            self._duration_s = trio.current_time() - self._started
            logger.handle(_record(level, f"{self._method} {self._route} {status}", self))

    def members(self) -> str:
        """See `logs.Fields`."""
        line = f'"method": {quoted(self._method)}, "route": {quoted(self._route)}, "status": {self.status}'
        if self.key:
            line += f', "key": {quoted(self.key)}'
        if self.model:
            line += f', "model": {quoted(self.model)}, "streaming": {"true" if self.streaming else "false"}'
        if self.usage is not None:
            line += (
                f', "prompt_tokens": {self.usage.prompt_tokens}, "completion_tokens": {self.usage.completion_tokens}'
            )
        if self.first_output is not None:
            line += f', "ttft_s": {self.first_output - self._started:.6f}'
        if self.worker_urls:
            line += f', "worker": {quoted(self._workers())}'
        if self.error:
            line += f', "error": {quoted(self.error)}'
        left = "true" if self.client_left else "false"
        return f'{line}, "duration_s": {self._duration_s:.6f}, "client_left": {left}'

    def words(self) -> str:
        """See `logs.Fields`; the message says method, route and status, and what is not so is left out."""
        words = f" duration={self._duration_s:.4f}s"
        if self.first_output is not None:
            words += f" ttft={self.first_output - self._started:.4f}s"
        if self.usage is not None:
            words += f" tokens={self.usage.prompt_tokens}+{self.usage.completion_tokens}"
        if self.model:
            words += f" model={shown(self.model)} stream" if self.streaming else f" model={shown(self.model)}"
        if self.worker_urls:
            words += f" worker={shown(self._workers())}"
        if self.key:
            words += f" key={shown(self.key)}"
        if self.error:
            words += f" error={self.error}"
        return words + " client left" if self.client_left else words

    def _workers(self) -> str:
        urls = self.worker_urls
        return next(iter(urls)) if len(urls) == 1 else ",".join(sorted(urls))


_BLANK: Final = logging.LogRecord(logger.name, logging.INFO, __file__, 0, "", (), None, "end").__dict__


def _record(level: int, message: str, fields: Access) -> logging.LogRecord:
    """A record as `Logger.info` makes one, at a fifth of the cost: what is the same in all of them is copied."""
    now = time.time()
    record = logging.LogRecord.__new__(logging.LogRecord)
    record.__dict__.update(
        _BLANK,
        levelno=level,
        levelname=logging.getLevelName(level),
        msg=message,
        created=now,
        msecs=now % 1 * 1000,
        fields=fields,
    )
    return record


current: Final[ContextVar[Access | None]] = ContextVar("access", default=None)
"""That of the request being handled."""


def shown_path(path: str) -> str:
    """A client's own word for a path, fit for a line of the log."""
    return quote(path[:_MAX_PATH_CHARS], safe="/:@!$&'()*+,;=~")


class AccessLog:
    """Begins accesses, if anybody wants to see their lines."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def begin(self, method: str, route: str, *, public: bool = False) -> Access | None:
        """A request has come; it becomes the current one. None if it will have no line."""
        access = None
        if self._enabled and logger.isEnabledFor(logging.INFO):
            access = Access(method, route, public=public)
        current.set(access)
        return access

    def refused(self, method: str, path: str, status: int, code: str, named: str) -> None:
        """A request with the id `named` was answered without reaching an endpoint, `code` says why if it is an error;
        its path is the client's own word, so it is quoted."""
        request_id.set(named)
        trace_id.set("")
        access = self.begin(method, shown_path(path))
        if access is not None:
            access.error = code
            access.end(status)
        request_id.set("")
