"""Which parser for which model: by name, by model name, by what the chat template says.

Names are accepted in the reference gateway's spelling and in vLLM's (and SGLang's where it differs), in any
case and with ``-`` for ``_``. Adding a family is adding its lines to the tables in `families`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from smg_trio.core.errors import ConfigError
from smg_trio.parsers.answer import AnswerParser
from smg_trio.parsers.families import AUTOMATIC, PASSTHROUGH, TOOL_ALIASES, TOOL_MODELS, TOOL_PARSERS, TOOL_TEMPLATES
from smg_trio.parsers.plugin import ParserContext, ParserPlugin
from smg_trio.parsers.reasoning.families import (
    REASONING_ALIASES,
    REASONING_FORMATS,
    REASONING_MODELS,
    REASONING_TEMPLATES,
)
from smg_trio.parsers.reasoning.think import SuffixedThinkParser, ThinkFormat, ThinkParser

if TYPE_CHECKING:
    from smg_trio.parsers.base import ScriptParser, ToolParser, ToolSchemas


ParserName = str | ParserPlugin
"""A parser of ours by its name, or a plug-in that has been loaded."""


def parser_name(parser: ParserName | None) -> str | None:
    """What flags and labels call it."""
    return parser.name if isinstance(parser, ParserPlugin) else parser


def tool_parser_names() -> list[str]:
    """Every name `--tool-call-parser` accepts, sorted."""
    return sorted({PASSTHROUGH, *AUTOMATIC, *TOOL_PARSERS, *TOOL_ALIASES})


def reasoning_parser_names() -> list[str]:
    """Every name `--reasoning-parser` accepts, sorted."""
    return sorted({PASSTHROUGH, *AUTOMATIC, *REASONING_FORMATS, *REASONING_ALIASES})


@lru_cache(maxsize=256)
def choose_tool_parser(
    flag: ParserName | None = None,
    label: str | None = None,
    model_name: str = "",
    template_source: str = "",
) -> ParserName | None:
    """Name of the tool-call parser for a model, or the plug-in that the flag named, or None for none.

    The operator's flag counts first, then the worker's label, the model's name, the chat template. `PASSTHROUGH` as
    flag or label means none, an `AUTOMATIC` name counts as no flag or label.

    Raises:
        ConfigError: flag or label is no known name.
    """
    if isinstance(flag, ParserPlugin):
        return flag
    named = _stated(flag) or _stated(label)
    if named:
        return _canonical(named, "--tool-call-parser", TOOL_PARSERS, TOOL_ALIASES)
    return _longest_stem(model_name, TOOL_MODELS) or _first_marker(template_source, TOOL_TEMPLATES)


@lru_cache(maxsize=256)
def choose_reasoning_parser(
    flag: ParserName | None = None,
    label: str | None = None,
    model_name: str = "",
    template_source: str = "",
) -> ParserName | None:
    """Name of the reasoning parser for a model, its plug-in, or None for none; see `choose_tool_parser`."""
    if isinstance(flag, ParserPlugin):
        return flag
    named = _stated(flag) or _stated(label)
    if named:
        return _canonical(named, "--reasoning-parser", REASONING_FORMATS, REASONING_ALIASES)
    return _longest_stem(model_name, REASONING_MODELS) or _first_marker(template_source, REASONING_TEMPLATES)


def make_tool_parser(name: str, tools: ToolSchemas) -> ToolParser:
    """A tool-call parser for one answer. Raises ConfigError for a name that is not known."""
    known = _canonical(name, "--tool-call-parser", TOOL_PARSERS, TOOL_ALIASES)
    if known is None:
        raise ConfigError("--tool-call-parser", f"{name!r} parses nothing")
    return TOOL_PARSERS[known](tools)


def make_reasoning_parser(
    name: str, starts_in_reasoning: bool | None = None, json_answer: bool = False
) -> ScriptParser:
    """A reasoning parser for one answer; None: the family's habit decides where the answer begins.

    `json_answer`: see `ThinkParser`.
    """
    known = _canonical(name, "--reasoning-parser", REASONING_FORMATS, REASONING_ALIASES)
    if known is None:
        raise ConfigError("--reasoning-parser", f"{name!r} parses nothing")
    form = REASONING_FORMATS[known]
    if isinstance(form, ThinkFormat):
        make = SuffixedThinkParser if form.suffixed else ThinkParser
        return make(form, starts_in_reasoning, json_answer)
    parser = form.make()
    parser.starts_in_reasoning = bool(starts_in_reasoning)
    return parser


def reasoning_state(name: str, prompt: str, continued: str = "") -> bool | None:
    """What the end of the prompt says of the reasoning: open, closed, or (None) nothing; see `ThinkFormat.state`."""
    return REASONING_FORMATS[name].state(prompt, continued)


def reasoning_habit(name: str) -> bool:
    """Whether the family's prompts end inside the reasoning where they do not say so."""
    return REASONING_FORMATS[name].opened_by("")


def reads_frames(name: str) -> bool:
    """Whether the family frames its whole answer, so that it cannot be shown unparsed."""
    return not isinstance(REASONING_FORMATS[name], ThinkFormat)


def make_answer_parser(
    reasoning: ParserName | None,
    tool: ParserName | None,
    tools: ToolSchemas | None = None,
    starts_in_reasoning: bool | None = None,
) -> AnswerParser:
    """The parser of one answer, from what `choose_reasoning_parser` and `choose_tool_parser` give."""
    context = ParserContext(tools=tools or {}, starts_in_reasoning=starts_in_reasoning)
    finds_calls: ToolParser | None = None
    if isinstance(tool, ParserPlugin):
        finds_calls = tool.make(context)
    elif tool:
        finds_calls = make_tool_parser(tool, tools or {})
        finds_calls.starts_in_reasoning = bool(starts_in_reasoning)
    splits_reasoning: ScriptParser | None = None
    if isinstance(reasoning, ParserPlugin):
        splits_reasoning = reasoning.make(context)
    elif reasoning:
        splits_reasoning = make_reasoning_parser(reasoning, starts_in_reasoning)
    return AnswerParser(splits_reasoning, finds_calls)


def _stated(name: str | None) -> str | None:
    """A flag or label, if it names a parser."""
    return None if name is None or _key(name) in AUTOMATIC else name


def _key(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def _canonical(name: str, option: str, known: Mapping[str, object], aliases: Mapping[str, str]) -> str | None:
    key = _key(name)
    key = aliases.get(key, key)
    if key == PASSTHROUGH:
        return None
    if key not in known:
        raise ConfigError(option, f"{name!r} is not a known parser.", f"Known: {', '.join(sorted(known))}.")
    return key


def _longest_stem(model_name: str, stems: Mapping[str, str]) -> str | None:
    model = model_name.lower()
    stem = max((stem for stem in stems if stem in model), key=len, default=None)
    return stems[stem] if stem else None


def _first_marker(template_source: str, markers: Mapping[str, str]) -> str | None:
    return next((name for marker, name in markers.items() if marker in template_source), None)
