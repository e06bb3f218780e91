"""Finds out what a chat template takes, by rendering small conversations: `find_traits`.

A conversation passes if it renders and all of its texts are in the prompt: some templates refuse what they do not know,
others drop it without a word. Each question has candidate answers, the most natural one first; the one with which most
of its conversations pass is taken. A template takes 30 to 120 renderings, 5 to 40 ms, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from smg_trio.core.errors import ClientFault
from smg_trio.text.conversation import fit
from smg_trio.text.message_forms import Message
from smg_trio.text.template_traits import TemplateTraits
from smg_trio.text.tool_forms import fit_tools

if TYPE_CHECKING:
    from smg_trio.text.content_format import ContentFormat

Render = Callable[[Sequence[Message], Sequence[Mapping[str, Any]] | None, bool], str]
"""Messages, tools and whether thinking is switched on to the prompt, an assistant's turn open; raises ClientFault."""

_NOTATIONS: Final = ("{'type': 'text'", '{"type": "text"', '{"type": "thinking"', "{'city'")
"""Content parts and arguments that were printed as the data they are."""
_FILLERS: Final = ("", " ")


@dataclass(frozen=True, slots=True)
class _Probe:
    """One conversation, and the texts that must come out of it; without any, rendering is enough."""

    messages: Sequence[Message]
    texts: Sequence[str] = ()
    tools: Sequence[Message] = ()
    thinking: bool = False


class _Prober:
    """Tries traits on probes."""

    def __init__(self, render: Render, traits: TemplateTraits) -> None:
        self.traits = traits
        self._render = render

    def passes(self, probe: _Probe, traits: TemplateTraits | None = None) -> bool:
        """Whether the probe's texts come out with these traits (by default, with those found so far)."""
        prompt = self.prompt(probe, self.traits if traits is None else traits)
        if prompt is None or any(notation in prompt for notation in _NOTATIONS):
            return False
        return all(text in prompt for text in probe.texts)

    def prompt(self, probe: _Probe, traits: TemplateTraits) -> str | None:
        """The rendering; None where the template refuses it."""
        try:
            messages = fit(probe.messages, traits, has_tools=bool(probe.tools), thinking=probe.thinking).messages
            return self._render(messages, fit_tools(probe.tools, traits), probe.thinking)
        except ClientFault:
            return None

    def settle(self, probes: Sequence[_Probe], candidates: Iterable[Mapping[str, Any]]) -> bool:
        """Take the first candidate with which all probes pass, else the one with most; the former is the answer."""
        best, best_score = self.traits, -1
        for changes in candidates:
            traits = replace(self.traits, **changes)
            score = sum(self.passes(probe, traits) for probe in probes)
            if score > best_score:
                best, best_score = traits, score
            if score == len(probes):
                break
        self.traits = best
        return best_score == len(probes)


def find_traits(render: Render, content: ContentFormat, *, names_developer: bool = False) -> TemplateTraits:
    """The traits of the template behind `render`.

    A template that does not even take one user turn (it needs arguments, or is none for chats) gets the defaults.

    Args:
        render: see `Render`.
        content: what the template's syntax tells, see `content_format`.
        names_developer: the template names the ``developer`` role; one that does not may print any role it is given,
            but its model was not trained on this one.
    """
    prober = _Prober(render, TemplateTraits(content=content))
    needs: list[dict[str, Any]] = [{}, {"empty_tools": True}, {"needs_system": True}]
    if not prober.settle([_Probe([_user("Quince")], ["Quince"])], needs):
        return TemplateTraits(content=content)
    _settle_parts(prober)
    _settle_turns(prober)
    _settle_tools(prober)
    _settle_calls(prober)
    _settle_rounds(prober)
    _settle_reasoning(prober)
    _settle_systems(prober)
    if names_developer:
        _settle_developer(prober)
    _settle_lone_turns(prober)
    return prober.traits


# --- the conversations --------------------------------------------------------------------------------


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _calls(*numbers: int, **extra: Any) -> Message:
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": f"find_{number}", "arguments": f'{{"city": "Oslo{number}"}}'},
        }
        for number in numbers
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls, **extra}


def _result(number: int) -> Message:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": f"Rain{number}"}


def _tool(number: int, *, filled: bool = True) -> Message:
    parameters = {"type": "object", "properties": {"town": {"type": "string", "description": f"Place{number}"}}}
    function: Message = {"name": f"find_{number}", "description": None, "parameters": None}
    if filled:
        function |= {"description": f"Weather{number}", "parameters": parameters}
    return {"type": "function", "function": function}


_TOOLS: Final = (_tool(8), _tool(9))
"""Not those that are called: a name that is only in the definitions is not a name in the conversation."""
_ROUND: Final = (_user("Quince"), _calls(1), _result(1))
_SEEN: Final = ("Quince", "find_1", "Oslo1", "Rain1")


# --- questions, in an order in which each needs only the answers before it ----------------------------------


def _settle_parts(prober: _Prober) -> None:
    """Roles that show only some of several text parts."""
    if prober.traits.content == "string":
        return
    parts = [{"type": "text", "text": "Quince"}, {"type": "text", "text": "Medlar"}]
    for role in ("user", "system", "assistant"):
        turns = [{"role": role, "content": parts}]
        messages = turns if role == "user" else [*turns, _user("Hi")] if role == "system" else [_user("Hi"), *turns]
        text = {"text_roles": prober.traits.text_roles | {role}}
        one_part = {"one_part_roles": prober.traits.one_part_roles | {role}}
        prober.settle([_Probe(messages, ["Quince", "Medlar"])], [{}, text, one_part])


def _settle_turns(prober: _Prober) -> None:
    """How user and assistant turns may follow each other."""
    users = _Probe([_user("Quince"), _user("Medlar")], ["Quince", "Medlar"])
    prober.settle([users], [{}, {"consecutive_users": False}])
    several = [_user("Quince"), _assistant("Medlar"), _assistant("Sorrel"), _user("Tansy")]
    prober.settle([_Probe(several, ["Quince", "Medlar", "Sorrel", "Tansy"])], [{}, {"consecutive_assistants": False}])
    answers = _Probe([_assistant("Quince"), _user("Medlar")], ["Quince", "Medlar"])
    prober.settle([answers], [{}, *({"assistant_first": False, "empty_turn": empty} for empty in _FILLERS)])


def _settle_tools(prober: _Prober) -> None:
    """Whether definitions are shown, and how what they leave out is written."""
    hi = [_user("Hi")]
    names = ("find_8", "find_9")
    bare = [_tool(8, filled=False), _tool(9)]
    probes = [_Probe(hi, names, _TOOLS), _Probe(hi, names, bare)]
    forms = [{"tool_form": form} for form in ("kept", "omitted", "filled", "flat", "plain")]
    before = prober.traits
    if not prober.settle(probes, forms) and not any(prober.passes(probe) for probe in probes):
        prober.traits = replace(before, shows_tools=False)
        prober.settle([replace(probe, texts=()) for probe in probes], forms)


def _settle_calls(prober: _Prober) -> None:
    """The form of one call and its result."""
    own = [
        {"call_ids": ids, "result_names": names, "arguments": arguments, "call_content": content}
        for names in (False, True)  # first without: a name that is only at the result is not enough
        for ids in ("any", "short", "numbered")
        for arguments in ("mapping", "text")
        for content in ("empty", "text", "null", "absent")
    ]
    text = [
        {"calls": "text", "call_ids": ids, "result_names": names} for ids in ("any", "short") for names in (False, True)
    ]
    users = [{"calls": "text", "results": "user"}]
    prober.settle([_Probe(_ROUND, _SEEN, _TOOLS)], [*own, *text, *users])
    _settle_calls_without_tools(prober)
    if prober.traits.calls == "own" and prober.traits.arguments == "mapping":
        broken = _calls(1)
        broken["tool_calls"][0]["function"]["arguments"] = '{"city": "Oslo1'
        probe = _Probe([_user("Quince"), broken, _result(1)], ["find_1", "Oslo1"], _TOOLS)
        prober.settle([probe], [{}, {"raw_arguments": False}])


def _settle_calls_without_tools(prober: _Prober) -> None:
    forms = [(prober.traits.calls, prober.traits.results), ("text", prober.traits.results), ("text", "user")]
    candidates = [{"calls_without_tools": calls, "results_without_tools": results} for calls, results in forms]
    prober.settle([_Probe(_ROUND, _SEEN)], candidates)


def _settle_rounds(prober: _Prober) -> None:
    """What may stand beside calls and results."""
    two = _Probe([_user("Quince"), _calls(1, 2), _result(1), _result(2)], [*_SEEN, "find_2", "Oslo2", "Rain2"], _TOOLS)
    prober.settle([two], [{}, {"several_calls": False}])
    after = [
        _Probe([*_ROUND, _user("Medlar")], [*_SEEN, "Medlar"], _TOOLS),
        _Probe([*_ROUND, _user("Medlar")], [*_SEEN, "Medlar"]),
        _Probe([*_ROUND, _user("Medlar"), _assistant("Sorrel"), _user("Tansy")], [*_SEEN, "Tansy"], _TOOLS),
    ]
    prober.settle(after, [{}, *({"user_after_result": False, "empty_turn": empty} for empty in _FILLERS)])
    apart = [_user("Quince"), _calls(1), _user("Medlar"), _result(1)]
    prober.settle([_Probe(apart, [*_SEEN, "Medlar"], _TOOLS)], [{}, {"results_apart": False}])


def _settle_reasoning(prober: _Prober) -> None:
    """Where the reasoning of a turn goes, and the text of a turn with calls, in the turn in progress."""
    turn = {**_assistant("Sorrel"), "reasoning": "Medlar"}
    probe = _Probe([_user("Quince"), turn], ["Medlar", "Sorrel"])
    if prober.traits.calls == "own":
        probe = _Probe([_user("Quince"), _calls(1, reasoning="Medlar"), _result(1)], [*_SEEN, "Medlar"], _TOOLS)
    forms = [{"reasoning": form} for form in ("reasoning_content", "thinking", "parts")]
    before = prober.traits
    if not prober.settle([probe], forms):
        prober.traits = before
        if not prober.settle([replace(probe, thinking=True)], forms):
            prober.traits = replace(before, reasoning="none")
    if prober.traits.calls == "own":
        _settle_call_text(prober)
    _settle_thinking(prober)


def _settle_call_text(prober: _Prober) -> None:
    said = ["Medlar"] if prober.traits.reasoning != "none" else []
    both = _calls(1, content="Sorrel", reasoning="Medlar")
    text = [_user("Quince"), _calls(1, content="Sorrel"), _result(1)]
    probes = [
        _Probe(text, [*_SEEN, "Sorrel"], _TOOLS),
        _Probe([_user("Quince"), both, _result(1)], [*_SEEN, *said, "Sorrel"], _TOOLS),
        _Probe(
            [_user("Quince"), both, _result(1), _calls(2, content="Tansy"), _result(2)],
            [*_SEEN, *said, "Sorrel", "Tansy"],
            _TOOLS,
        ),
        _Probe([*text, _assistant("Tansy"), _user("Yarrow")], ["Tansy", "Yarrow"], _TOOLS),
    ]
    places = ("together", "before", "apart")
    prober.settle(
        probes,
        [{"call_text": place, "reasoning_with_text": with_text} for with_text in (True, False) for place in places],
    )


def _settle_thinking(prober: _Prober) -> None:
    """Whether, with thinking switched on, the reasoning has to be in the content of every assistant turn."""
    probes = [
        _Probe([_user("Quince"), _assistant("Sorrel"), _user("Hi")], ["Quince", "Sorrel"], thinking=True),
        _Probe([_user("Quince"), _calls(1, content="Sorrel"), _result(1)], [*_SEEN, "Sorrel"], _TOOLS, thinking=True),
    ]
    prober.settle(probes, [{}, {"reasoning": "inline"}])


def _settle_systems(prober: _Prober) -> None:
    """Where system messages are shown."""
    front = [_system("Saffron"), _user("Medlar")]
    probes = [
        _Probe(front, ["Saffron", "Medlar"]),
        _Probe(front, ["Saffron", "Medlar"], _TOOLS),
        _Probe([_system("Saffron"), _system("Sorrel"), _user("Medlar")], ["Saffron", "Sorrel", "Medlar"]),
        _Probe([_user("Medlar"), _system("Saffron")], ["Saffron", "Medlar"]),
        _Probe([*front, _system("Sorrel")], ["Saffron", "Sorrel", "Medlar"]),
        _Probe([*front, _assistant("Tansy"), _system("Sorrel"), _user("Hi")], ["Saffron", "Sorrel", "Medlar", "Tansy"]),
        _Probe([_system("Saffron"), *_ROUND], ["Saffron", *_SEEN], _TOOLS),
        _Probe([_system("Saffron"), *_ROUND, _system("Sorrel")], ["Saffron", "Sorrel", *_SEEN], _TOOLS),
        _Probe([_user("Medlar"), _system("Saffron"), _user("Tansy")], ["Medlar", "Saffron", "Tansy"]),
        _Probe([*_ROUND, _system("Saffron"), _user("Tansy")], [*_SEEN, "Saffron", "Tansy"], _TOOLS),
    ]
    prober.settle(probes, [{"system": place} for place in ("anywhere", "first", "last_user", "first_user")])


def _settle_developer(prober: _Prober) -> None:
    """Whether the developer's messages are shown wherever system messages may stand."""
    developer = {"role": "developer", "content": "Saffron"}
    probes = [
        _Probe([developer, _user("Medlar")], ["Saffron", "Medlar"]),
        _Probe([_system("Sorrel"), developer, _user("Medlar")], ["Sorrel", "Saffron", "Medlar"]),
        _Probe([_user("Medlar"), developer, _user("Hi")], ["Saffron", "Medlar"]),
    ]
    known = replace(prober.traits, developer=True)
    if all(prober.passes(probe, known) for probe in probes):
        prober.traits = known


def _settle_lone_turns(prober: _Prober) -> None:
    """Whether there must be a user turn."""
    probes = [_Probe([_assistant("Quince")], ["Quince"]), _Probe([_system("Quince")], ["Quince"])]
    prober.settle(probes, [{}, *({"needs_user": True, "empty_turn": empty} for empty in _FILLERS)])
