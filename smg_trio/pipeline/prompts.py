"""A prompt on its way from a request to an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.core.records import record

if TYPE_CHECKING:
    from smg_trio.pipeline.prepared_media import PreparedMedia


@record
class PreparedPrompt:
    """A prompt as the engine will see it.

    Attributes:
        text: None for prompts given as token ids. It shows the placeholders of media, which `token_ids` has expanded.
        media: what is in it beside text.
    """

    token_ids: list[int]
    text: str | None
    media: PreparedMedia | None = None
