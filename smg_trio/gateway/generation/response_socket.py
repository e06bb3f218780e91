"""The Responses API over a WebSocket: several turns on one connection, one at a time, each streamed as messages.

A turn may go on from one of this connection's own responses although it is not stored (``store: false``): the
connection remembers them until it closes. ``response.cancel`` ends the turn in progress. Faults are events; the
connection stays, unless the key is no longer in force when a turn begins. When the gateway drains, the turn in progress
may end first. A turn with ``generate: false`` only checks and remembers its input, so that the next one can go on from
it.

Each turn is a request of its own in the access log and in traces, with an id of its own; the trace context of the
handshake is their parent.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Final

import trio

from smg_trio.api.errors import error_view
from smg_trio.api.openai.responses.socket import SocketMessage, parse_socket_message, socket_error
from smg_trio.api.openai.responses.stream import ResponseEventWriter
from smg_trio.core.errors import Conflict, Forbidden, SmgError, Unauthorized, UnsupportedFeature
from smg_trio.core.events import NO_TOKENS, Usage
from smg_trio.core.heavy_json import weight
from smg_trio.core.log_context import request_id, trace_id
from smg_trio.core.random_digits import random_digits
from smg_trio.gateway.close_codes import CLOSE_LIMIT_S, GOING_AWAY, UNAUTHORIZED
from smg_trio.gateway.generation.responses_run import ResponsesRun
from smg_trio.gateway.http import WEBSOCKET
from smg_trio.gateway.request_context import RequestContext
from smg_trio.gateway.security.key_ring import KeyHolder
from smg_trio.pipeline.prepare import NO_HINTS, EngineHints
from smg_trio.text.tokenizer import INLINE_ENCODE_CHARS

if TYPE_CHECKING:
    from smg_trio.core.conversations import StoredResponse
    from smg_trio.gateway.state import Gateway

logger = logging.getLogger("smg_trio.gateway")

ROUTE: Final = "/v1/responses"
_REMEMBERED = 1000
"""Responses a connection remembers; a turn that goes on from an older one must have stored it."""
_REMEMBERED_WEIGHT = 32_000_000
"""Characters of them all, each value counted as eight more; the oldest are forgotten beyond."""

Admit = Callable[[], Awaitable[KeyHolder]]
Receive = Callable[[], Awaitable[str | bytes]]
Send = Callable[[str], Awaitable[None]]


class ResponseSocket:
    """One connection. `run` it until the client leaves; leaving cancels the turn in progress."""

    def __init__(
        self, gateway: Gateway, admit: Admit, receive: Receive, send: Send, headers: Mapping[str, str]
    ) -> None:
        """Make it of an accepted connection.

        Args:
            gateway: whose models answer.
            admit: whose key the connection came with, by the keys in force; raises Unauthorized or Forbidden.
            receive, send: messages.
            headers: of the handshake, by lower-case name.
        """
        self._gateway = gateway
        self._admit = admit
        self._receive = receive
        self._send = send
        self._headers = headers
        self._remembered: dict[str, StoredResponse] = {}
        self._weights: dict[str, int] = {}
        self._turn: trio.CancelScope | None = None
        self._turn_ended = trio.Event()
        self._cancelled = False
        self._answering = False
        self._refusal: Unauthorized | Forbidden | None = None

    async def run(self) -> tuple[int, str]:
        """Take messages until the gateway drains and no turn is in progress, or the key is not in force any more.

        Returns the code and reason to close the connection with. Ends earlier by cancellation, or by what `receive`
        raises when the client has gone.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave_when_drained, nursery.cancel_scope)
            while self._refusal is None:
                raw = await self._receive()
                await self._take(raw.encode() if isinstance(raw, str) else raw, nursery)
            nursery.cancel_scope.cancel()
        return (GOING_AWAY, "the gateway shuts down") if self._refusal is None else (UNAUTHORIZED, self._refusal.code)

    async def _leave_when_drained(self, scope: trio.CancelScope) -> None:
        await self._gateway.wait_draining()
        while self._turn is not None:
            await self._turn_ended.wait()
        scope.cancel()

    async def _take(self, raw: bytes, nursery: trio.Nursery) -> None:
        stream_id = None
        try:
            message = await self._gateway.preparer.read(raw, parse_socket_message)
            stream_id = message.stream_id
            if message.kind == "response.cancel":
                self._cancel()
                return
            holder = await self._admit()
            if self._turn is not None:
                raise Conflict("a response is in progress on this connection; wait for its end or cancel it")
            self._turn = trio.CancelScope()
            nursery.start_soon(self._run_turn, message, holder, self._turn)
        except (Unauthorized, Forbidden) as error:
            with trio.move_on_after(CLOSE_LIMIT_S):
                await self._send_bytes(socket_error(error, stream_id))
            self._refusal = error
        except SmgError as error:
            await self._send_bytes(socket_error(error, stream_id))

    def _cancel(self) -> None:
        if self._turn is None:
            raise Conflict("no response is in progress on this connection")
        self._cancelled = True
        self._turn.cancel()

    async def _run_turn(self, message: SocketMessage, holder: KeyHolder, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self._answer_observed(message, holder)
            if self._cancelled:
                cancelled = Conflict("the response was cancelled")
                await self._send_bytes(socket_error(cancelled, message.stream_id))
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            raise  # the client has gone
        except Exception as error:
            if not isinstance(error, SmgError):
                logger.exception("a turn on a Responses WebSocket failed")
            self._gateway.errors.note(error, "responses", request_id.get())
            await self._send_bytes(socket_error(error, message.stream_id))
        finally:
            self._turn, self._cancelled = None, False
            self._turn_ended.set()
            self._turn_ended = trio.Event()

    async def _answer_observed(self, message: SocketMessage, holder: KeyHolder) -> None:
        context = self._begin(holder)
        observer = context.observer
        try:
            await self._answer_within_limits(message, context)
        except (trio.Cancelled, OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            if self._answering:
                observer.ended(complete=False)
            else:
                observer.client_left()
            raise
        except Exception as error:
            view = error_view(error)
            observer.answered(view.status, view.code)
            observer.ended(complete=True)
            raise
        observer.ended(complete=True)

    def _begin(self, holder: KeyHolder) -> RequestContext:
        """Put together who hears of a turn."""
        gateway, self._answering = self._gateway, False
        context = RequestContext(f"req-{random_digits(24)}", holder=holder, key_name=holder.name)
        request_id.set(context.request_id)
        line = gateway.access.begin(WEBSOCKET, ROUTE)
        if line is not None:
            context.observer.add(line)
        if gateway.tracing is not None:
            context.trace = gateway.tracing.begin(WEBSOCKET, ROUTE, ROUTE, self._headers, context.request_id)
            context.observer.add(context.trace)
        trace_id.set("" if context.trace is None else context.trace.trace_id)
        if holder.name:
            context.authenticated(holder.name)
        gateway.account(context)
        return context

    async def _answer_within_limits(self, message: SocketMessage, context: RequestContext) -> None:
        if not context.holder.limits:
            await self._answer(message, context)
            return
        with await self._gateway.sharing.key_slot(self._gateway.meters, context.holder) as slot:
            context.take(slot)
            await self._answer(message, context)

    async def _answer(self, message: SocketMessage, context: RequestContext) -> None:
        started = trio.current_time()
        self._gateway.refuse_if_draining()
        body, routing_key = await self._gateway.show_hooks(context, message.body, ROUTE, self._headers)
        message = replace(message, body=body)
        asked = await self._gateway.preparer.off_loop_if_long(
            weight(message.body, INLINE_ENCODE_CHARS), functools.partial(message.request, self._gateway.limits)
        )
        self._refuse_behind_http(asked.base.model)
        run = await ResponsesRun.prepare(
            self._gateway,
            asked,
            f"resp_{token_hex(16)}",
            context=context,
            started=started,
            local=self._remembered,
            routing_key=routing_key,
            hints=NO_HINTS if context.trace is None else EngineHints(context.trace.headers(), None),
        )
        writer = ResponseEventWriter(run.shown, as_messages=True, stream_id=message.stream_id)
        if not asked.generate:
            self._answered(context)
            writer.end_without_output()
            await self._end(run, writer, NO_TOKENS, writer.head())
            return
        if run.servers:
            await self._answer_with_tools(run, writer, context)
            return
        session = run.begin()
        try:
            self._answered(context)
            await self._send_lines(writer.head())
            while not session.answer.finished:
                for update in await session.next_updates():
                    await self._send_lines(writer.update(update))
            await self._end(run, writer, session.answer.usage())
        except SmgError as error:
            await self._send_lines(writer.failed(error))
        finally:
            session.close()

    async def _answer_with_tools(self, run: ResponsesRun, writer: ResponseEventWriter, context: RequestContext) -> None:
        self._answered(context)
        await self._send_lines(writer.head())
        try:
            usage = await run.call_tools(writer, self._send_lines)
            await self._end(run, writer, usage)
        except SmgError as error:
            await self._send_lines(writer.failed(error))

    def _answered(self, context: RequestContext) -> None:
        self._answering = True
        context.observer.answered(200, "")

    def _refuse_behind_http(self, model: str) -> None:
        """Raises UnsupportedFeature for a model that only workers behind HTTP serve."""
        registry = self._gateway.registry
        if registry.http.workers(model) and model not in self._gateway.catalog.names():
            raise UnsupportedFeature(
                f"The model `{model}` is served behind HTTP, where no WebSocket is relayed to; use POST /v1/responses.",
                param="model",
            )

    async def _end(self, run: ResponsesRun, writer: ResponseEventWriter, usage: Usage, head: bytes = b"") -> None:
        """Keep the response, so that a turn may go on from it, and write what ends its events."""
        if not await run.keep(writer.response(usage)):
            writer.not_stored()
        self._remember(run.stored(writer.response(usage)))
        await self._send_lines(head + writer.usage_chunk(usage))

    def _remember(self, response: StoredResponse) -> None:
        key = response.response_id
        self._remembered[key] = response
        self._weights[key] = weight([response.value, list(response.input_items)], _REMEMBERED_WEIGHT)
        while len(self._remembered) > _REMEMBERED or sum(self._weights.values()) > _REMEMBERED_WEIGHT:
            oldest = next(iter(self._remembered))
            del self._remembered[oldest], self._weights[oldest]

    async def _send_lines(self, lines: bytes) -> None:
        for line in lines.splitlines():
            await self._send_bytes(line)

    async def _send_bytes(self, message: bytes) -> None:
        await self._send(message.decode())
