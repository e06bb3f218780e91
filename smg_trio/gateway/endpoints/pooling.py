"""``/v1/embeddings``, ``/v1/score``, ``/v1/rerank`` and ``/classify``: pooled outputs, where the engine has them."""

from __future__ import annotations

import functools
import time
from secrets import token_hex
from typing import TYPE_CHECKING

import trio

from smg_trio.api.openai.embeddings import (
    Chunk,
    ChunkedText,
    chunks_body,
    embeddings_body,
    parse_embeddings_request,
)
from smg_trio.api.openai.pooled_prompts import PoolingAnswer, PoolingRequest
from smg_trio.api.parameters.fields import refuse
from smg_trio.api.pooling import (
    PairsRequest,
    classify_body,
    parse_classify_request,
    parse_rerank_request,
    parse_score_request,
    rerank_body,
    score_body,
)
from smg_trio.gateway.generation.engine_hints import trace_headers
from smg_trio.gateway.generation.session import GenerationSession
from smg_trio.gateway.http import Request, Response, json_response
from smg_trio.pipeline.late_chunking import chunks_of, rows_of
from smg_trio.pipeline.pooling import PooledAnswer, PoolingJob, find_scoring_task, require_task
from smg_trio.pipeline.pooling_inputs import (
    PoolingPrompt,
    cut_ids,
    encode_inputs,
    plan_scoring,
    resolve_pooling,
)
from smg_trio.pipeline.prepare import size_of_prompts

if TYPE_CHECKING:
    from smg_trio.api.openai.chat.request import ChatRequest
    from smg_trio.gateway.state import Gateway
    from smg_trio.pipeline.prompts import PreparedPrompt


async def embeddings(gateway: Gateway, request: Request) -> Response:
    """Create embeddings of texts, token ids or a conversation."""
    started = trio.current_time()
    asked = await gateway.parse_body(request, parse_embeddings_request, gateway.limits)
    job, answer = await _prepare(gateway, request, asked.inputs, "embd-")
    chunks = await _chunks(gateway, asked.inputs, job)
    vectors = await _pool(gateway, request, job, "embeddings", started)
    if chunks is None:
        return json_response(embeddings_body(answer, asked, vectors))
    size = asked.inputs.pooling.late_chunking or 0
    texts = [ChunkedText(one, rows_of(values, len(one))) for one, values in zip(chunks, vectors, strict=True)]
    return json_response(chunks_body(answer, size, texts))


async def _chunks(gateway: Gateway, asked: PoolingRequest, job: PoolingJob) -> list[list[Chunk]] | None:
    """The chunks of each text, where a vector is wanted for each. Raises InvalidRequest."""
    size, completion = asked.pooling.late_chunking, asked.completion
    if size is None or completion is None:
        return None

    def work() -> list[list[Chunk]]:
        tokenizer, special = job.model.text.tokenizer, completion.add_special_tokens
        pairs = zip(map(str, completion.prompts), job.prompts, strict=True)
        return [chunks_of(tokenizer, text, one.token_ids, size, add_special_tokens=special) for text, one in pairs]

    return await gateway.preparer.off_loop_if_long(size_of_prompts(completion.prompts), work)


async def classify(gateway: Gateway, request: Request) -> Response:
    """Classify texts, token ids or a conversation; class probabilities."""
    started = trio.current_time()
    asked = await gateway.parse_body(request, parse_classify_request, gateway.limits)
    job, answer = await _prepare(gateway, request, asked, "classify-")
    rows = await _pool(gateway, request, job, "classify", started)
    return json_response(classify_body(answer, rows, job.model.text.pooling.label))


async def score(gateway: Gateway, request: Request) -> Response:
    """Score text pairs."""
    started = trio.current_time()
    asked = await gateway.parse_body(request, parse_score_request, gateway.limits)
    answer, scores = await _score(gateway, request, asked, "score", started)
    return json_response(score_body(answer, scores))


async def rerank(gateway: Gateway, request: Request) -> Response:
    """Rank documents by relevance to a query."""
    started = trio.current_time()
    asked = await gateway.parse_body(request, parse_rerank_request, gateway.limits)
    answer, scores = await _score(gateway, request, asked, "rerank", started)
    return json_response(rerank_body(answer, asked, scores))


async def _prepare(
    gateway: Gateway, request: Request, asked: PoolingRequest, prefix: str
) -> tuple[PoolingJob, PoolingAnswer]:
    gateway.refuse_if_draining()
    model = gateway.catalog.find(asked.model)
    window = gateway.context_window(model)
    await require_task(asked.pooling.task, model, gateway.registry)
    pooling = resolve_pooling(asked.pooling, model)
    chat, completion, media = asked.chat, asked.completion, None
    if chat is not None:
        prompt = await gateway.preparer.chat_prompt(chat, model, with_media=True)
        media = prompt.media
        sampling, inputs = chat.sampling, [_fitting_ids(prompt, chat, window)]
    else:
        assert completion is not None, "either prompts or a conversation"
        work = functools.partial(encode_inputs, completion, model, window)
        size = size_of_prompts(completion.prompts)
        sampling, inputs = completion.sampling, await gateway.preparer.off_loop_if_long(size, work)
    job = PoolingJob(
        model=model,
        request_id=_answer_id(prefix, request, asked.request_id),
        prompts=[PoolingPrompt(ids, pooling, media) for ids in inputs],
        priority=sampling.priority,
        cache_salt=sampling.cache_salt,
        trace_headers=trace_headers(gateway, request),
    )
    return job, _answer(job, asked.model)


def _fitting_ids(prompt: PreparedPrompt, chat: ChatRequest, window: int) -> list[int]:
    """The prompt's ids, cut if that is wanted. Raises InvalidRequest where there are media in what would be cut."""
    ids = cut_ids(prompt.token_ids, chat.sampling, window)
    if prompt.media is not None and len(ids) < len(prompt.token_ids):
        raise refuse("truncate_prompt_tokens", "a prompt with media cannot be cut")
    return ids


async def _score(
    gateway: Gateway, request: Request, asked: PairsRequest, endpoint: str, started: float
) -> tuple[PoolingAnswer, list[float]]:
    gateway.refuse_if_draining()
    model = gateway.catalog.find(asked.model)
    window = gateway.context_window(model)
    task = await find_scoring_task(model, gateway.registry)
    size = sum(len(query) + len(document) for query, document in asked.pairs)
    work = functools.partial(plan_scoring, asked, task, model, window)
    plan = await gateway.preparer.off_loop_if_long(size, work)
    job = PoolingJob(
        model=model,
        request_id=_answer_id(f"{endpoint}-", request, asked.request_id),
        prompts=plan.prompts,
        priority=asked.priority,
        cache_salt=asked.cache_salt,
        trace_headers=trace_headers(gateway, request),
    )
    pooled = await _pool(gateway, request, job, endpoint, started)
    scores = await gateway.preparer.off_loop_if_long(sum(map(len, pooled)), functools.partial(plan.scores, pooled))
    return _answer(job, asked.model), scores


def _answer_id(prefix: str, request: Request, own: str | None) -> str:
    if own is None and request.context.named_by_client:
        own = request.context.request_id
    return f"{prefix}{own or token_hex(16)}"


def _answer(job: PoolingJob, name: str) -> PoolingAnswer:
    return PoolingAnswer(
        response_id=job.request_id,
        model=name or job.model.model_id,
        created=int(time.time()),
        prompt_tokens=job.prompt_tokens,
    )


async def _pool(
    gateway: Gateway, request: Request, job: PoolingJob, endpoint: str, started: float
) -> list[list[float]]:
    """Pool every prompt: float[…] of each, flat, in order. Raises SmgError; nothing is left running."""
    session = GenerationSession(
        gateway,
        request.context,
        PooledAnswer(job),
        endpoint,
        streaming=False,
        started=started,
        routing_key=gateway.routing_key(request.headers),
    )
    try:
        [vectors] = await session.next_updates()
        return vectors
    finally:
        session.close()
