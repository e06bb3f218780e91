"""Updates to output items: the one step that streamed and folded responses share.

Each block of the answer is an item: reasoning is a ``reasoning`` item, text a ``message``, a call a ``function_call``
or a ``custom_tool_call``, as the client declared the tool.
Log probabilities belong to the text they are of: those of tokens whose text is still held back wait for it, those of
reasoning and calls have no place in this API.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smg_trio.api.blocks import AnswerBlocks, BlockDelta, BlockKind, BlockStart, Step
from smg_trio.api.chat_answer import ChatAnswer
from smg_trio.api.chat_events import CallStart, ChatEvents
from smg_trio.api.openai.answer import logprob_entries
from smg_trio.api.openai.responses.custom_tools import CustomInput
from smg_trio.api.openai.responses.mcp_work import McpWork, work_of
from smg_trio.api.openai.responses.object import ResponseAnswer, ResponseEnd
from smg_trio.api.openai.responses.tools import called_tool
from smg_trio.core.outputs import FinishReason

if TYPE_CHECKING:
    from smg_trio.api.openai.responses.tools import DeclaredTool
    from smg_trio.core.conversations import Item
    from smg_trio.core.events import ChoiceFinish, ChoiceUpdate
    from smg_trio.core.mcp import McpResult, McpTool

_PREFIXES: dict[BlockKind, str] = {"text": "msg", "reasoning": "rs", "call": "fc"}


@dataclass(slots=True)
class OutputItem:
    """One item as far as it has come.

    Attributes:
        tool: what the client declared, of a call.
        mcp: what the item is about, if that is an MCP server.
        custom_input: reads the call's arguments, if that is a custom tool.
        logprobs: JSON texts of entries, one per delta that had any.
    """

    item_id: str
    kind: BlockKind
    call: CallStart | None = None
    tool: DeclaredTool | None = None
    mcp: McpWork | None = None
    custom_input: CustomInput | None = None
    pieces: list[str] = field(default_factory=list)
    logprobs: list[str] | None = None
    status: str = "in_progress"

    @property
    def text(self) -> str:
        """All of its text so far."""
        return "".join(self.pieces)

    def part(self) -> Item:
        """Its content part: a text, reasoning."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        logprobs = None if self.logprobs is None else self.logprob_values()
        return {"type": "output_text", "annotations": [], "logprobs": logprobs, "text": self.text}

    def logprob_values(self) -> list[dict[str, Any]]:
        """Its log probabilities."""
        return list(json.loads(f"[{','.join(self.logprobs or ())}]"))

    def value(self) -> Item:
        """The item; while it is in progress, without content parts, since these are added by events of their own."""
        common = {"id": self.item_id, "status": self.status}
        if self.mcp is not None:
            return self.mcp.value(common, self.called_name, self.text)
        if self.call is not None:
            return {**self._call_facts(self.call), **common}
        content = [] if self.status == "in_progress" else [self.part()]
        if self.kind == "reasoning":
            return {"type": "reasoning", "summary": [], "content": content, "encrypted_content": None, **common}
        return {"type": "message", "role": "assistant", "content": content, **common}

    @property
    def called_name(self) -> str:
        """The called tool's own name, without its namespace."""
        if self.call is None:
            return ""
        return self.call.name if self.tool is None else self.tool.name

    def _call_facts(self, call: CallStart) -> Item:
        is_custom = self.custom_input is not None
        namespace = None if self.tool is None else self.tool.namespace
        return {
            "type": "custom_tool_call" if is_custom else "function_call",
            "call_id": call.call_id,
            **({} if namespace is None else {"namespace": namespace}),
            "name": self.called_name,
            "input" if is_custom else "arguments": self.text,
        }


@dataclass(frozen=True, slots=True)
class TextLogprobs:
    """Entries (JSON text, joined) for the delta that follows."""

    entries: str


class ResponseOutput:
    """The output of one response.

    Attributes:
        items: in order; the last one may be in progress.
        end: how the response ended, once it has.
        kv_transfer_params: what the engine handed back.
    """

    __slots__ = ("_answer", "_blocks", "_token_ids", "_waiting", "end", "items", "kv_transfer_params")

    def __init__(self, answer: ResponseAnswer) -> None:
        self._answer = answer
        self._blocks = AnswerBlocks(ChatEvents(_shown_part(answer)))
        self._waiting: list[str] = []
        self._token_ids: list[int] = []
        self.items: list[OutputItem] = []
        self.end = ResponseEnd("in_progress")
        self.kv_transfer_params: dict[str, object] | None = None

    def resolved(self, answer: ResponseAnswer) -> None:
        """More is known of the response: the tools that servers list, what was resolved for the engine."""
        self._answer = answer

    def next_round(self) -> None:
        """The model goes on, with what tools have answered: its next block is the next item."""
        self._blocks = AnswerBlocks(ChatEvents(_shown_part(self._answer)), first=len(self.items))
        self._waiting.clear()
        self._token_ids.clear()
        self.end = ResponseEnd("in_progress")

    def begin(self, work: McpWork, tool: DeclaredTool | None = None, arguments: str = "") -> int:
        """An item that is not the model's, between two rounds; returns its index."""
        call = None if tool is None else CallStart(0, tool.name, "")
        item = OutputItem(self._answer.make_id(work.prefix), "call", call, tool, work, pieces=[arguments])
        self.items.append(item)
        return len(self.items) - 1

    def calls(self) -> list[int]:
        """The indexes of calls that the model has made of MCP tools, and that have not been run."""
        return [
            index
            for index, item in enumerate(self.items)
            if item.mcp is not None and item.mcp.kind == "call" and item.status == "in_progress"
        ]

    def end_work(self, index: int, result: McpResult | None = None, tools: Sequence[McpTool] = ()) -> None:
        """A list has come or a call was run, or failed; without a result, a call is not run any more."""
        item = self.items[index]
        item.status = "incomplete"
        if item.mcp is not None and result is not None:
            item.mcp.output, item.mcp.failure, item.mcp.tools = result.output, result.failure, tools
            item.status = "completed" if result.failure is None else "failed"

    @property
    def waits_for_client(self) -> bool:
        """Whether the client has to run a function, or approve a call, before the model can go on."""
        return any(item.kind == "call" and (item.mcp is None or item.mcp.kind == "approval") for item in self.items)

    @property
    def open_item(self) -> OutputItem | None:
        """The item that is in progress."""
        return self.items[-1] if self.items and self.items[-1].status == "in_progress" else None

    def steps(self, update: ChoiceUpdate) -> list[Step | TextLogprobs]:
        """What one update adds. A `TextLogprobs` precedes the text delta it belongs to."""
        self.note_tokens(update)
        steps = self._blocks.steps(update.events)
        fresh = ""
        if update.logprobs:
            fresh = logprob_entries(update.logprobs, self._answer.top_logprobs, False)
        if update.kv_transfer_params is not None:
            self.kv_transfer_params = update.kv_transfer_params
        if update.finish is not None:
            steps += self._blocks.finish()
            self.end = _end(update.finish)
        shown: list[Step | TextLogprobs] = []
        for step in steps:
            if fresh and isinstance(step, BlockDelta) and step.kind == "text":
                self._waiting.append(fresh)
                fresh = ""
            self._apply(step, shown)
        if fresh and self._blocks.kind in ("text", None):
            self._waiting.append(fresh)
        if update.finish is not None:
            self._finish(update.finish)
        return shown

    def _apply(self, step: Step, shown: list[Step | TextLogprobs]) -> None:
        if isinstance(step, BlockStart):
            if step.kind != "text":
                self._waiting.clear()
            self.items.append(self._begun(step))
        elif isinstance(step, BlockDelta):
            self._add(step, shown)
            return
        else:
            item = self.items[-1]
            if item.custom_input is not None:
                self._add_text(item.custom_input.finish(), step.index, shown)
            self._stop(item)
        shown.append(step)

    def _begun(self, step: BlockStart) -> OutputItem:
        """The item of a block that begins."""
        answer = self._answer
        tool = None if step.call is None else called_tool(step.call.name, answer.declared_tools, answer.mcp_labels)
        is_custom = tool is not None and tool.kind == "custom"
        mcp = None if tool is None else work_of(tool)
        prefix = "ctc" if is_custom else _PREFIXES[step.kind] if mcp is None else mcp.prefix
        custom_input = CustomInput() if is_custom else None
        return OutputItem(self._answer.make_id(prefix), step.kind, step.call, tool, mcp, custom_input)

    def _add(self, step: BlockDelta, shown: list[Step | TextLogprobs]) -> None:
        item = self.items[-1]
        if item.custom_input is not None:
            self._add_text(item.custom_input.feed(step.text), step.index, shown)
            return
        item.pieces.append(step.text)
        if step.kind == "text" and self._waiting:
            shown.append(TextLogprobs(self._take_waiting()))
        shown.append(step)

    def _add_text(self, text: str, index: int, shown: list[Step | TextLogprobs]) -> None:
        """A piece of a custom tool's input."""
        if text:
            self.items[-1].pieces.append(text)
            shown.append(BlockDelta(index, "call", text))

    def _stop(self, item: OutputItem) -> None:
        if item.mcp is None or item.mcp.kind != "call":  # which is completed when the tool has answered
            item.status = "completed"
        if item.kind == "text" and self._waiting:
            self._take_waiting()
        self._waiting.clear()

    def _take_waiting(self) -> str:
        entries = ",".join(self._waiting)
        self._waiting.clear()
        item = self.items[-1]
        item.logprobs = [*(item.logprobs or ()), entries]
        return entries

    def _finish(self, finish: ChoiceFinish) -> None:
        """What the last update's tokens say of the last item, which has stopped by now.

        A stop string that cut a call short must not look like a call that may be run.
        """
        item = self.items[-1]
        if item.kind == "text" and self._waiting:
            self._take_waiting()
        is_cut = item.kind == "call" and isinstance(finish.stop_reason, str) and not self._blocks.last_call_is_whole
        # A whole call of an MCP tool is not over before the tool has answered.
        is_whole = item.mcp is not None and item.mcp.kind == "call" and self._blocks.last_call_is_whole
        if is_cut or (self.end.status == "incomplete" and not is_whole):
            item.status = "incomplete"

    def fail(self, end: ResponseEnd) -> None:
        """End a response in another way than by a finish; an item in progress stays as far as it has come."""
        self.end = end
        for item in self.items:
            if item.status == "in_progress":
                item.status = "incomplete"

    def note_tokens(self, update: ChoiceUpdate) -> None:
        """Remember an update's tokens, if they are to be shown."""
        if self._answer.raw_messages is not None:
            self._token_ids += update.token_ids

    def further(self) -> dict[str, Any]:
        """Members of the response object that only some responses have."""
        raw = self._answer.raw_messages
        members = {} if raw is None else raw.members(self._token_ids)
        if self.kv_transfer_params is not None:
            members["kv_transfer_params"] = self.kv_transfer_params
        return members

    def values(self) -> Sequence[Item]:
        """All items as JSON values."""
        return [item.value() for item in self.items]


def _end(finish: ChoiceFinish) -> ResponseEnd:
    if finish.reason is FinishReason.LENGTH:
        return ResponseEnd("incomplete", "max_output_tokens")
    if finish.reason in (FinishReason.STOP, FinishReason.REPETITION):
        return ResponseEnd("completed")
    return ResponseEnd("failed", error={"code": "server_error", "message": "The engine ended the answer early."})


def _shown_part(answer: ResponseAnswer) -> ChatAnswer:
    return ChatAnswer(
        response_id=answer.response_id,
        model=answer.model,
        created=answer.created_at,
        parallel_tool_calls=answer.parallel_tool_calls,
        show_reasoning=answer.show_reasoning,
        make_call_id=answer.make_call_id,
    )
