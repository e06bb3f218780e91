"""``POST /v1/chat/completions`` and its batch form."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from smg_trio.api.chat_answer import ChatAnswer
from smg_trio.api.openai.chat.fold import ChatFold
from smg_trio.api.openai.chat.request import ChatRequest, parse_chat_request
from smg_trio.api.openai.chat.stream import ChatChunkWriter
from smg_trio.api.openai.chat_batch import parse_chat_batch_request
from smg_trio.api.sse import CONTENT_TYPE
from smg_trio.core.errors import ClientFault
from smg_trio.core.random_digits import random_digits
from smg_trio.gateway.generation.engine_hints import engine_hints
from smg_trio.gateway.generation.session import GenerationSession, fold_answer
from smg_trio.gateway.generation.stream import GenerationStream, StreamStyle, openai_failed
from smg_trio.gateway.http import Request, Response, json_response
from smg_trio.pipeline.answer import Answer

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway
    from smg_trio.pipeline.models import ServedModel
    from smg_trio.pipeline.prepare import PreparedRequest

SSE_HEADERS = [("content-type", CONTENT_TYPE), ("cache-control", "no-cache"), ("x-accel-buffering", "no")]


async def chat_completions(gateway: Gateway, request: Request) -> Response:
    """Create a chat completion, in one piece or as server-sent events."""
    started = trio.current_time()
    gateway.refuse_if_draining()
    chat = await gateway.parse_body(request, parse_chat_request, gateway.limits)
    model = gateway.catalog.find(chat.model)
    prepared = await gateway.preparer.chat(
        chat,
        model,
        request_id=response_id("chatcmpl-", request, chat.request_id),
        max_model_len=gateway.context_window(model),
        hints=engine_hints(gateway, request),
    )
    shown = chat_answer(chat, prepared)
    session = GenerationSession(
        gateway,
        request.context,
        Answer([prepared]),
        "chat",
        streaming=chat.stream,
        started=started,
        routing_key=gateway.routing_key(request.headers),
    )
    if not chat.stream:
        return json_response(await fold_answer(session, ChatFold(shown, n=chat.n)))
    writer = ChatChunkWriter(shown, n=chat.n)
    continuous = chat.include_usage and chat.continuous_usage_stats
    style = StreamStyle(failed=openai_failed, usage_at_end=chat.include_usage, continuous_usage=continuous)
    stream = GenerationStream(session, writer, style)
    usage = session.answer.usage() if continuous else None
    await stream.start(b"".join([writer.head(choice, usage) for choice in range(chat.n)]))
    return Response(200, stream, list(SSE_HEADERS))


async def chat_batch(gateway: Gateway, request: Request) -> Response:
    """Create chat completions for several conversations: one choice for each."""
    started = trio.current_time()
    gateway.refuse_if_draining()
    chats = await gateway.parse_body(request, parse_chat_batch_request, gateway.limits)
    model = gateway.catalog.find(chats[0].model)
    answer_id = response_id("chatcmpl-", request, chats[0].request_id)
    prepared = []
    for index, chat in enumerate(chats):
        prepared.append(await _prepare_conversation(gateway, request, chat, model, answer_id, index))
    shown = replace(chat_answer(chats[0], prepared[0]), response_id=answer_id, prompt_token_ids=(), prompt_text=None)
    session = GenerationSession(
        gateway,
        request.context,
        Answer(prepared),
        "chat",
        streaming=False,
        started=started,
        routing_key=gateway.routing_key(request.headers),
    )
    echoes = [echo_of(chat) for chat in chats]
    return json_response(await fold_answer(session, ChatFold(shown, echoes=echoes)))


async def _prepare_conversation(
    gateway: Gateway, request: Request, chat: ChatRequest, model: ServedModel, answer_id: str, index: int
) -> PreparedRequest:
    """One conversation of a batch. Raises ClientFault, which names it; other tasks get their turn."""
    await trio.lowlevel.checkpoint()
    try:
        return await gateway.preparer.chat(
            chat,
            model,
            request_id=f"{answer_id}-c{index}",
            max_model_len=gateway.context_window(model),
            hints=engine_hints(gateway, request),
        )
    except ClientFault as error:
        # Media are named by their whole path already.
        param = error.param or ""
        if param.startswith("messages") and not param.startswith(f"messages[{index}]["):
            error.param = f"messages[{index}]{param.removeprefix('messages')}"
        raise


def response_id(prefix: str, request: Request, own: str | None) -> str:
    """The answer's id: made of the client's own request id where there is one, else random."""
    if own is None and request.context.named_by_client:
        own = request.context.request_id
    return f"{prefix}{own or random_digits(32)}"


def chat_answer(chat: ChatRequest, prepared: PreparedRequest) -> ChatAnswer:
    """What all chunks of the answer have in common."""
    return ChatAnswer(
        response_id=prepared.request_id,
        model=chat.model or prepared.model.model_id,
        created=int(time.time()),
        named_tool=chat.tool_choice.mode == "named",
        parallel_tool_calls=chat.parallel_tool_calls,
        show_reasoning=chat.include_reasoning or prepared.plan.reasoning_parser is None,
        top_logprobs=chat.top_logprobs,
        tokens_as_ids=chat.return_tokens_as_token_ids,
        return_token_ids=chat.return_token_ids,
        prompt_token_ids=prepared.prompt.token_ids,
        prompt_text=prepared.prompt.text if chat.return_prompt_text else None,
        echo=echo_of(chat),
    )


def echo_of(chat: ChatRequest) -> str:
    """What the answer begins with, if that is asked for: the text that the assistant's turn already holds."""
    last = chat.messages[-1] if chat.messages else {}
    content = last.get("content") if chat.echo and last.get("role") == "assistant" else None
    return content if isinstance(content, str) else ""
