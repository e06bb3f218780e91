"""One line per request, when its answer has ended: what was asked, what it cost, how it went. Never what was said.

Logger ``smg_trio.access``, level info; answers of probes that went well are at debug. The line is one of the observers
of its request: nothing is done per token, and nothing at all if the line is not logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import trio

from smg_trio.core.log_context import request_id, trace_id
from smg_trio.gateway.observability.logs import quoted, shown
from smg_trio.gateway.observability.observer import CLIENT_LEFT, Generation, RequestObserver

if TYPE_CHECKING:
    from smg_trio.core.errors import SmgError
    from smg_trio.core.events import Usage

logger = logging.getLogger("smg_trio.access")

_MAX_PATH_CHARS: Final = 200


class AccessLine(RequestObserver):
    """One request on its way to its line, which is written once, when the response is over."""

    __slots__ = (
        "_client_left",
        "_duration_s",
        "_error",
        "_first_output_at",
        "_key",
        "_method",
        "_model",
        "_public",
        "_route",
        "_started",
        "_status",
        "_streaming",
        "_usage",
        "_worker_urls",
        "_written",
    )

    def __init__(self, method: str, route: str, *, public: bool = False) -> None:
        self._method = method
        self._route = route
        self._public = public
        self._started = trio.current_time()
        self._written = False
        self._duration_s = 0.0
        self._status = 0
        self._client_left = False
        self._key = ""
        self._model = ""
        self._streaming = False
        self._first_output_at: float | None = None
        self._usage: Usage | None = None
        self._worker_urls: Collection[str] = ()
        self._error = ""

    def authenticated(self, key_name: str) -> None:
        """See `RequestObserver`."""
        self._key = key_name

    def generation_begins(self, generation: Generation) -> None:
        """See `RequestObserver`."""
        self._model, self._streaming = generation.answer.model_id, generation.streaming

    def first_output(self, now: float) -> None:
        """See `RequestObserver`."""
        self._first_output_at = self._first_output_at or now

    def generation_failed(self, generation: Generation, error: SmgError) -> None:
        """See `RequestObserver`."""
        self._error = error.code

    def generation_ended(self, generation: Generation, usage: Usage, worker_urls: Collection[str], now: float) -> None:
        """See `RequestObserver`."""
        # Of a response that called tools, there is one generation after the other.
        if generation.answer.usage_known:
            self._usage = usage if self._usage is None else self._usage.plus(usage)
        self._worker_urls = {*self._worker_urls, *worker_urls}

    def answered(self, status: int, code: str) -> None:
        """See `RequestObserver`."""
        self._status = status
        if code:
            self._error = code

    def client_left(self) -> None:
        """See `RequestObserver`. What the generation failed with before, if it did, stays the error."""
        self._status = CLIENT_LEFT
        self.ended(complete=False)

    def ended(self, complete: bool) -> None:
        """See `RequestObserver`: write the line."""
        if self._written:
            return
        self._written = True
        self._client_left = not complete
        level = logging.DEBUG if self._public and self._status < 400 else logging.INFO
        if logger.isEnabledFor(level):
            self._duration_s = trio.current_time() - self._started
            logger.handle(_record(level, f"{self._method} {self._route} {self._status}", self))

    def members(self) -> str:
        """See `logs.Fields`."""
        line = f'"method": {quoted(self._method)}, "route": {quoted(self._route)}, "status": {self._status}'
        if self._key:
            line += f', "key": {quoted(self._key)}'
        if self._model:
            line += f', "model": {quoted(self._model)}, "streaming": {"true" if self._streaming else "false"}'
        if self._usage is not None:
            line += (
                f', "prompt_tokens": {self._usage.prompt_tokens}, "completion_tokens": {self._usage.completion_tokens}'
            )
        if self._first_output_at is not None:
            line += f', "ttft_s": {self._first_output_at - self._started:.6f}'
        if self._worker_urls:
            line += f', "worker": {quoted(self._workers())}'
        if self._error:
            line += f', "error": {quoted(self._error)}'
        left = "true" if self._client_left else "false"
        return f'{line}, "duration_s": {self._duration_s:.6f}, "client_left": {left}'

    def words(self) -> str:
        """See `logs.Fields`; the message says method, route and status, and what is not so is left out."""
        words = f" duration={self._duration_s:.4f}s"
        if self._first_output_at is not None:
            words += f" ttft={self._first_output_at - self._started:.4f}s"
        if self._usage is not None:
            words += f" tokens={self._usage.prompt_tokens}+{self._usage.completion_tokens}"
        if self._model:
            words += f" model={shown(self._model)} stream" if self._streaming else f" model={shown(self._model)}"
        if self._worker_urls:
            words += f" worker={shown(self._workers())}"
        if self._key:
            words += f" key={shown(self._key)}"
        if self._error:
            words += f" error={self._error}"
        return words + " client left" if self._client_left else words

    def _workers(self) -> str:
        urls = self._worker_urls
        return next(iter(urls)) if len(urls) == 1 else ",".join(sorted(urls))


_BLANK: Final = logging.LogRecord(logger.name, logging.INFO, __file__, 0, "", (), None, "end").__dict__


def _record(level: int, message: str, fields: AccessLine) -> logging.LogRecord:
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


def shown_path(path: str) -> str:
    """A client's own word for a path, fit for a line of the log."""
    return quote(path[:_MAX_PATH_CHARS], safe="/:@!$&'()*+,;=~")


class AccessLog:
    """Begins access lines, if anybody wants to see them."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def begin(self, method: str, route: str, *, public: bool = False) -> AccessLine | None:
        """A request has come. None if it will have no line."""
        if self._enabled and logger.isEnabledFor(logging.INFO):
            return AccessLine(method, route, public=public)
        return None

    def refused(self, method: str, path: str, status: int, code: str, named: str) -> None:
        """Log a request, of the id `named`, that was answered without reaching an endpoint.

        `code` says why if it is an error. The path is the client's own word, so it is quoted.
        """
        request_id.set(named)
        trace_id.set("")
        line = self.begin(method, shown_path(path))
        if line is not None:
            line.answered(status, code)
            line.ended(complete=True)
        request_id.set("")
