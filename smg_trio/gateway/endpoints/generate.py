"""``POST /generate``: text or token ids in, in the form of SGLang and the Rust gateways."""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

import trio

from smg_trio.api.generate import parse_generate_request
from smg_trio.api.generate_answer import GenerateAnswer, GenerateEventWriter, GenerateFold
from smg_trio.gateway.endpoints.chat import SSE_HEADERS
from smg_trio.gateway.generation.engine_hints import engine_hints
from smg_trio.gateway.generation.session import GenerationSession, fold_answer
from smg_trio.gateway.generation.stream import GenerationStream, StreamStyle, openai_failed
from smg_trio.gateway.http import Request, Response, json_response
from smg_trio.pipeline.answer import Answer

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway


async def generate(gateway: Gateway, request: Request) -> Response:
    """Complete one or more prompts, in one piece or as server-sent events."""
    started = trio.current_time()
    gateway.refuse_if_draining()
    asked = await gateway.parse_body(request, parse_generate_request, gateway.limits)
    stream = asked.completion.stream
    context = request.context
    answer_id = asked.completion.request_id or (context.request_id if context.named_by_client else token_hex(16))
    model = gateway.catalog.find(asked.completion.model)
    prepared = await gateway.preparer.completions(
        asked.completion,
        model,
        request_id=answer_id,
        max_model_len=gateway.context_window(model),
        hints=engine_hints(gateway, request, asked.rank),
    )
    shown = GenerateAnswer(
        response_id=answer_id,
        prompts=[one.prompt.token_ids for one in prepared],
        n=asked.completion.n,
        return_logprob=asked.return_logprob,
        top_logprobs=asked.top_logprobs_num,
        input_logprobs=asked.input_logprobs,
        logprob_start=asked.logprob_start_len,
        elapsed_s=lambda: trio.current_time() - started,
    )
    session = GenerationSession(
        gateway,
        context,
        Answer(prepared),
        "generate",
        streaming=stream,
        started=started,
        routing_key=gateway.routing_key(request.headers),
    )
    if not stream:
        return json_response(await fold_answer(session, GenerateFold(shown)))
    style = StreamStyle(failed=openai_failed, continuous_usage=True)
    events = GenerationStream(session, GenerateEventWriter(shown), style)
    await events.start()
    return Response(200, events, list(SSE_HEADERS))
