"""The Responses API over HTTP: create (in one piece, streamed, in the background), get, cancel, delete, list input."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from secrets import token_hex
from typing import TYPE_CHECKING

import trio

from smg_trio.api.openai.responses.fold import ResponseFold
from smg_trio.api.openai.responses.request import parse_responses_request
from smg_trio.api.openai.responses.stored import (
    cancelled,
    page_body,
    parse_page,
    response_body,
    response_deleted_body,
    response_not_found,
)
from smg_trio.api.openai.responses.stream import ResponseEventWriter
from smg_trio.core.conversations import StoredResponse
from smg_trio.gateway.endpoints.chat import SSE_HEADERS
from smg_trio.gateway.generation.engine_hints import engine_hints
from smg_trio.gateway.generation.responses_run import ResponsesRun, needs_history
from smg_trio.gateway.generation.session import fold_answer
from smg_trio.gateway.generation.stream import GenerationStream, StreamStyle
from smg_trio.gateway.generation.tool_stream import ToolStream
from smg_trio.gateway.http import Request, Response, json_response
from smg_trio.gateway.response_ids import id_in_use

if TYPE_CHECKING:
    from smg_trio.core.events import Usage
    from smg_trio.gateway.request_context import RequestContext
    from smg_trio.gateway.state import Gateway


async def create_response(gateway: Gateway, request: Request) -> Response:
    """Create a response, in one piece, as server-sent events, or in the background."""
    gateway.refuse_if_draining()
    asked = await gateway.parse_body(request, parse_responses_request, gateway.limits)
    response_id = asked.request_id or f"resp_{token_hex(16)}"
    with ExitStack() as held:
        held.enter_context(gateway.response_ids.claim(response_id))
        if asked.request_id is not None:
            held.callback(await gateway.sharing.claim_response(response_id))
            await _refuse_kept(gateway, response_id)
        run = await ResponsesRun.prepare(
            gateway,
            asked,
            response_id,
            context=request.context,
            started=trio.current_time(),
            routing_key=gateway.routing_key(request.headers),
            hints=engine_hints(gateway, request),
        )
        if asked.background:
            needs_history(gateway)
            return await _in_background(gateway, request.context, run, held)
        if asked.stream:
            return await (_streamed_with_tools(gateway, run, held) if run.servers else _streamed(run, held))
        fold = ResponseFold(run.shown)
        if run.servers:
            return await _with_tools(run, fold)
        body = await fold_answer(run.begin(), fold)
        if not await run.keep(fold.response(run.usage())):
            fold.not_stored()
            body = fold.body(run.usage())
        return json_response(body)


async def _with_tools(run: ResponsesRun, fold: ResponseFold) -> Response:
    usage = await run.call_tools(fold)
    if not await run.keep(fold.response(usage)):
        fold.not_stored()
    return json_response(fold.body(usage))


async def _refuse_kept(gateway: Gateway, response_id: str) -> None:
    """Raises Conflict if a response with that id is kept for any key holder."""
    if gateway.history is not None and await gateway.history.has_response(response_id):
        raise id_in_use(response_id)


async def _streamed(run: ResponsesRun, held: ExitStack) -> Response:
    """`held` is closed with the stream."""
    writer = ResponseEventWriter(run.shown)
    session = run.begin()

    async def keep() -> None:
        if not await run.keep(writer.response(session.answer.usage())):
            writer.not_stored()

    style = StreamStyle(failed=functools.partial(writer.failed, usage=None), done=b"", usage_at_end=True)
    stream = GenerationStream(session, writer, style, before_end=keep, on_close=held.pop_all().close)
    await stream.start(writer.head())
    return Response(200, stream, list(SSE_HEADERS))


async def _streamed_with_tools(gateway: Gateway, run: ResponsesRun, held: ExitStack) -> Response:
    """`held` is closed with the stream."""
    writer = ResponseEventWriter(run.shown)

    async def keep(usage: Usage) -> None:
        if not await run.keep(writer.response(usage)):
            writer.not_stored()

    work = functools.partial(run.call_tools, writer)
    on_close = held.pop_all().close
    stream = ToolStream(gateway, f"stream of {run.response_id}", work, writer, before_end=keep, on_close=on_close)
    await stream.start(writer.head())
    return Response(200, stream, list(SSE_HEADERS))


async def _in_background(gateway: Gateway, context: RequestContext, run: ResponsesRun, held: ExitStack) -> Response:
    """`held` is closed when the response has ended."""
    run.check_budget()
    fold = ResponseFold(run.shown)
    queued = run.unfinished("queued")
    await run.keep(queued)
    if context.slot is not None:
        held.enter_context(context.slot.hold())
    until_its_end = held.pop_all()

    async def answer() -> None:
        with until_its_end:
            await run.run_in_background(fold)

    gateway.background.start(run.response_id, answer, owner=run.owner)
    return json_response(response_body(StoredResponse(response_id=run.response_id, value=queued)))


async def get_response(gateway: Gateway, request: Request) -> Response:
    """Show a stored response."""
    return json_response(response_body(await _kept(gateway, request)))


async def cancel_response(gateway: Gateway, request: Request) -> Response:
    """Cancel a response in the background; its engine requests are aborted, if this gateway has sent them."""
    response = cancelled(await _kept(gateway, request))
    await gateway.background.end(response.response_id)
    if not await needs_history(gateway).update_response(response):
        response = await _kept(gateway, request)  # it has ended, perhaps only just
    return json_response(response_body(response))


async def delete_response(gateway: Gateway, request: Request) -> Response:
    """Delete a stored response; one that is still being generated is cancelled."""
    response = await _kept(gateway, request)
    await gateway.background.end(response.response_id)
    await needs_history(gateway).delete_response(response.response_id, response.owner)
    return json_response(response_deleted_body(response.response_id))


async def list_input_items(gateway: Gateway, request: Request) -> Response:
    """List a response's input items, a page at a time."""
    response = await _kept(gateway, request)
    return json_response(page_body(list(response.input_items), parse_page(request.query)))


async def _kept(gateway: Gateway, request: Request) -> StoredResponse:
    response_id = request.path_parameters["response_id"]
    response = await needs_history(gateway).get_response(response_id, gateway.keys.owner(request.context.holder))
    if response is None:
        raise response_not_found(response_id)
    return response
