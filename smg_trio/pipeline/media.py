"""Media of a request: may the model be given them, where in the prompt they stand, and what engines get for them.

Chat templates print a placeholder for each (`place_media`); once the media are read and their sizes known, the
placeholder becomes as many tokens as the engine's encoder makes vectors (`MediaPreparer`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from smg_trio.core.errors import InvalidRequest, MediaPlaceholderMismatch, UnsupportedContent
from smg_trio.media.expansion import Expanded, expand
from smg_trio.media.hooks import MediaHooks
from smg_trio.pipeline.prepared_media import PreparedMedia, released_on_failure
from smg_trio.text.media_marks import MediaMarks

if TYPE_CHECKING:
    from smg_trio.api.openai.chat.request import ChatRequest
    from smg_trio.core.media import MediaFeature, MediaSource, Modality, PixelForm
    from smg_trio.media.families import Family
    from smg_trio.media.items import ProcessedItem
    from smg_trio.media.processor import MediaProcessor
    from smg_trio.pipeline.models import ServedModel
    from smg_trio.pipeline.prompts import PreparedPrompt
    from smg_trio.pipeline.rendering import Rendered
    from smg_trio.text.tokenizer import Tokenizer

_EXPANDED_INLINE: Final = 20_000
"""Tokens of a prompt that are looked through in a millisecond; longer ones belong into a thread."""
_PLURALS: Final[Mapping[Modality, str]] = {"image": "images", "video": "videos", "audio": "audio"}


class WantedMedia(NamedTuple):
    """What the engines of a model want.

    Attributes:
        forms: of pixels.
        dtype: of normalised pixels.
    """

    forms: frozenset[PixelForm] = frozenset()
    dtype: str = "bfloat16"


class MediaPreparer:
    """Reads and processes the media of prompts."""

    def __init__(
        self,
        processor: MediaProcessor | None = None,
        wanted: Callable[[ServedModel], Awaitable[WantedMedia]] | None = None,
        hooks: MediaHooks | None = None,
    ) -> None:
        """Nothing is started before the first item.

        Args:
            processor: None to refuse all media.
            wanted: asks the engines of a model what they want; raises NoReadyWorker, or UnsupportedFeature.
            hooks: told what is refused.
        """
        self._processor = processor
        self._wanted = wanted
        self._hooks = hooks or MediaHooks()

    def check(self, sources: Sequence[MediaSource], model: ServedModel) -> None:
        """Refuse media of a modality that the model does not take. Raises UnsupportedContent."""
        family = model.family if self._processor is not None else None
        for source in sources:
            if family is None or source.modality not in family.modalities:
                problem = f"model '{model.model_id}' does not accept {_PLURALS[source.modality]}"
                error = UnsupportedContent(f"{source.where}: {problem}.", param=source.where)
                self._hooks.refused(source.modality, error.code)
                raise error

    async def add(self, prompt: PreparedPrompt, sources: Sequence[MediaSource], model: ServedModel) -> PreparedPrompt:
        """The prompt with its media, read and processed; the caller releases them. Cancelled, nothing is kept.

        Args:
            prompt: with a placeholder for each of `sources`, in their order.
            sources: of media that `check` has let pass.
            model: which is asked.

        Raises:
            SmgError: a ClientFault that names what cannot be read or decoded; MediaMemoryFull and others of
                `MediaProcessor.process`.
            MediaPlaceholderMismatch: the prompt has another number of placeholders.
        """
        if not sources:
            return prompt
        processor, family = self._for(model)
        assert self._wanted is not None, "a processor of media is made with it"
        wanted = await self._wanted(model)
        hold = processor.budget.hold()
        expanded = Expanded(prompt.token_ids, ())

        async def prepare(forms: frozenset[PixelForm]) -> tuple[MediaFeature, ...]:
            nonlocal expanded
            items = await processor.process(sources, family, forms, model.model_id, dtype=wanted.dtype, hold=hold)
            expanded = await _expand(prompt, items, family, sources)
            return expanded.features

        media = PreparedMedia(sources, prepare, hold)
        await media.prepare(wanted.forms)
        return replace(prompt, token_ids=expanded.token_ids, media=media)

    async def add_to_all(
        self, prompts: Sequence[PreparedPrompt], sources: Sequence[Sequence[MediaSource]], model: ServedModel
    ) -> list[PreparedPrompt]:
        """Each prompt with its media, as `add`."""
        done: list[PreparedPrompt] = []
        media: list[PreparedMedia | None] = []
        with released_on_failure(media):
            for prompt, own in zip(prompts, sources, strict=True):
                done.append(await self.add(prompt, own, model))
                media.append(done[-1].media)
        return done

    async def measure(
        self, prompt: PreparedPrompt, sources: Sequence[MediaSource], model: ServedModel
    ) -> PreparedPrompt:
        """The prompt as `add` would expand it, without media: only their sizes are read. Raises as `add`."""
        processor, family = self._for(model)
        with processor.budget.hold() as hold:
            items = await processor.measure(sources, family, hold=hold)
        return replace(prompt, token_ids=(await _expand(prompt, items, family, sources)).token_ids)

    def _for(self, model: ServedModel) -> tuple[MediaProcessor, Family]:
        assert self._processor is not None, "checked before"
        assert model.family is not None, "checked before"
        return self._processor, model.family


async def _expand(
    prompt: PreparedPrompt, items: Sequence[ProcessedItem], family: Family, sources: Sequence[MediaSource]
) -> Expanded:
    """See `expansion.expand`; in a thread for long prompts."""
    work = partial(expand, prompt.token_ids, items, family, param=sources[0].where)
    if len(prompt.token_ids) + sum(len(item.layout.token_ids) for item in items) <= _EXPANDED_INLINE:
        return work()
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


def check_typed(request: ChatRequest, sources: Sequence[MediaSource], model: ServedModel) -> None:
    """Refuse texts that hold a placeholder: it would be taken for one of the media of the request.

    Raises:
        MediaPlaceholderMismatch: naming the message.
    """
    words = {_written(model, modality) for modality in {source.modality for source in sources}}
    named: list[tuple[str, Any]] = [(f"messages[{index}]", one) for index, one in enumerate(request.messages)]
    named += [("tools", request.tools), ("documents", request.documents)]
    named += [("chat_template_kwargs", request.chat_template_kwargs)]
    for param, value in named:
        for text in texts_in(value):
            if (word := next((word for word in words if word in text), None)) is not None:
                raise MediaPlaceholderMismatch(
                    f"{param}: the text holds '{word}', the model's own placeholder for media; remove it.", param=param
                )


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a JSON value but the names of its fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for member in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(member)


def place_media(
    render: Callable[[MediaMarks], Rendered], sources: Sequence[MediaSource], model: ServedModel
) -> tuple[str, list[MediaSource]]:
    """The prompt with a placeholder for each of the media, and the media in the order of these.

    A template that reads parts prints placeholders of its own. Where it leaves one out (in a role whose content it
    takes for text), all are put into the texts, as they are for templates that take only text.

    Args:
        render: with these marks, the messages.
        sources: the request's.
        model: whose placeholders are put in.

    Raises:
        ClientFault: the conversation cannot be rendered.
        MediaPlaceholderMismatch: the template leaves media out, or shows some twice.
    """
    assert model.family is not None, "checked before"
    refusal: InvalidRequest | None = None
    wanted = Counter(source.modality for source in sources)
    for in_parts in (True, False):
        marks = MediaMarks(in_parts=in_parts)
        try:
            rendered = render(marks)
        except InvalidRequest as error:
            refusal = refusal or error
            continue
        placed = marks.sources_in(rendered.messages)
        prompt = marks.replace(rendered.prompt, model.family.placeholder)
        if len(placed) == len(sources) and all(
            prompt.count(_written(model, modality)) == count for modality, count in wanted.items()
        ):
            return prompt, placed
    if refusal is not None:
        raise refusal
    raise MediaPlaceholderMismatch(
        f"{sources[0].where}: the chat template does not show all media of the conversation; "
        "send them in messages of role 'user'.",
        param=sources[0].where,
    )


def _written(model: ServedModel, modality: Modality) -> str:
    """A placeholder as it reads in a prompt."""
    assert model.family is not None, "checked before"
    return _decoded(model.text.tokenizer, model.family.placeholder_ids(modality))


@lru_cache(maxsize=64)
def _decoded(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)
