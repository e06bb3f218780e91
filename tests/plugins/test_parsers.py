"""Parsers of plug-ins in an answer: what they say, and how the answer goes on where they fail."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.api.openai.chat.tools import ToolChoice
from smg_trio.core.events import ContentDelta, ParserEvent, ReasoningDelta, ToolCallArguments, ToolCallStart
from smg_trio.core.plugin_calls import PluginCalls
from smg_trio.parsers.answer import AnswerParser
from smg_trio.parsers.base import coalesce
from smg_trio.parsers.plan import AnswerPlan, plan_answer
from smg_trio.parsers.plugin import ParserPlugin
from smg_trio.plugins import Parser, ParserContext, buffered

TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
AUTO = ToolChoice("auto")
CALL = re.compile("(?s)(.*?)<<(.*?)>>")


class Plain:
    """Shows all text as it comes, in a kind of its own."""

    needs_special_tokens = False

    def __init__(self, kind: type = ContentDelta) -> None:
        self.kind = kind

    def feed(self, text: str) -> list[ParserEvent]:
        return [self.kind(text)]

    def finish(self) -> list[ParserEvent]:
        return []


class Calls:
    """``<<name>>`` is a call without arguments; what begins like one is held."""

    needs_special_tokens = False

    def __init__(self) -> None:
        self.held = ""
        self.calls = 0

    def feed(self, text: str) -> list[ParserEvent]:
        self.held += text
        events: list[ParserEvent] = []
        while (found := CALL.match(self.held)) is not None:
            before, name = found.groups()
            if before:
                events.append(ContentDelta(before))
            events += [ToolCallStart(self.calls, name), ToolCallArguments(self.calls, "{}")]
            self.calls += 1
            self.held = self.held[found.end() :]
        shown = self.held.partition("<<")[0]
        shown = shown.removesuffix("<") if shown == self.held else shown
        if shown:
            events.append(ContentDelta(shown))
            self.held = self.held[len(shown) :]
        return events

    def finish(self) -> list[ParserEvent]:
        held, self.held = self.held, ""
        return [ContentDelta(held)] if held else []


def plugin(factory: Callable[[ParserContext], Any], *, finds_calls: bool = True) -> ParserPlugin:
    return ParserPlugin("x", factory, PluginCalls("tool parser", "x", "d 1.0"), {"loud": "yes"}, finds_calls)


def tool_plan(found: ParserPlugin, **options: Any) -> AnswerPlan:
    return plan_answer(tools=TOOLS, tool_choice=AUTO, tool_flag=found, **options)


def parser_of(plan: AnswerPlan) -> AnswerParser:
    assert plan.make_parser is not None
    return plan.make_parser()


def read(plan: AnswerPlan, *pieces: str) -> list[ParserEvent]:
    parser = parser_of(plan)
    return coalesce([event for piece in pieces for event in parser.feed(piece)] + parser.finish())


def test_a_tool_parser_finds_calls_among_content() -> None:
    plan = tool_plan(plugin(lambda context: Calls()))
    assert plan.tool_parser == "x"
    events = read(plan, "a<", "<f>>b<<g>", ">")
    shown = [event for event in events if not isinstance(event, ContentDelta) or event.text.strip()]
    assert shown == [
        ContentDelta("a"), ToolCallStart(0, "f"), ToolCallArguments(0, "{}"), ContentDelta("b"), ToolCallStart(1, "g"),
        ToolCallArguments(1, "{}"),
    ]  # fmt: skip


def test_a_reasoning_parser_stands_before_a_parser_of_ours_and_the_other_way_round() -> None:
    thinks = plugin(lambda context: Plain(ReasoningDelta), finds_calls=False)
    plan = plan_answer(reasoning_flag=thinks, tools=TOOLS, tool_choice=AUTO, tool_flag="hermes")
    assert (plan.reasoning_parser, plan.tool_parser, plan.counts_reasoning) == ("x", "qwen", True)
    assert read(plan, "abc", "def") == [ReasoningDelta("abcdef")]
    plan = tool_plan(plugin(lambda context: Calls()), reasoning_flag="qwen3")
    assert read(plan, "<think>no <<f>> here</think>", "<<f>>") == [
        ReasoningDelta("no <<f>> here"), ToolCallStart(0, "f"), ToolCallArguments(0, "{}")
    ]  # fmt: skip


def test_what_a_parser_is_told() -> None:
    seen: list[ParserContext] = []

    def factory(context: ParserContext) -> Parser:
        seen.append(context)
        return Plain()

    plan = tool_plan(
        plugin(factory),
        model_name="Acme-7B",
        prompt_text="p" * 300 + "<think>\n",
        tokenizer_has=lambda text: text == "y",
    )
    parser_of(plan)
    context = seen[-1]
    assert context.tools == {"f": {"type": "object"}}
    assert (context.model_name, context.starts_in_reasoning, context.json_answer) == ("Acme-7B", True, False)
    assert context.prompt_end.endswith("p<think>\n")
    assert len(context.prompt_end) == 200
    assert context.options == {"loud": "yes"}
    assert context.tokenizer_has("y")
    assert not context.tokenizer_has("n")


def test_forced_calls_are_in_the_common_form() -> None:
    plan = plan_answer(tools=TOOLS, tool_choice=ToolChoice("required"), tool_flag=plugin(lambda context: Calls()))
    assert plan.structured_output is not None
    assert plan.structured_output.kind == "json"
    assert read(plan, '[{"name": "f", "parameters": {"a": 1}}]')[0] == ToolCallStart(0, "f")


def test_special_tokens_reach_a_parser_that_asks_for_them_and_nobody_else() -> None:
    special = frozenset({"<|call|>", "<|end|>"})

    class Asks(Plain):
        needs_special_tokens = True

    fed: list[str] = []

    def factory(context: ParserContext) -> Parser:
        parser = Asks()
        parser.feed = lambda text: fed.append(text) or [ContentDelta(text)]  # type: ignore[assignment,func-returns-value]
        return parser

    plan = tool_plan(plugin(factory), special_tokens=special)
    assert plan.needs_special_tokens
    assert read(plan, "a<|call|>b") == [ContentDelta("ab")]
    assert fed == ["a<|call|>b"]
    assert not tool_plan(plugin(lambda context: Plain()), special_tokens=special).needs_special_tokens


def returning(value: object, after: int = 0) -> Callable[[ParserContext], Any]:
    """A parser that shows text as it is, and returns `value` once it has been fed `after` pieces."""

    class Returns(Plain):
        fed = 0

        def feed(self, text: str) -> Any:
            self.fed += 1
            return value() if callable(value) and self.fed > after else [ContentDelta(text)]

    return lambda context: Returns()


WRONG: dict[str, Callable[[], object]] = {
    "raises": lambda: 1 / 0,
    "recurses": lambda: (lambda f: f(f))(lambda f: f(f)),
    "none": lambda: None,
    "a tuple": lambda: (ContentDelta("x"),),
    "a list of texts": lambda: ["x"],
    "no text in an event": lambda: [ContentDelta(5)],  # type: ignore[arg-type]
    "a lone surrogate": lambda: [ContentDelta("\ud800")],
    "a call out of turn": lambda: [ToolCallStart(1, "f")],
    "arguments of no call": lambda: [ToolCallArguments(0, "{}")],
    "a call without a name": lambda: [ToolCallStart(0, None)],  # type: ignore[arg-type]
    "half a list": lambda: [ContentDelta("shown twice"), 5],
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("finds_calls", [True, False])
def test_an_answer_goes_on_as_content_where_a_parser_fails(
    case: str, finds_calls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broken = plugin(returning(WRONG[case], after=1), finds_calls=finds_calls)
    plan = tool_plan(broken) if finds_calls else plan_answer(reasoning_flag=broken)
    with caplog.at_level(logging.ERROR):
        assert read(plan, "one ", "two ", "<<three>>") == [ContentDelta("one two <<three>>")]
    assert broken.calls.faults == 1
    [line] = caplog.records
    assert "tool parser x (d 1.0) failed" in line.getMessage()
    assert (line.exc_info is not None) == (case in ("raises", "recurses", "a lone surrogate"))


def test_a_reasoning_parser_finds_no_calls() -> None:
    broken = plugin(returning(lambda: [ToolCallStart(0, "f")]), finds_calls=False)
    assert read(plan_answer(reasoning_flag=broken), "text") == [ContentDelta("text")]
    assert broken.calls.faults == 1


@pytest.mark.parametrize("where", ["factory", "finish", "finish returns"])
def test_text_that_a_parser_held_is_shown_when_it_fails(where: str) -> None:
    def factory(context: ParserContext) -> Parser:
        if where == "factory" and made:
            raise RuntimeError
        made.append(context)
        return buffered(lambda text: 1 / 0 if where == "finish" else 5)  # type: ignore[return-value,arg-type]

    made: list[ParserContext] = [ParserContext()] if where == "factory" else []
    broken = plugin(factory)
    assert read(tool_plan(broken), "one ", "two") == [ContentDelta("one two")]
    assert broken.calls.faults >= 1


def test_what_was_shown_is_not_shown_again() -> None:
    class Late(Calls):
        def finish(self) -> list[ParserEvent]:
            raise RuntimeError

    broken = plugin(lambda context: Late())
    assert read(tool_plan(broken), "seen ", "<<f>>", " then <", "<held") == [
        ContentDelta("seen "), ToolCallStart(0, "f"), ToolCallArguments(0, "{}"), ContentDelta(" then <<held")
    ]  # fmt: skip


def test_a_traceback_a_minute_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    calls = PluginCalls("tool parser", "x", clock=lambda: now[0])
    broken = ParserPlugin("x", returning(lambda: 1 / 0), calls)
    with caplog.at_level(logging.ERROR):
        for _ in range(130):
            read(tool_plan(broken), "text")
            now[0] += 1
    assert calls.faults == 130
    assert len(caplog.records) == 3


def test_a_parser_that_holds_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]

    class Slow(Plain):
        def feed(self, text: str) -> list[ParserEvent]:
            now[0] += len(text) / 10
            return [ContentDelta(text)]

    calls = PluginCalls("tool parser", "x", clock=lambda: now[0])
    read(tool_plan(ParserPlugin("x", lambda context: Slow(), calls)), "a", "abc")
    assert (calls.stalls, round(calls.longest_s, 3)) == (1, 0.3)
    assert "held the event loop for 0.3" in caplog.text


@given(st.lists(st.text(alphabet="ab<>f \n", max_size=6), max_size=12))
def test_no_cut_matters_and_the_frame_adds_nothing(pieces: list[str]) -> None:
    wrapped = AnswerParser(None, plugin(lambda context: Calls()).make(ParserContext()))
    bare = AnswerParser(None, plugin(lambda context: Calls()).make(ParserContext()))
    whole = "".join(pieces)
    cut = coalesce([event for piece in pieces for event in wrapped.feed(piece)] + wrapped.finish())
    assert cut == coalesce(bare.feed(whole) + bare.finish())
    alone = Calls()
    assert [event for event in cut if not isinstance(event, ContentDelta)] == [
        event for event in alone.feed(whole) + alone.finish() if not isinstance(event, ContentDelta)
    ]


def test_a_piece_costs_little_more_than_the_parser_itself() -> None:
    """Measured as the least of many rounds, against a loop of plain Python in the same breath."""
    parser = plugin(lambda context: Plain()).make(ParserContext())
    parser.sink = lambda event: None
    bare = Plain()
    pieces = ["word "] * 1000

    def took(feed: Callable[[str], object]) -> float:
        began = time.process_time()
        for piece in pieces:
            feed(piece)
        return time.process_time() - began

    rounds = [(took(parser.feed), took(bare.feed), took(partial(_loop, 20))) for _ in range(40)]
    frame = min(wrapped for wrapped, _, _ in rounds) - min(alone for _, alone, _ in rounds)
    unit = min(loop for _, _, loop in rounds)
    assert frame < unit, f"{frame * 1e3:.3f} us a piece; a loop of 20 steps takes {unit * 1e3:.3f} us"


def _loop(steps: int, _piece: str) -> int:
    found = 0
    for step in range(steps):
        found ^= step
    return found
