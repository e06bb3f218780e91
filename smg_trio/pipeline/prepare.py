"""A validated request → token ids and engine sampling.

Rendering and tokenizing hold the loop for 0.3 to 3 ms per 1,000 tokens, so long inputs go to a thread; very long ones
leave the GIL to others there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import trio

from smg_trio.api.parameters.constraints import MAX_CONSTRAINT_WEIGHT
from smg_trio.core.errors import ContextLengthExceeded, InvalidRequest
from smg_trio.core.heavy_json import NODE_WEIGHT, is_heavy, weight
from smg_trio.core.media import media_in
from smg_trio.core.records import record
from smg_trio.pipeline.decode import DecodeOptions
from smg_trio.pipeline.encoding_cache import EncodingCache
from smg_trio.pipeline.media import MediaPreparer, check_typed, place_media, texts_in
from smg_trio.pipeline.notes import Notes
from smg_trio.pipeline.planning import PLAIN_TEXT, plan_chat
from smg_trio.pipeline.prepared_media import released_on_failure
from smg_trio.pipeline.prompts import PreparedPrompt
from smg_trio.pipeline.rendering import Rendered, check_sizes, model_template, render_chat, request_template
from smg_trio.pipeline.sampling import resolve_sampling
from smg_trio.pipeline.token_budget import MAX_TEXT_TOKENS, TokenBudget
from smg_trio.text.mistral_chat import MistralChat
from smg_trio.text.tokenizer import INLINE_ENCODE_CHARS

if TYPE_CHECKING:
    from smg_trio.api.openai.chat.request import ChatRequest
    from smg_trio.api.openai.completions.request import CompletionRequest
    from smg_trio.api.parameters.sampling import SamplingFields
    from smg_trio.core.media import MediaSource
    from smg_trio.core.requests import SamplingParams, StructuredOutput
    from smg_trio.parsers.plan import AnswerPlan
    from smg_trio.pipeline.models import ServedModel
    from smg_trio.pipeline.prepared_media import PreparedMedia
    from smg_trio.text.chat_template import ChatTemplate
    from smg_trio.text.media_marks import MediaMarks

Result = TypeVar("Result")

_IDS_PER_CHAR = 32

TEXT_THREADS = 2
"""Long inputs tokenized at the same time; more would only slow each other and the loop down."""


class EngineHints(NamedTuple):
    """What a request says to its engine beside its body.

    Attributes:
        trace_headers: its place in a trace, as W3C headers; sent on.
        rank: the data-parallel rank that is to answer, None to let the worker choose.
    """

    trace_headers: Mapping[str, str] | None = None
    rank: int | None = None


NO_HINTS: Final = EngineHints()


@record
class PreparedRequest:
    """Everything that an `Answer` is made from.

    Attributes:
        request_id: engine ids are made from it and made unique.
        n: choices; choice i is sampled with seed + i.
        asked_tokens: the most that each may have, where the request says so; None where it does not.
        plan: what is done with the answer's text.
        media: None where there are none.
    """

    request_id: str
    model: ServedModel
    prompt: PreparedPrompt
    sampling: SamplingParams
    decode: DecodeOptions
    media: PreparedMedia | None = None
    n: int = 1
    asked_tokens: int | None = None
    priority: int = 0
    cache_salt: str | None = None
    hints: EngineHints = NO_HINTS
    stream: bool = False
    plan: AnswerPlan = PLAIN_TEXT


class Preparer:
    """Prepares requests; owns the limit on text threads."""

    def __init__(
        self,
        text_threads: int = TEXT_THREADS,
        *,
        encodings: EncodingCache | None = None,
        media: MediaPreparer | None = None,
    ) -> None:
        """Owns its limits and caches.

        Args:
            text_threads: how many long texts are tokenized at a time.
            encodings: pieces of prompts that are kept; None to keep none.
            media: what prepares media; None to refuse them.
        """
        self._limiter = trio.CapacityLimiter(text_threads)
        self._media = media or MediaPreparer()
        self._encodings = encodings or EncodingCache(0)
        self._notes = Notes()

    async def read(self, body: bytes, parse: Callable[..., Result], *arguments: Any) -> Result:
        """What ``parse(body, *arguments)`` returns; a body that would hold the loop is parsed in a thread.

        Raises what `parse` raises. Cancelled, the thread's result is dropped.
        """
        if not is_heavy(body):
            return parse(body, *arguments)
        return await self.in_thread(functools.partial(parse, body, *arguments))

    async def off_loop_if_long(self, size: int, work: Callable[[], Result]) -> Result:
        """Run `work` inline for inputs of up to `INLINE_ENCODE_CHARS` characters, else in a thread.

        Cancelled, the thread's result is dropped.
        """
        return work() if size <= INLINE_ENCODE_CHARS else await self.in_thread(work)

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Run `work` in one of the threads for long inputs. Cancelled, its result is dropped."""
        return await trio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)

    async def chat_prompt(
        self,
        request: ChatRequest,
        model: ServedModel,
        max_model_len: int | None = None,
        *,
        with_media: bool = False,
    ) -> PreparedPrompt:
        """Render and tokenize a conversation. Raises ClientFault naming what cannot be rendered.

        With `max_model_len`, text that cannot fit it is refused before it is tokenized. Of media only the sizes are
        read, unless `with_media` asks for all that an engine gets; then the caller releases them.
        """
        template = await self._template(request, model)
        room = _room(request, model, max_model_len)
        size = _size_of_chat(request)
        if media := media_in(request.messages):
            prompt, placed = await self._render_with_media(request, model, template, room, size, media)
            add = self._media.add if with_media else self._media.measure
            return await add(prompt, placed, model)
        work = functools.partial(self._render_and_encode, request, model, template, room, size)
        return await self.off_loop_if_long(size, work)

    async def _template(self, request: ChatRequest, model: ServedModel) -> ChatTemplate | MistralChat:
        if request.chat_template is None:
            return model_template(request, model)
        work = functools.partial(request_template, request, model)
        return await trio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)

    def _render_and_encode(
        self,
        request: ChatRequest,
        model: ServedModel,
        template: ChatTemplate | MistralChat,
        room: TokenBudget,
        size: int,
    ) -> PreparedPrompt:
        if size > INLINE_ENCODE_CHARS:
            check_sizes(request)
        if isinstance(template, MistralChat):
            return _encode_officially(request, model, template, room, size)[0]
        return _encode(self._render(request, model, template).prompt, request, model, room, self._encodings)

    def _render(
        self, request: ChatRequest, model: ServedModel, template: ChatTemplate, marks: MediaMarks | None = None
    ) -> Rendered:
        rendered = render_chat(request, template, marks)
        if rendered.notes:
            self._notes.once(rendered.notes, f"model {model.model_id}")
        return rendered

    async def chat(
        self,
        request: ChatRequest,
        model: ServedModel,
        *,
        request_id: str,
        max_model_len: int,
        hints: EngineHints = NO_HINTS,
    ) -> PreparedRequest:
        """Prepare a chat request for an engine with a context window of `max_model_len` tokens."""
        template = await self._template(request, model)
        room = _room(request, model, max_model_len)
        size = _size_of_chat(request)

        def finish(prompt: PreparedPrompt) -> PreparedRequest:
            plan = plan_chat(request, model, prompt.text or "")
            fields = request.sampling
            if plan.structured_output is not fields.structured_output:
                fields = replace(fields, structured_output=plan.structured_output)
                _check_size_of_constraint(plan.structured_output)
            if plan.needs_special_tokens:
                fields = replace(fields, skip_special_tokens=False)
            return finish_preparing(
                prompt,
                fields,
                model,
                request_id=request_id,
                max_model_len=max_model_len,
                n=request.n,
                stream=request.stream,
                hints=hints,
                plan=plan,
            )

        if media := media_in(request.messages):
            prompt, placed = await self._render_with_media(request, model, template, room, size, media)
            prompt = await self._media.add(prompt, placed, model)
            with released_on_failure([prompt.media]):
                return await self.off_loop_if_long(size, lambda: finish(prompt))

        def work() -> PreparedRequest:
            return finish(self._render_and_encode(request, model, template, room, size))

        return await self.off_loop_if_long(size, work)

    async def _render_with_media(
        self,
        request: ChatRequest,
        model: ServedModel,
        template: ChatTemplate | MistralChat,
        room: TokenBudget,
        size: int,
        media: Sequence[MediaSource],
    ) -> tuple[PreparedPrompt, Sequence[MediaSource]]:
        """The prompt with a placeholder for each of the media, and the media in the order of these."""
        self._media.check(media, model)

        def work() -> tuple[PreparedPrompt, Sequence[MediaSource]]:
            if size > INLINE_ENCODE_CHARS:
                check_sizes(request)
            if isinstance(template, MistralChat):  # to which a placeholder in a text is text
                return _encode_officially(request, model, template, room, size)
            check_typed(request, media, model)
            text, placed = place_media(functools.partial(self._render, request, model, template), media, model)
            return _encode(text, request, model, room, self._encodings), placed

        return await self.off_loop_if_long(size, work)

    async def completions(
        self,
        request: CompletionRequest,
        model: ServedModel,
        *,
        request_id: str,
        max_model_len: int,
        hints: EngineHints = NO_HINTS,
    ) -> list[PreparedRequest]:
        """Prepare the prompts of a completions request, as `chat`; token ids stay as they are.

        Several prompts are several requests, their ids told apart by the prompt's index.
        """
        room = _room(request, model, max_model_len)
        size = size_of_prompts(request.prompts)

        def finish(prompts: Sequence[PreparedPrompt]) -> list[PreparedRequest]:
            return [
                finish_preparing(
                    prompt,
                    request.sampling,
                    model,
                    request_id=request_id if len(request.prompts) == 1 else f"{request_id}-p{index}",
                    max_model_len=max_model_len,
                    n=request.n,
                    stream=request.stream,
                    hints=hints,
                    prompt_param="prompt",
                )
                for index, prompt in enumerate(prompts)
            ]

        if any(request.media):
            for media in request.media:
                self._media.check(media, model)
            prompts = await self.off_loop_if_long(size, lambda: _encode_prompts(request, model, room))
            prompts = await self._media.add_to_all(prompts, request.media, model)
            with released_on_failure([prompt.media for prompt in prompts]):
                return await self.off_loop_if_long(size, lambda: finish(prompts))

        return await self.off_loop_if_long(size, lambda: finish(_encode_prompts(request, model, room)))

    async def texts(self, texts: Sequence[str], model: ServedModel, *, add_special_tokens: bool) -> list[list[int]]:
        """Tokenize texts. Raises InvalidRequest for one of more than `MAX_TEXT_TOKENS` tokens."""
        room = TokenBudget(_longest_text(model))

        def work() -> list[list[int]]:
            for text in texts:
                room.check(text, model, "prompt")
            return [model.text.tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]

        return await self.off_loop_if_long(weight(texts, INLINE_ENCODE_CHARS), work)


def finish_preparing(
    prompt: PreparedPrompt,
    fields: SamplingFields,
    model: ServedModel,
    *,
    request_id: str,
    max_model_len: int,
    n: int = 1,
    stream: bool = False,
    hints: EngineHints = NO_HINTS,
    plan: AnswerPlan = PLAIN_TEXT,
    prompt_param: str = "messages",
) -> PreparedRequest:
    """What every endpoint does once it has a prompt: truncate if asked, resolve sampling, note what to show."""
    prompt = _truncate(prompt, fields, max_model_len)
    length = len(prompt.token_ids)
    if length >= max_model_len:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt has {length} input "
            "tokens, which leaves no room for output. Please reduce the length of the input prompt.",
            param=prompt_param,
        )
    sampling = resolve_sampling(fields, model.text, prompt_length=length, max_model_len=max_model_len)
    return PreparedRequest(
        request_id=request_id,
        model=model,
        prompt=prompt,
        sampling=sampling,
        decode=_decode_options(fields, plan),
        media=prompt.media,
        n=n,
        asked_tokens=None if fields.max_tokens is None else min(fields.max_tokens, sampling.max_tokens),
        priority=fields.priority,
        cache_salt=fields.cache_salt,
        hints=hints,
        stream=stream,
        plan=plan,
    )


def _decode_options(fields: SamplingFields, plan: AnswerPlan) -> DecodeOptions:
    return DecodeOptions(
        stop=fields.stop,
        include_stop=fields.include_stop_str_in_output,
        stop_token_ids=frozenset(fields.stop_token_ids),
        min_tokens=fields.min_tokens,
        skip_special_tokens=fields.skip_special_tokens,
        spaces_between_special_tokens=fields.spaces_between_special_tokens,
        logprobs=fields.logprobs,
        prompt_logprobs=fields.prompt_logprobs,
        constraint_param=_constraint_param(fields),
        counts_reasoning=plan.counts_reasoning,
        prompt_only=fields.max_tokens == 0,
    )


def _constraint_param(fields: SamplingFields) -> str:
    if fields.structured_output is None:
        return ""
    return "response_format" if fields.structured_output.kind in ("json", "json_object") else "structured_outputs"


def _encode(
    text: str, request: ChatRequest, model: ServedModel, room: TokenBudget, encodings: EncodingCache
) -> PreparedPrompt:
    room.check(text, model, "messages")
    tokenizer = model.text.tokenizer
    if request.add_special_tokens:  # which ones, is a question to the whole text
        ids = tokenizer.encode(text, add_special_tokens=True)
    else:
        ids = encodings.encode(tokenizer, text)
    if not ids:
        raise InvalidRequest("The conversation renders to an empty prompt.", param="messages")
    return PreparedPrompt(token_ids=ids, text=text)


def _encode_officially(
    request: ChatRequest, model: ServedModel, chat: MistralChat, room: TokenBudget, size: int
) -> tuple[PreparedPrompt, Sequence[MediaSource]]:
    """The prompt, and its media in the order of their placeholders."""
    if size > INLINE_ENCODE_CHARS:
        room.check("".join(texts_in(request.messages)), model, "messages")
    family = model.family
    encoded = chat.encode(
        request.messages,
        tools=request.tools or None,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        reasoning_effort=request.reasoning_effort,
        placeholder_ids=None if family is None else {name: family.placeholder_ids(name) for name in family.modalities},
    )
    return PreparedPrompt(token_ids=encoded.token_ids, text=encoded.text), encoded.media


def _encode_prompts(request: CompletionRequest, model: ServedModel, room: TokenBudget) -> list[PreparedPrompt]:
    prompts = []
    for prompt in request.prompts:
        if isinstance(prompt, str):
            room.check(prompt, model, "prompt")
            ids = model.text.tokenizer.encode(prompt, add_special_tokens=request.add_special_tokens)
            if not ids:
                raise InvalidRequest("The prompt is empty.", param="prompt")
            prompts.append(PreparedPrompt(token_ids=ids, text=prompt))
        else:
            prompts.append(PreparedPrompt(token_ids=prompt, text=None))
    return prompts


def _truncate(prompt: PreparedPrompt, fields: SamplingFields, max_model_len: int) -> PreparedPrompt:
    """Keep the last (by default) `truncate_prompt_tokens` tokens; -1 means as many as leave room for the answer."""
    keep = fields.truncate_prompt_tokens
    if keep is None:
        return prompt
    if keep > max_model_len:
        raise InvalidRequest(
            f"truncate_prompt_tokens={keep} cannot be greater than max_model_len={max_model_len}.",
            param="truncate_prompt_tokens",
        )
    if keep == -1:
        keep = max(1, max_model_len - (fields.max_tokens or 1))
    if len(prompt.token_ids) <= keep:
        return prompt
    if prompt.media is not None:
        problem = f"the prompt has {len(prompt.token_ids)} tokens, and one with media cannot be cut."
        raise InvalidRequest(f"truncate_prompt_tokens={keep}: {problem}", param="truncate_prompt_tokens")
    if keep == 0:
        raise InvalidRequest("truncate_prompt_tokens=0 leaves an empty prompt.", param="truncate_prompt_tokens")
    right = fields.truncation_side == "right"
    return replace(prompt, token_ids=prompt.token_ids[:keep] if right else prompt.token_ids[-keep:])


def _room(request: ChatRequest | CompletionRequest, model: ServedModel, window: int | None) -> TokenBudget:
    """How long a prompt may be before it is cut to what the request wants of it."""
    if window is None:
        return TokenBudget(_longest_text(model))
    if request.sampling.truncate_prompt_tokens is not None:
        return TokenBudget(max(window, MAX_TEXT_TOKENS))
    return TokenBudget(window, is_window=True)


def _longest_text(model: ServedModel) -> int:
    return max(model.text.context_length or 0, MAX_TEXT_TOKENS)


def _check_size_of_constraint(constraint: StructuredOutput | None) -> None:
    """The constraint that forces tool calls holds all their schemas; the engine compiles it."""
    if constraint is not None and weight(constraint.value, MAX_CONSTRAINT_WEIGHT) > MAX_CONSTRAINT_WEIGHT:
        raise InvalidRequest(
            f"The tools' schemas are larger than {MAX_CONSTRAINT_WEIGHT} characters together, the limit when "
            "tool_choice forces a call.",
            param="tools",
        )


def _size_of_chat(request: ChatRequest) -> int:
    """What decides between inline and thread."""
    parts = (request.messages, request.tools, request.documents, request.chat_template_kwargs)
    return weight(parts, INLINE_ENCODE_CHARS)


def size_of_prompts(prompts: Sequence[str | list[int]]) -> int:
    """What decides between inline and thread for prompts: characters; token ids only have to be looked at."""
    return sum(len(prompt) if isinstance(prompt, str) else len(prompt) // _IDS_PER_CHAR for prompt in prompts) + (
        NODE_WEIGHT * len(prompts)
    )
