"""Responses in one piece: the same updates as a stream, folded into one response object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smg_trio.api.json_text import dump, encode_text
from smg_trio.api.openai.responses.object import ResponseAnswer, failed_end, response_value
from smg_trio.api.openai.responses.output import ResponseOutput

if TYPE_CHECKING:
    from smg_trio.core.events import ChoiceUpdate, Usage


class ResponseFold:
    """Gathers the updates of a response, then writes its body."""

    __slots__ = ("_answer", "_output")

    def __init__(self, answer: ResponseAnswer) -> None:
        self._answer = answer
        self._output = ResponseOutput(answer)

    @property
    def output(self) -> ResponseOutput:
        """What there is so far."""
        return self._output

    def resolved(self, answer: ResponseAnswer) -> None:
        """See `ResponseOutput.resolved`."""
        self._answer = answer
        self._output.resolved(answer)

    def update(self, update: ChoiceUpdate) -> bytes:
        """As `feed`; there are no events."""
        self._output.steps(update)
        return b""

    def work_begins(self, index: int) -> bytes:
        """There are no events."""
        return b""

    def work_ends(self, index: int) -> bytes:
        """There are no events."""
        return b""

    def feed(self, update: ChoiceUpdate) -> None:
        """Add one update."""
        self._output.steps(update)

    def fail(self, exc: BaseException) -> None:
        """The response failed: what a background response shows instead of an HTTP error."""
        self._output.fail(failed_end(exc))

    def not_stored(self) -> None:
        """The response could not be kept: it is shown so from now on."""
        self._answer = self._answer.not_stored()

    def response(self, usage: Usage | None = None) -> dict[str, Any]:
        """The response object as it is now: what is to be stored."""
        output = self._output
        return response_value(self._answer, output.end, output.values(), usage, output.further())

    def body(self, usage: Usage) -> bytes:
        """The whole response as JSON."""
        return encode_text(dump(self.response(usage)))
