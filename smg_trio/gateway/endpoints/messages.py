"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's API."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import trio

from smg_trio.api.anthropic.answer import MessageAnswer
from smg_trio.api.anthropic.errors import messages_error_event
from smg_trio.api.anthropic.fold import MessageFold
from smg_trio.api.anthropic.messages import count_tokens_body, parse_count_tokens_request, parse_messages_request
from smg_trio.api.anthropic.models import ANTHROPIC_MODELS
from smg_trio.api.anthropic.stream import PING, MessageEventWriter
from smg_trio.gateway.endpoints.chat import SSE_HEADERS, response_id
from smg_trio.gateway.generation.engine_hints import engine_hints
from smg_trio.gateway.generation.session import GenerationSession, fold_answer
from smg_trio.gateway.generation.stream import GenerationStream, StreamStyle
from smg_trio.gateway.http import Request, Response, json_response
from smg_trio.pipeline.answer import Answer

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway


async def messages(gateway: Gateway, request: Request) -> Response:
    """Create a message, as Anthropic's API does."""
    started = trio.current_time()
    gateway.refuse_if_draining()
    asked = await gateway.parse_body(request, parse_messages_request, gateway.limits)
    model = gateway.catalog.find(asked.chat.model, stands_in_for=ANTHROPIC_MODELS)
    prepared = await gateway.preparer.chat(
        asked.chat,
        model,
        request_id=response_id("msg_", request, None),
        max_model_len=gateway.context_window(model),
        hints=engine_hints(gateway, request),
    )
    shown = MessageAnswer(
        message_id=prepared.request_id,
        model=asked.chat.model or model.model_id,
        parallel_tool_calls=asked.chat.parallel_tool_calls,
        show_thinking=asked.show_thinking,
    )
    session = GenerationSession(
        gateway,
        request.context,
        Answer([prepared]),
        "messages",
        streaming=asked.chat.stream,
        started=started,
        routing_key=gateway.routing_key(request.headers),
    )
    if not asked.chat.stream:
        return json_response(await fold_answer(session, MessageFold(shown)))
    writer = MessageEventWriter(shown)
    style = StreamStyle(
        failed=functools.partial(messages_error_event, request_id=request.context.request_id),
        done=b"",
        keep_alive=PING,
        usage_at_end=True,
    )
    stream = GenerationStream(session, writer, style)
    await stream.start(writer.head(session.answer.usage()))
    return Response(200, stream, list(SSE_HEADERS))


async def count_tokens(gateway: Gateway, request: Request) -> Response:
    """Count the tokens of a conversation's prompt; no engine is needed."""
    chat = await gateway.parse_body(request, parse_count_tokens_request, gateway.limits)
    model = gateway.catalog.find(chat.model, stands_in_for=ANTHROPIC_MODELS)
    prompt = await gateway.preparer.chat_prompt(chat, model)
    return json_response(count_tokens_body(len(prompt.token_ids)))
