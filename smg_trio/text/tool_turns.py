"""Tool calls and their results in the form that a template takes: `fit_tool_turns`."""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from smg_trio.text.message_forms import Content, Message, TextParts, as_content, empty_turn, has_media

if TYPE_CHECKING:
    from smg_trio.text.template_traits import TemplateTraits

_SHORT_ID_LENGTH: Final = 9
_BLANKS: Final = str.maketrans("01", " \t")
_ID_LETTERS: Final = string.digits + string.ascii_letters


@dataclass(slots=True)
class _Round:
    """A turn with calls, and results that are given behind it, each with the index of its call; or any other turn.

    `answered`: the call, if the turn is a result that stays apart from it.
    """

    turn: Message
    calls: list[Message] = field(default_factory=list)
    results: list[tuple[int, Message]] = field(default_factory=list)
    answered: Message | None = None


def has_tool_turns(turns: Sequence[Message]) -> bool:
    """Whether there is anything for `fit_tool_turns` to do."""
    return any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns)


def fit_tool_turns(turns: Sequence[Message], traits: TemplateTraits, *, has_tools: bool) -> list[Message]:
    """The turns with calls and results as the template takes them.

    Results stand in the order of their calls: many templates do not say which result is whose.
    """
    if not has_tools and traits.calls != traits.calls_without_tools:
        traits = replace(traits, calls=traits.calls_without_tools, results=traits.results_without_tools)
    done: list[Message] = []
    for each in _rounds(turns, traits):
        if not each.calls:
            done.append(_result(each.turn, each.answered, traits) if each.turn["role"] == "tool" else each.turn)
        elif traits.calls == "text":
            done.append(_written_out(each, traits))
            done += [_result(result, each.calls[index], traits) for index, result in each.results]
        else:
            done += _own_form(each, traits)
    return _told_apart(done, traits) if traits.call_text == "apart" else done


# --- which result belongs to which call ---------------------------------------------------------------


def _rounds(turns: Sequence[Message], traits: TemplateTraits) -> list[_Round]:
    rounds: list[_Round] = []
    waiting: dict[str, tuple[_Round, int]] = {}
    count = 0
    for turn in turns:
        calls = turn.get("tool_calls")
        if calls:
            rounds.append(each := _Round(turn, _with_ids(calls, traits, count)))
            waiting |= {call.get("id") or "": (each, index) for index, call in enumerate(calls)}
            count += len(calls)
            continue
        owner = _owner(turn, rounds, waiting) if turn["role"] == "tool" else None
        if owner is None:
            rounds.append(_Round(turn))
        elif owner[0] is rounds[-1] or not traits.results_apart:
            owner[0].results.append((owner[1], turn))
        else:
            rounds.append(_Round(turn, answered=owner[0].calls[owner[1]]))
    for each in rounds:
        each.results.sort(key=lambda result: result[0])
    return rounds


def _owner(
    result: Message, rounds: Sequence[_Round], waiting: dict[str, tuple[_Round, int]]
) -> tuple[_Round, int] | None:
    """The round and the index of the call that a result answers; by its place where ids do not tell."""
    call_id = result.get("tool_call_id")
    if call_id:
        return waiting.get(call_id)
    last = rounds[-1] if rounds else None
    if last is None or len(last.results) >= len(last.calls):
        return None
    return last, len(last.results)


# --- one round in the template's form -----------------------------------------------------------------


def _own_form(each: _Round, traits: TemplateTraits) -> list[Message]:
    turn = _fit_reasoning(each.turn, traits)
    parts = [each.calls] if traits.several_calls else [[call] for call in each.calls]
    done: list[Message] = []
    if traits.call_text != "together" and str(turn["content"]):
        done.append({key: value for key, value in turn.items() if key != "tool_calls"})
        turn = {"role": "assistant", "content": as_content(None, "assistant", traits)}
        if traits.call_text == "apart":
            done.append(empty_turn("user", traits) | {"separates": True})
    results: dict[int, list[Message]] = {}
    for index, result in each.results:
        results.setdefault(index, []).append(_result(result, each.calls[index], traits))
    place = 0
    for calls in parts:
        done.append(_call_turn(turn, calls, traits))
        turn = {"role": "assistant", "content": as_content(None, "assistant", traits)}
        for index in range(place, place + len(calls)):
            done += results.get(index, ())
        place += len(calls)
    return done


def _told_apart(turns: Sequence[Message], traits: TemplateTraits) -> list[Message]:
    """Separating user turns, each of other blanks: such templates repeat the tools at turns that equal the last."""
    done, count = [], 0
    for turn in turns:
        if "separates" in turn:
            text = traits.empty_turn + f"{count:b}".translate(_BLANKS) if count else traits.empty_turn
            turn = {"role": "user", "content": as_content(text, "user", traits)}
            count += 1
        done.append(turn)
    return done


def _fit_reasoning(turn: Message, traits: TemplateTraits) -> Message:
    text, reasoning = str(turn["content"]), turn.get("reasoning")
    if traits.reasoning_with_text or traits.reasoning in ("none", "inline") or not text or not reasoning:
        return turn
    return {**turn, "reasoning": f"{reasoning}\n\n{text}", "content": as_content(None, "assistant", traits)}


def _call_turn(turn: Message, calls: Sequence[Message], traits: TemplateTraits) -> Message:
    done = {**turn, "tool_calls": list(calls)}
    if traits.call_content != "empty" and not str(turn["content"]):
        if traits.call_content == "absent":
            del done["content"]
        else:
            done["content"] = None if traits.call_content == "null" else ""
    return done


def _result(result: Message, call: Message | None, traits: TemplateTraits) -> Message:
    if traits.results == "user":
        return {"role": "user", "content": as_content(_in_tags(result["content"]), "user", traits)}
    done = dict(result)
    if traits.result_names and call is not None and "name" not in done:
        done["name"] = call["function"]["name"]
    if call is not None:
        done["tool_call_id"] = call["id"]
    elif traits.call_ids == "short":
        done["tool_call_id"] = _short_id(result.get("tool_call_id") or "")
    return done


def _in_tags(content: Content) -> Content:
    if not has_media(content):
        return f"<tool_response>\n{content}\n</tool_response>"
    opening, closing = {"type": "text", "text": "<tool_response>\n"}, {"type": "text", "text": "\n</tool_response>"}
    return TextParts([opening, *content, closing])


def _written_out(each: _Round, traits: TemplateTraits) -> Message:
    """Calls as text, in the form that most open models know (Hermes, Qwen), for templates without any."""
    turn = {key: value for key, value in each.turn.items() if key != "tool_calls"}
    texts = [str(turn["content"]), *(_call_text(call["function"]) for call in each.calls)]
    return turn | {"content": as_content("\n".join([text for text in texts if text]), "assistant", traits)}


def _call_text(function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {arguments}}}\n</tool_call>'


# --- ids ------------------------------------------------------------------------------------------------


def _with_ids(calls: Sequence[Message], traits: TemplateTraits, count: int) -> list[Message]:
    """Calls with ids that the template takes; `count`: calls of the conversation before these."""
    if traits.call_ids == "any":
        return [call if call.get("id") else {**call, "id": f"call_{count + i}"} for i, call in enumerate(calls)]
    if traits.call_ids == "short":
        return [{**call, "id": _short_id(call.get("id") or "")} for call in calls]
    return [{**call, "id": _numbered_id(call, count + index)} for index, call in enumerate(calls)]


def _numbered_id(call: Message, number: int) -> str:
    """The form that Kimi K2 makes and reads; its own ids stay, wherever a conversation was cut."""
    start = f"functions.{call['function']['name']}:"
    call_id = call.get("id") or ""
    return call_id if call_id.startswith(start) and call_id[len(start) :].isdecimal() else f"{start}{number}"


def _short_id(call_id: str) -> str:
    """Nine letters and digits that stand for an id; always the same ones, so that prefix caches hit."""
    if len(call_id) == _SHORT_ID_LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:8])
    letters = []
    for _ in range(_SHORT_ID_LENGTH):
        number, digit = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[digit])
    return "".join(letters)
