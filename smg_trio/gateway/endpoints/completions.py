"""``POST /v1/completions``."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import trio

from smg_trio.api.openai.completions.fold import CompletionFold
from smg_trio.api.openai.completions.pieces import AnsweredPrompt, CompletionAnswer
from smg_trio.api.openai.completions.request import CompletionRequest, parse_completion_request
from smg_trio.api.openai.completions.stream import CompletionChunkWriter
from smg_trio.gateway.endpoints.chat import SSE_HEADERS, response_id
from smg_trio.gateway.generation.engine_hints import engine_hints
from smg_trio.gateway.generation.session import GenerationSession, fold_answer
from smg_trio.gateway.generation.stream import GenerationStream, StreamStyle, openai_failed
from smg_trio.gateway.http import Request, Response, json_response
from smg_trio.pipeline.answer import Answer

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway
    from smg_trio.pipeline.models import ServedModel
    from smg_trio.pipeline.prompts import PreparedPrompt


async def completions(gateway: Gateway, request: Request) -> Response:
    """Complete one or more prompts, in one piece or as server-sent events."""
    started = trio.current_time()
    gateway.refuse_if_draining()
    asked = await gateway.parse_body(request, parse_completion_request, gateway.limits)
    model = gateway.catalog.find(asked.model)
    answer_id = response_id("cmpl-", request, asked.request_id)
    prepared = await gateway.preparer.completions(
        asked,
        model,
        request_id=answer_id,
        max_model_len=gateway.context_window(model),
        hints=engine_hints(gateway, request),
    )
    prompts = [one.prompt for one in prepared]
    size = sum(len(prompt.token_ids) for prompt in prompts) if asked.echo else 0
    show = functools.partial(_shown, asked, model, answer_id, prompts)
    shown = await gateway.preparer.off_loop_if_long(size, show)
    session = GenerationSession(
        gateway,
        request.context,
        Answer(prepared),
        "completions",
        streaming=asked.stream,
        started=started,
        routing_key=gateway.routing_key(request.headers),
    )
    if not asked.stream:
        return json_response(await fold_answer(session, CompletionFold(shown)))
    style = StreamStyle(
        failed=openai_failed,
        usage_at_end=asked.include_usage,
        continuous_usage=asked.include_usage and asked.continuous_usage_stats,
    )
    stream = GenerationStream(session, CompletionChunkWriter(shown), style)
    await stream.start()
    return Response(200, stream, list(SSE_HEADERS))


def _shown(
    asked: CompletionRequest, model: ServedModel, answer_id: str, prompts: list[PreparedPrompt]
) -> CompletionAnswer:
    return CompletionAnswer(
        response_id=answer_id,
        model=asked.model or model.model_id,
        created=int(time.time()),
        n=asked.n,
        prompts=[_answered_prompt(asked, model, prompt) for prompt in prompts],
        echo=asked.echo,
        logprobs=asked.logprobs,
        tokens_as_ids=asked.return_tokens_as_token_ids,
        return_token_ids=asked.return_token_ids,
    )


def _answered_prompt(asked: CompletionRequest, model: ServedModel, prompt: PreparedPrompt) -> AnsweredPrompt:
    if not asked.echo:
        return AnsweredPrompt(token_ids=prompt.token_ids)
    tokenizer = model.text.tokenizer
    text = prompt.text if prompt.text is not None else tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
    first = tokenizer.decode(prompt.token_ids[:1], skip_special_tokens=False)
    return AnsweredPrompt(text=text, token_ids=prompt.token_ids, first_token=first)
