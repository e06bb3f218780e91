"""Responses, streamed: `ChoiceUpdate` to the official sequence of events.

``response.created``, (``response.queued``,) ``response.in_progress``, each with the whole response object; per item
``output_item.added``, its deltas and dones, ``output_item.done`` (of a call of an MCP tool only once the tool has
answered, so that items of one round overlap); at the end ``response.completed``, ``.incomplete`` or
``.failed`` with the whole response. There is no ``[DONE]``. Every event has a ``sequence_number``, counted from 0.

Over HTTP an event is a named SSE event; over a WebSocket it is one message. There every line of the bytes that come
out is one message: JSON text holds no raw line break.
"""

from __future__ import annotations

from dataclasses import replace
from json.encoder import encode_basestring as quote
from typing import TYPE_CHECKING

from smg_trio.api.blocks import BlockDelta, BlockKind, BlockStart, BlockStop, Step
from smg_trio.api.errors import error_view
from smg_trio.api.json_text import dump, encode_text
from smg_trio.api.openai.responses.object import ResponseAnswer, ResponseEnd, failed_end, response_value
from smg_trio.api.openai.responses.output import OutputItem, ResponseOutput, TextLogprobs
from smg_trio.core.events import ChoiceUpdate, ContentDelta, Usage

if TYPE_CHECKING:
    from smg_trio.api.openai.responses.mcp_work import McpWork

_NAMES: dict[BlockKind, str] = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "call": "response.function_call_arguments",
}
_CUSTOM_NAME = "response.custom_tool_call_input"


class ResponseEventWriter:
    """Writes the events of one streamed response; every method returns whole events.

    Attributes:
        sequence: number of the next event.
    """

    __slots__ = ("_answer", "_as_messages", "_delta_start", "_output", "_tail", "sequence")

    def __init__(self, answer: ResponseAnswer, *, as_messages: bool = False, stream_id: str | None = None) -> None:
        """Begin a stream.

        Args:
            answer: what is known so far.
            as_messages: write WebSocket messages, one a line, instead of SSE events.
            stream_id: repeated in every event (WebSocket mode).
        """
        self._answer = answer
        self._as_messages = as_messages
        self._tail = "" if stream_id is None else f',"stream_id":{quote(stream_id)}'
        self._tail += "}\n" if as_messages else "}\n\n"
        self._output = ResponseOutput(answer)
        self._delta_start = ""
        self.sequence = 0

    def head(self, *, queued: bool = False) -> bytes:
        """What opens the stream; ``queued`` for a response in the background."""
        states = ["in_progress", "in_progress"]
        names = ["response.created", "response.in_progress"]
        if queued:
            states, names = ["queued", "queued", "in_progress"], [names[0], "response.queued", names[1]]
        events = [
            self._event(name, f'"response":{dump(response_value(self._answer, ResponseEnd(state)))}')
            for name, state in zip(names, states, strict=True)
        ]
        return encode_text("".join(events))

    def end_without_output(self) -> None:
        """The response is complete as it is: nothing is generated."""
        self._output.end = ResponseEnd("completed")

    def update(self, update: ChoiceUpdate, usage: Usage | None = None) -> bytes:
        """The events of one update; may be none. ``usage`` is not shown: only the last event has a place for it."""
        events = update.events
        item = self._output.open_item
        if (
            item is not None
            and item.kind == "text"
            and len(events) == 1
            and update.finish is None
            and update.logprobs is None
            and type(events[0]) is ContentDelta
        ):
            text = events[0].text
            item.pieces.append(text)
            self._output.note_tokens(update)
            return encode_text(self._delta(text, "text", ""))
        written = []
        logprobs = ""
        for step in self._output.steps(update):
            if isinstance(step, TextLogprobs):
                logprobs = step.entries
                continue
            written.append(self._written(step, logprobs))
            logprobs = ""
        return encode_text("".join(written))

    @property
    def output(self) -> ResponseOutput:
        """What there is so far."""
        return self._output

    def resolved(self, answer: ResponseAnswer) -> None:
        """See `ResponseOutput.resolved`."""
        self._answer = answer
        self._output.resolved(answer)

    def work_begins(self, index: int) -> bytes:
        """The events of an item that is not the model's: a list of tools, or a call that was approved."""
        item = self._output.items[index]
        events = self._added(index, replace(item, pieces=[])) + self._work(index, item, "in_progress")
        if item.call is not None:
            done = self._event(
                "response.mcp_call_arguments.done", f'{_place(index, item)},"arguments":{quote(item.text)}'
            )
            events += self._event(
                "response.mcp_call_arguments.delta", f'{_place(index, item)},"delta":{quote(item.text)}'
            )
            events += done
        return encode_text(events)

    def work_ends(self, index: int) -> bytes:
        """The events of a list that has come, or a call that was run; of one that failed, or is not run any more."""
        item = self._output.items[index]
        state = "" if item.status == "incomplete" else self._work(index, item, item.status)
        return encode_text(state + self._done(index, item))

    def usage_chunk(self, usage: Usage) -> bytes:
        """What ends the stream: the whole response."""
        output = self._output
        return encode_text(self._event(output.end.event, f'"response":{self._response(usage)}'))

    def failed(self, exc: BaseException, usage: Usage | None = None) -> bytes:
        """What ends a stream that fails: ``response.failed`` with what there is, which is not kept."""
        self.not_stored()
        self._output.fail(failed_end(exc))
        return encode_text(self._event("response.failed", f'"response":{self._response(usage)}'))

    def error(self, exc: BaseException) -> bytes:
        """What ends a stream that has no response to show."""
        view = error_view(exc)
        members = {"code": view.code, "message": view.message, "param": view.param}
        return encode_text(self._event("error", dump(members)[1:-1]))

    def not_stored(self) -> None:
        """The response could not be kept: it is shown so from now on."""
        self._answer = self._answer.not_stored()

    def response(self, usage: Usage | None = None) -> dict[str, object]:
        """The response object as it is now: what is to be stored."""
        output = self._output
        return response_value(self._answer, output.end, output.values(), usage, output.further())

    def _response(self, usage: Usage | None) -> str:
        return dump(self.response(usage))

    def _written(self, step: Step, logprobs: str) -> str:
        item = self._output.items[step.index]
        if item.mcp is not None:
            return self._mcp(step, item, item.mcp)
        if isinstance(step, BlockDelta):
            return self._delta(step.text, step.kind, logprobs)
        if isinstance(step, BlockStart):
            return self._start(step.index, item)
        return self._stop(step.index, item)

    def _start(self, index: int, item: OutputItem) -> str:
        begun = replace(item, pieces=[], logprobs=None, status="in_progress")
        added = self._added(index, begun)
        where = _place(index, item)
        self._delta_start = self._opening(f"{_name(item)}.delta", f'{where},"delta":')
        if item.call is not None:
            return added
        return added + self._event("response.content_part.added", f'{where},"part":{dump(begun.part())}')

    def _stop(self, index: int, item: OutputItem) -> str:
        name, where = f"{_name(item)}.done", _place(index, item)
        if item.custom_input is not None:
            events = self._event(name, f'{where},"input":{quote(item.text)}')
        elif item.call is not None:
            events = self._event(name, f'{where},"name":{quote(item.called_name)},"arguments":{quote(item.text)}')
        else:
            members = f'{where},"text":{quote(item.text)}'
            if item.kind == "text":
                members += f',"logprobs":{dump(item.logprob_values())}'
            events = self._event(name, members)
            events += self._event("response.content_part.done", f'{where},"part":{dump(item.part())}')
        return events + self._done(index, item)

    def _mcp(self, step: Step, item: OutputItem, work: McpWork) -> str:
        """What the model says of a call of an MCP tool; of one that needs approval, only all at once."""
        index = step.index
        if work.kind == "approval":
            return self._added(index, item) + self._done(index, item) if isinstance(step, BlockStop) else ""
        if isinstance(step, BlockDelta):
            return self._delta(step.text, step.kind, "")
        where = _place(index, item)
        if isinstance(step, BlockStart):
            self._delta_start = self._opening("response.mcp_call_arguments.delta", f'{where},"delta":')
            return self._added(index, replace(item, pieces=[])) + self._work(index, item, "in_progress")
        events = self._event("response.mcp_call_arguments.done", f'{where},"arguments":{quote(item.text)}')
        return events if item.status == "in_progress" else events + self._done(index, item)

    def _work(self, index: int, item: OutputItem, state: str) -> str:
        return "" if item.mcp is None else self._event(f"{item.mcp.events}.{state}", _place(index, item))

    def _added(self, index: int, item: OutputItem) -> str:
        return self._event("response.output_item.added", f'"output_index":{index},"item":{dump(item.value())}')

    def _done(self, index: int, item: OutputItem) -> str:
        return self._event("response.output_item.done", f'"output_index":{index},"item":{dump(item.value())}')

    def _delta(self, text: str, kind: BlockKind, logprobs: str) -> str:
        shown = f',"logprobs":[{logprobs}]' if kind == "text" else ""
        return f"{self._delta_start}{quote(text)}{shown}{self._closing()}"

    def _event(self, name: str, members: str) -> str:
        return f"{self._opening(name, members)}{self._closing()}"

    def _opening(self, name: str, members: str) -> str:
        frame = "" if self._as_messages else f"event: {name}\ndata: "
        return f'{frame}{{"type":"{name}",{members}'

    def _closing(self) -> str:
        number, self.sequence = self.sequence, self.sequence + 1
        return f',"sequence_number":{number}{self._tail}'


def _name(item: OutputItem) -> str:
    """What the events of an item's text are called."""
    return _NAMES[item.kind] if item.custom_input is None else _CUSTOM_NAME


def _place(index: int, item: OutputItem) -> str:
    """Where an event belongs: the item, and its only content part."""
    where = f'"item_id":{quote(item.item_id)},"output_index":{index}'
    return where if item.call is not None or item.mcp is not None else f'{where},"content_index":0'
