"""What is done with the text of one answer, decided once per request: `plan_answer`.

* Reasoning is split off by the model's reasoning parser, armed by the end of the prompt.
* Tools with ``auto`` are found by the model's tool-call parser; with ``required`` and ``named`` the engine is held to
  calls, in the family's own form where there is one; with ``none`` markup stays text.
* A constraint for calls takes the place of the client's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from smg_trio.parsers.answer import AnswerParser
from smg_trio.parsers.base import ToolParser
from smg_trio.parsers.call_ids import MakeCallId, call_ids
from smg_trio.parsers.constraints import (
    ToolChoice,
    callable_tools,
    constrain_answer,
    constrain_calls,
    parameter_schema,
)
from smg_trio.parsers.plugin import ParserContext, ParserPlugin
from smg_trio.parsers.registry import (
    ParserName,
    choose_reasoning_parser,
    choose_tool_parser,
    make_reasoning_parser,
    make_tool_parser,
    parser_name,
    reads_frames,
    reasoning_habit,
    reasoning_state,
)
from smg_trio.parsers.special_tokens import split_special_tokens
from smg_trio.parsers.tool.forced import ForcedCallParser, ForcedListParser, ForcedTextParser

if TYPE_CHECKING:
    from smg_trio.core.requests import StructuredOutput
    from smg_trio.parsers.base import ScriptParser

MakeTool = Callable[[], ToolParser]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlan:
    """What to do for one request.

    Attributes:
        make_parser: a new parser for each choice; None: the text is shown as it comes.
        structured_output: the constraint to send to the engine, calls or the client's own; None for none.
        needs_special_tokens: detokenize with ``skip_special_tokens=False``; the parser takes out what must not show.
        counts_reasoning: the answer may hold reasoning, so its tokens are counted.
        reasoning_ended: `GenerationRequest.reasoning_ended`: whether the prompt leaves no reasoning open, so that a
            constraint holds from the first token; None where only the engine can tell.
        tool_parser, reasoning_parser: names of what reads the answer, for logs and statistics.
    """

    make_parser: Callable[[], AnswerParser] | None = None
    structured_output: StructuredOutput | None = None
    needs_special_tokens: bool = False
    counts_reasoning: bool = False
    reasoning_ended: bool | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None


@dataclass(frozen=True, slots=True)
class _ReasoningPlan:
    """How the reasoning is read. `name` is None where nothing splits it off; `merged`: it is shown as content."""

    name: ParserName | None
    opened: bool
    ended: bool | None
    merged: bool = False


@dataclass(frozen=True, slots=True)
class _Calls:
    """How calls are read and made. `native`: the parser if it is the family's own."""

    make: MakeTool | None = None
    native: ParserName | None = None
    constraint: StructuredOutput | None = None
    make_call_id: MakeCallId | None = None


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Makes the parser of one choice."""

    reasoning_plan: _ReasoningPlan
    calls: _Calls
    json_answer: bool
    hidden: frozenset[str]
    single_call: bool
    context: ParserContext | None

    def __call__(self) -> AnswerParser:
        plan = self.reasoning_plan
        tool = self._tool_parser()
        if tool is not None:
            tool.starts_in_reasoning = plan.opened
        splits: ScriptParser | None = None
        if isinstance(plan.name, ParserPlugin):
            splits = plan.name.make(self._context, self.hidden)
        elif plan.name:
            splits = make_reasoning_parser(plan.name, plan.opened, self.json_answer)
        return AnswerParser(
            splits,
            tool,
            hidden=self.hidden,
            make_call_id=self.calls.make_call_id,
            single_call=self.single_call,
            merged=plan.merged,
        )

    def _tool_parser(self) -> ToolParser | None:
        if isinstance(self.calls.native, ParserPlugin):
            return self.calls.native.make(self._context, self.hidden)
        return self.calls.make() if self.calls.make else None

    @property
    def _context(self) -> ParserContext:
        assert self.context is not None, "there is one where there are plug-ins"
        return replace(self.context, json_answer=self.json_answer)


def plan_answer(
    *,
    model_name: str = "",
    template_source: str = "",
    prompt_text: str = "",
    continued_text: str = "",
    tools: Sequence[Mapping[str, Any]] = (),
    tool_choice: ToolChoice | None = None,
    parallel_tool_calls: bool = True,
    earlier_calls: int = 0,
    constraint: StructuredOutput | None = None,
    separate_reasoning: bool = True,
    thinking: bool | None = None,
    special_tokens: frozenset[str] = frozenset(),
    skip_special_tokens: bool = True,
    structural_tags: bool = True,
    tool_flag: ParserName | None = None,
    tool_label: str | None = None,
    reasoning_flag: ParserName | None = None,
    reasoning_label: str | None = None,
    tokenizer_has: Callable[[str], bool] | None = None,
) -> AnswerPlan:
    """Decides everything about the text of an answer.

    Args:
        prompt_text: the rendered prompt, or its end (200 characters are looked at).
        continued_text: the assistant's own text at the end of the prompt, where the answer goes on from it.
        tools: ``{"type": "function", "function": {"name", "parameters", "strict"}}``.
        tool_choice: None and ``none``: calls are not looked for.
        parallel_tool_calls: False: calls behind the first are prevented, or left out.
        earlier_calls: calls that the conversation holds (for families that number them).
        constraint: the client's own.
        separate_reasoning: False leaves reasoning in the content.
        thinking: whether the template's switch stands on thinking; None where it has none.
        special_tokens: texts of the tokenizer's special tokens; the same object for each request of a model.
        skip_special_tokens: what the client wants; False shows those that are no markup.
        structural_tags: the engine takes xgrammar's structural tags (vLLM's xgrammar backend does).
        tool_flag, reasoning_flag: what the operator named for the model.
        tool_label, reasoning_label: the worker's labels.
        tokenizer_has: see `ParserContext`; only plug-ins ask.

    Raises:
        ConfigError: a flag or label is no known parser.
    """
    single = not parallel_tool_calls
    family = choose_tool_parser(tool_flag, tool_label, model_name, template_source)
    reasoning = choose_reasoning_parser(reasoning_flag, reasoning_label, model_name, template_source)
    calls = _plan_calls(tools, tool_choice, family, template_source, earlier_calls, single, structural_tags)
    reasoning_plan = _plan_reasoning(reasoning, prompt_text, continued_text, thinking)
    structured = calls.constraint
    if structured is None and constraint is not None:
        structured = constrain_answer(_built_in(reasoning), constraint) if structural_tags else constraint
    if not separate_reasoning:
        reasoning_plan = _merge_reasoning(reasoning_plan, calls)
    context = None
    if isinstance(calls.native, ParserPlugin) or isinstance(reasoning_plan.name, ParserPlugin):
        context = _context_for_plugins(model_name, prompt_text, continued_text, tools, tool_choice, tokenizer_has)
    return _assemble(reasoning_plan, calls, structured, special_tokens, skip_special_tokens, single, context)


def _context_for_plugins(
    model_name: str,
    prompt: str,
    continued: str,
    tools: Sequence[Mapping[str, Any]],
    choice: ToolChoice | None,
    tokenizer_has: Callable[[str], bool] | None,
) -> ParserContext:
    functions = callable_tools(tools, choice) if choice is not None and choice.mode != "none" else {}
    context = ParserContext(
        tools={name: parameter_schema(function) for name, function in functions.items()},
        model_name=model_name,
        starts_in_reasoning=reasoning_state("base", prompt, continued),
        prompt_end=prompt[-200:],
    )
    return context if tokenizer_has is None else replace(context, tokenizer_has=tokenizer_has)


def _assemble(
    reasoning_plan: _ReasoningPlan,
    calls: _Calls,
    structured: StructuredOutput | None,
    special_tokens: frozenset[str],
    hide: bool,
    single: bool,
    context: ParserContext | None,
) -> AnswerPlan:
    needs, hidden = _special_tokens(_built_in(reasoning_plan.name), _built_in(calls.native), special_tokens)
    if context is not None and not needs and _plugins_need_special_tokens(context, reasoning_plan.name, calls.native):
        needs, hidden = True, special_tokens
    json_answer = structured is not None and structured.kind in ("json", "json_object")
    recipe = _Recipe(reasoning_plan, calls, json_answer, hidden if hide else frozenset(), single, context)
    return AnswerPlan(
        make_parser=recipe if reasoning_plan.name or calls.make or calls.native else None,
        structured_output=structured,
        needs_special_tokens=needs,
        counts_reasoning=reasoning_plan.name is not None and not reasoning_plan.merged,
        reasoning_ended=reasoning_plan.ended if structured is not None else None,
        tool_parser=parser_name(calls.native),
        reasoning_parser=parser_name(reasoning_plan.name),
    )


def _plugins_need_special_tokens(context: ParserContext, *parsers: ParserName | None) -> bool:
    return any(isinstance(parser, ParserPlugin) and parser.make(context).needs_special_tokens for parser in parsers)


def _built_in(parser: ParserName | None) -> str | None:
    return parser if isinstance(parser, str) else None


def _plan_calls(
    tools: Sequence[Mapping[str, Any]],
    choice: ToolChoice | None,
    family: ParserName | None,
    template_source: str,
    earlier_calls: int,
    single: bool,
    structural_tags: bool,
) -> _Calls:
    functions = callable_tools(tools, choice) if choice is not None and choice.mode != "none" else {}
    if choice is None or not functions:
        return _Calls()
    schemas = {name: parameter_schema(function) for name, function in functions.items()}
    ids = call_ids(_built_in(family), earlier_calls)
    if choice.mode == "named" and choice.name and choice.text_format is not None:
        return _Calls(partial(ForcedTextParser, choice.name, schemas), None, choice.text_format, ids)
    held = constrain_calls(
        functions,
        choice,
        parser=_built_in(family),
        single=single,
        template_source=template_source,
        structural_tags=structural_tags,
    )
    constraint = held.structured if held else None
    if held is not None and not held.native:
        forced = partial(ForcedCallParser, choice.name) if choice.mode == "named" and choice.name else ForcedListParser
        return _Calls(partial(forced, schemas), None, constraint, ids)
    if family is None:
        return _Calls()
    if isinstance(family, ParserPlugin):
        return _Calls(None, family, constraint, ids)
    return _Calls(partial(make_tool_parser, family, schemas), family, constraint, ids)


def _plan_reasoning(name: ParserName | None, prompt: str, continued: str, thinking: bool | None) -> _ReasoningPlan:
    """Only the very end of the prompt says whether reasoning is open; where it says nothing, the family's habit.

    What a plug-in's markers are, and so whether they are closed, only the plug-in knows.
    """
    if not isinstance(name, str):
        return _ReasoningPlan(name, opened=False, ended=None)
    state = reasoning_state(name, prompt, continued)
    if state is not None:
        return _ReasoningPlan(name, opened=state, ended=not state)
    if thinking is False:
        return _ReasoningPlan(name, opened=False, ended=True)
    return _ReasoningPlan(name, opened=reasoning_habit(name), ended=None)


def _merge_reasoning(plan: _ReasoningPlan, calls: _Calls) -> _ReasoningPlan:
    """The reasoning as content: with its markers, unless something else could not be read with them in the text."""
    frames = isinstance(plan.name, str) and reads_frames(plan.name)
    split = plan.name is not None and (frames or (calls.make is not None and not calls.native))
    return _ReasoningPlan(plan.name if split else None, plan.opened, plan.ended, merged=True)


@lru_cache(maxsize=64)
def _special_tokens(
    reasoning: str | None, tool: str | None, special_tokens: frozenset[str]
) -> tuple[bool, frozenset[str]]:
    """Whether the parsers must see special tokens, and the ones to hide then.

    A family's markers may be special tokens in one model's tokenizer and not in another's: the tokenizer decides.
    """
    parsers = [
        *([make_reasoning_parser(reasoning)] if reasoning else []),
        *([make_tool_parser(tool, {})] if tool else []),
    ]
    _, markup = split_special_tokens(special_tokens, [marker for parser in parsers for marker in parser.markers])
    needs = bool(markup) or any(parser.needs_special_tokens for parser in parsers)
    return needs, special_tokens if needs else frozenset()
