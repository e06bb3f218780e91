"""``/v1/embeddings``, ``/v1/score``, ``/v1/rerank`` and ``/classify``: pooled outputs, where the engine has them."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from secrets import token_hex

import trio

from smg_trio.api.openai.embeddings import embeddings_body, parse_embeddings_request
from smg_trio.api.pooling import (
    PairsRequest,
    PoolingAnswer,
    PoolingRequest,
    classify_body,
    parse_classify_request,
    parse_rerank_request,
    parse_score_request,
    rerank_body,
    score_body,
)
from smg_trio.core.errors import NoReadyWorker, SmgError
from smg_trio.core.events import Usage
from smg_trio.gateway.generation.in_flight import OpenPooling
from smg_trio.gateway.generation.session import GenerationTimeout
from smg_trio.gateway.http import Request, Response, json_response
from smg_trio.gateway.observability.current_trace import current as current_trace
from smg_trio.gateway.security.key_limits import current_slot
from smg_trio.gateway.state import Gateway
from smg_trio.pipeline.pooling import PoolingJob, find_scoring_task, pool, require_task
from smg_trio.pipeline.pooling_inputs import (
    PoolingPrompt,
    cut_ids,
    encode_inputs,
    plan_scoring,
    resolve_pooling,
)
from smg_trio.pipeline.prepare import size_of_prompts
from smg_trio.routing.retries import Attempts


async def embeddings(gateway: Gateway, request: Request) -> Response:
    """Vectors of texts, token ids or a conversation."""
    asked = await gateway.parse_body(request, parse_embeddings_request, gateway.limits)
    job, answer = await _prepare(gateway, request, asked.inputs, "embd-")
    return json_response(embeddings_body(answer, asked, await _pool(gateway, request, job, "embeddings")))


async def classify(gateway: Gateway, request: Request) -> Response:
    """The classes of texts, token ids or a conversation, with their probabilities."""
    asked = await gateway.parse_body(request, parse_classify_request, gateway.limits)
    job, answer = await _prepare(gateway, request, asked, "classify-")
    rows = await _pool(gateway, request, job, "classify")
    return json_response(classify_body(answer, rows, job.model.text.pooling.label))


async def score(gateway: Gateway, request: Request) -> Response:
    """Score text pairs."""
    asked = await gateway.parse_body(request, parse_score_request, gateway.limits)
    answer, scores = await _score(gateway, request, asked, "score-")
    return json_response(score_body(answer, scores))


async def rerank(gateway: Gateway, request: Request) -> Response:
    """Documents in the order in which they fit a query."""
    asked = await gateway.parse_body(request, parse_rerank_request, gateway.limits)
    answer, scores = await _score(gateway, request, asked, "rerank-")
    return json_response(rerank_body(answer, asked, scores))


async def _prepare(
    gateway: Gateway, request: Request, asked: PoolingRequest, prefix: str
) -> tuple[PoolingJob, PoolingAnswer]:
    gateway.refuse_if_draining()
    model = gateway.catalog.find(asked.model)
    window = gateway.context_window(model)
    await require_task(asked.pooling.task, model, gateway.registry)
    pooling = resolve_pooling(asked.pooling, model)
    chat, completion = asked.chat, asked.completion
    if chat is not None:
        prompt = await gateway.preparer.chat_prompt(chat, model)
        sampling, inputs = chat.sampling, [cut_ids(prompt.token_ids, chat.sampling, window)]
    else:
        assert completion is not None, "either prompts or a conversation"
        work = functools.partial(encode_inputs, completion, model, window)
        size = size_of_prompts(completion.prompts)
        sampling, inputs = completion.sampling, await gateway.preparer.off_loop_if_long(size, work)
    job = PoolingJob(
        model=model,
        request_id=_answer_id(prefix, request, asked.request_id),
        prompts=[PoolingPrompt(ids, pooling) for ids in inputs],
        priority=sampling.priority,
        cache_salt=sampling.cache_salt,
    )
    return job, _answer(job, asked.model)


async def _score(
    gateway: Gateway, request: Request, asked: PairsRequest, prefix: str
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
        request_id=_answer_id(prefix, request, asked.request_id),
        prompts=plan.prompts,
        priority=asked.priority,
        cache_salt=asked.cache_salt,
    )
    pooled = await _pool(gateway, request, job, "rerank" if prefix == "rerank-" else "score")
    scores = await gateway.preparer.off_loop_if_long(sum(map(len, pooled)), functools.partial(plan.scores, pooled))
    return _answer(job, asked.model), scores


def _answer_id(prefix: str, request: Request, own: str | None) -> str:
    if own is None and request.client_named_request:
        own = request.request_id
    return f"{prefix}{own or token_hex(16)}"


def _answer(job: PoolingJob, name: str) -> PoolingAnswer:
    return PoolingAnswer(
        response_id=job.request_id,
        model=name or job.model.model_id,
        created=int(time.time()),
        prompt_tokens=job.prompt_tokens,
    )


async def _pool(gateway: Gateway, request: Request, job: PoolingJob, endpoint: str) -> Sequence[list[float]]:
    """Pool: admitted, tried again where that helps, counted, timed, ended at the request timeout. Raises SmgError."""
    place = current_slot.get()
    if place is not None:
        place.check(job.prompt_tokens)
    started = trio.current_time()
    metrics = gateway.metrics.inference_begins(job.model.model_id, endpoint, streaming=False, started=started)
    usage = Usage(job.prompt_tokens, 0)
    in_flight = OpenPooling(job.request_id, started, metrics, usage)
    gateway.answer_begins(in_flight)
    trace = current_trace.get()
    if trace is not None:
        trace.inference_begins(job.model.model_id, endpoint, job.request_id)
        job = replace(job, trace_headers=trace.headers())
    limit_s = gateway.settings.request_timeout_secs
    try:
        with trio.move_on_after(limit_s):
            permit = await gateway.admission.admit()
            if place is not None:
                place.use(job.prompt_tokens)
            try:
                metrics.sent(started, trio.current_time())
                return await _try_pooling(gateway, job, endpoint, gateway.routing_key(request.headers))
            finally:
                permit.close()
        raise GenerationTimeout(f"The answer took longer than {limit_s:g}s.")
    except SmgError as error:
        metrics.failed(error.code)
        if trace is not None:
            trace.failed(error)
        raise
    finally:
        gateway.answer_ends(in_flight)
        gateway.metrics.inference_ends(metrics, usage)
        if trace is not None:
            trace.answer_ended(usage, (), ())


async def _try_pooling(
    gateway: Gateway, job: PoolingJob, endpoint: str, routing_key: str | None
) -> Sequence[list[float]]:
    attempts = Attempts(gateway.retry_schedule, gateway.random)
    cause: SmgError | None = None
    trace = current_trace.get()
    while True:
        tried: set[str] = set()
        if trace is not None:
            trace.enter("pooling")
        try:
            return await pool(job, gateway.registry, routing_key=routing_key, avoid=attempts.avoid, tried=tried)
        except NoReadyWorker as error:
            # Nobody is left to try: then what ended the last attempt is the news.
            raise cause or error from None
        except SmgError as error:
            cause = error
            attempts.avoid |= tried
            delay_s = attempts.failed(error)
            if delay_s is None:
                if attempts.exhausted(error):
                    gateway.metrics.retries_exhausted(endpoint)
                raise
            gateway.metrics.retried(endpoint, attempts.made, delay_s)
            if trace is not None:
                trace.retried(attempts.made, error, delay_s)
        await trio.sleep(delay_s)
