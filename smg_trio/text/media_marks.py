"""Media in a conversation on its way through a chat template: `MediaMarks`. Pure.

A template that reads content part by part prints a placeholder of its own for each. One that takes text, of all
messages or of some roles, is given a mark in the text at the part's place, which becomes the model's placeholder when
the prompt is rendered. A mark tells which part it stands for wherever the template puts its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from secrets import token_hex
from typing import Any

from smg_trio.core.media import MediaPart, MediaSource, Modality


class MediaMarks:
    """The media of one request.

    Attributes:
        in_parts: whether a template that reads parts is given media as parts; if not, all are marks in texts.
    """

    __slots__ = ("_pattern", "_sources", "_tag", "in_parts")

    def __init__(self, *, in_parts: bool) -> None:
        self.in_parts = in_parts
        self._sources: list[MediaSource] = []
        self._tag = f"media{token_hex(8)}n"  # no text of a request has it by chance, and none can know it
        self._pattern = re.compile(f"{self._tag}(\\d+)x")

    def mark(self, source: MediaSource) -> str:
        """A text that stands for the media from now on."""
        self._sources.append(source)
        return f"{self._tag}{len(self._sources) - 1}x"

    def sources_in(self, messages: Iterable[Mapping[str, Any]]) -> list[MediaSource]:
        """The media of messages that are to be rendered, in order."""
        found: list[MediaSource] = []
        for message in messages:
            content = message.get("content")
            if isinstance(content, list):
                for part in content:
                    found += [part.source] if type(part) is MediaPart else self._marked(part.get("text"))
            else:
                found += self._marked(content)
        return found

    def replace(self, prompt: str, placeholder: Callable[[Modality], str]) -> str:
        """The rendered prompt with placeholders for marks."""
        return self._pattern.sub(lambda mark: placeholder(self._sources[int(mark[1])].modality), prompt)

    def split(self, text: str) -> list[str | MediaSource]:
        """A text cut at its marks: what stands before, between and behind them, and what they stand for."""
        pieces = self._pattern.split(text)
        return [self._sources[int(piece)] if place % 2 else piece for place, piece in enumerate(pieces)]

    def _marked(self, text: Any) -> list[MediaSource]:
        if not self._sources or not isinstance(text, str):
            return []
        return [self._sources[int(number)] for number in self._pattern.findall(text)]
