"""Parsers that are plug-ins, held to what the rest of an answer relies on.

A plug-in's parser knows nothing of `AnswerParser`, and may be wrong. `PluginParser` stands between the two: it checks
each event, and if the parser raises or returns something else, the answer goes on as plain content from the text that
had not been shown by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from smg_trio.core.events import ContentDelta, ParserEvent, ReasoningDelta, ToolCallArguments, ToolCallStart
from smg_trio.core.plugin_calls import STALL_S, PluginCalls, PluginMistake
from smg_trio.parsers.base import Parser, ToolParser, take_all

if TYPE_CHECKING:
    from smg_trio.parsers.text_cursor import Steps

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_AS_CONTENT: Final = "the rest of the answer is plain content"


def _has_none(_text: str) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserContext:
    """What a plug-in's parser may know of the answer that it is made for.

    Attributes:
        tools: name of each declared tool → the JSON schema of its parameters.
        model_name: the model's name and the last part of where its files are.
        starts_in_reasoning: whether the prompt leaves a ``<think>`` open; None if it says nothing of one.
        json_answer: the answer is held to JSON, so that it cannot begin with markup.
        tokenizer_has: whether a text is one token of the model.
        prompt_end: the last 200 characters of the prompt, for formats with other markers.
        options: of ``--plugin-option NAME.key=value``, by key.
    """

    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)
    model_name: str = ""
    starts_in_reasoning: bool | None = None
    json_answer: bool = False
    tokenizer_has: Callable[[str], bool] = _has_none
    prompt_end: str = ""
    options: Mapping[str, str] = field(default_factory=lambda: _NOTHING)


ParserFactory = Callable[[ParserContext], Parser]


@dataclass(frozen=True, slots=True, eq=False)
class ParserPlugin:
    """A loaded parser plug-in. Two are the same only if they are one object.

    Attributes:
        name: as a flag or label has it.
        factory: the plug-in's own.
        calls: where its faults are counted.
        options: of the operator, by key.
        finds_calls: it is a tool parser, not a reasoning parser.
    """

    name: str
    factory: ParserFactory
    calls: PluginCalls
    options: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    finds_calls: bool = True

    def make(self, context: ParserContext, special_tokens: frozenset[str] = frozenset()) -> PluginParser:
        """A parser for one choice; `special_tokens`: those that may be in its text. Never raises."""
        return PluginParser(self, replace(context, options=self.options), special_tokens)


class PluginParser(ToolParser):
    """What `AnswerParser` reads with in the place of a parser of ours."""

    has_markers = False

    def __init__(self, plugin: ParserPlugin, context: ParserContext, special_tokens: frozenset[str]) -> None:
        super().__init__({})
        self._calls = plugin.calls
        self._clock = plugin.calls.clock
        self._finds_calls = plugin.finds_calls
        self._unshown: list[str] = []
        self._failed = False
        self.needs_special_tokens = False
        try:
            parser = plugin.factory(context)
            self._feed, self._finish = parser.feed, parser.finish
            self.needs_special_tokens = bool(parser.needs_special_tokens)
        except Exception as error:  # noqa: BLE001 - another author's code
            self._fail(error)
        self._markers = special_tokens if self.needs_special_tokens else frozenset()

    def script(self) -> Steps[None]:
        """Not used: the plug-in reads the text itself."""
        yield

    @property
    def markers(self) -> frozenset[str]:
        """Any special token may mean something to a plug-in that wants to see them."""
        return self._markers

    def feed(self, text: str) -> list[ParserEvent]:
        """See `Parser.feed`."""
        if self._failed:
            self.content(text)
            return take_all(self._events)
        clock = self._clock
        began = clock()
        try:
            events = self._feed(text)
            if clock() - began > STALL_S:
                self._calls.took(clock() - began)
            if events.__class__ is list and len(events) == 1 and not self._unshown:
                event: Any = events[0]
                kind = event.__class__
                if (kind is ContentDelta or kind is ReasoningDelta) and event.text == text and text:
                    # Most pieces of most answers: text that is shown as it came.
                    self.sink(event)
                    return take_all(self._events) if self._events else []
            self._take(text, events)
        except Exception as error:  # noqa: BLE001 - another author's code
            self._unshown.append(text)
            self._fail(error)
        return take_all(self._events) if self._events else []

    def finish(self) -> list[ParserEvent]:
        """See `Parser.finish`."""
        if not self._failed:
            try:
                events = self._finish()
                self._take("", events)
                self._unshown.clear()
            except Exception as error:  # noqa: BLE001 - another author's code
                self._fail(error)
        return take_all(self._events) if self._events else []

    def _take(self, text: str, events: list[ParserEvent]) -> None:
        """Pass events on, all or, if one of them is wrong, none. Raises what is wrong."""
        if events.__class__ is not list:
            raise PluginMistake(f"it returned {type(events).__name__}, not a list of events")
        calls = self.calls
        for event in events:
            calls = self._checked(event, calls)
        self.calls = calls
        if text:
            self._unshown.append(text)
        for event in events:
            self._shown(event)
            if not isinstance(event, (ContentDelta, ReasoningDelta)) or event.text:
                self.sink(event)

    def _checked(self, event: object, calls: int) -> int:
        """How many calls have begun with this event. Raises if it is none that may come now."""
        if isinstance(event, (ContentDelta, ReasoningDelta)):
            _check_text(event.text)
        elif not self._finds_calls:
            raise PluginMistake(f"a reasoning parser returned {type(event).__name__}")
        elif isinstance(event, ToolCallStart):
            if event.index != calls:
                raise PluginMistake(f"a call has index {event.index!r} where {calls} is next")
            _check_text(event.name)
            _check_text("" if event.call_id is None else event.call_id)
            return calls + 1
        elif isinstance(event, ToolCallArguments):
            if type(event.index) is not int or not 0 <= event.index < calls:
                raise PluginMistake(f"arguments are of call {event.index!r}, which has not begun")
            _check_text(event.delta)
        else:
            raise PluginMistake(f"{type(event).__name__} is not an event")
        return calls

    def _shown(self, event: ParserEvent) -> None:
        """Forget what `event` accounts for of the text that was fed and not shown."""
        unshown = "".join(self._unshown)
        self._unshown.clear()
        if isinstance(event, (ContentDelta, ReasoningDelta)):
            found = unshown.find(event.text)
            rest = unshown[found + len(event.text) :] if found >= 0 else ""
            if rest:
                self._unshown.append(rest)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self._calls.fault(error, _AS_CONTENT)
        unshown = "".join(self._unshown)
        self._unshown.clear()
        self.content(unshown)


def _check_text(text: object) -> None:
    if type(text) is not str:
        raise PluginMistake(f"an event holds {type(text).__name__} where text belongs")
    if not text.isascii():
        text.encode()  # raises for a lone surrogate, which nothing can be sent with
