"""A request's conversation in the form that a chat template takes: `fit`.

What a template takes as it is, is left as it is and where it is, so that prompts are those of vLLM 0.32 and prefix
caches hit. Changed is only what the template would refuse or drop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from smg_trio.text.message_forms import (
    Content,
    Message,
    TextParts,
    as_content,
    empty_turn,
    join_contents,
    normalise,
)
from smg_trio.text.tool_turns import fit_tool_turns, has_tool_turns

if TYPE_CHECKING:
    from smg_trio.text.media_marks import MediaMarks
    from smg_trio.text.template_traits import TemplateTraits

_SYSTEM_ROLES: Final = ("system", "developer")
_PLAIN_KEYS: Final = frozenset({"role", "content"})
_SEPARATOR: Final = "\n\n"


class Note(StrEnum):
    """What a conversation lost or had to change to fit; for the log."""

    SYSTEM_FOLDED = (
        "the chat template takes a system message only at the front: later ones are added to the first, "
        "so each of them changes the start of the prompt and costs prefix-cache hits"
    )
    REASONING_DROPPED = "the chat template does not show the reasoning of earlier turns: it is left out of the prompt"
    TOOLS_DROPPED = "the chat template does not show tools: their definitions are left out of the prompt"


class Fitted(NamedTuple):
    """Messages for `ChatTemplate.render`, and what was changed that somebody should know."""

    messages: list[Message]
    notes: Sequence[Note] = ()


def fit(
    messages: Sequence[Mapping[str, Any]],
    traits: TemplateTraits,
    *,
    has_tools: bool = False,
    thinking: bool = False,
    marks: MediaMarks | None = None,
) -> Fitted:
    """The conversation as the template takes it; the input is left alone.

    Args:
        messages: Chat Completions messages, checked by ``api.openai.chat.messages.parse_messages``.
        traits: the template's.
        has_tools: whether the request offers tools.
        thinking: whether the template's thinking switch is on.
        marks: for media; None where media cannot be in the prompt.

    Raises:
        InvalidRequest: a content part of a kind that is not known; ``param`` says which.
        UnsupportedContent: media without `marks`.
    """
    turns = [_form(message, traits, index, marks) for index, message in enumerate(messages)]
    notes = [Note.TOOLS_DROPPED] if has_tools and not traits.shows_tools else []
    if not traits.developer and any(message["role"] == "developer" for message in messages):
        # As vLLM 0.32 (``renderers/hf.py``) does: all instructions become one system message.
        turns = _together(turns, traits)
    turns = _fit_systems(turns, traits, notes)
    if has_tool_turns(turns):
        turns = fit_tool_turns(turns, traits, has_tools=has_tools)
    turns = _separate(turns, traits)
    if traits.reasoning == "inline" and thinking:
        return Fitted([_with_tags(turn, traits) for turn in turns], notes)
    return Fitted([_with_reasoning(turn, traits, notes) if "reasoning" in turn else turn for turn in turns], notes)


def _form(message: Mapping[str, Any], traits: TemplateTraits, index: int, marks: MediaMarks | None) -> Message:
    if (
        type(message.get("content")) is str
        and traits.content == "string"
        and message.keys() == _PLAIN_KEYS
        and message["role"] != "developer"
    ):
        return message  # type: ignore[return-value] # most messages; a template cannot change them
    return normalise(message, traits, f"messages[{index}]", marks)


# --- system messages --------------------------------------------------------------------------------


def _fit_systems(turns: list[Message], traits: TemplateTraits, notes: list[Note]) -> list[Message]:
    places = [index for index, turn in enumerate(turns) if turn["role"] in _SYSTEM_ROLES]
    if not places:
        return (
            [{"role": "system", "content": as_content("", "system", traits)}, *turns] if traits.needs_system else turns
        )
    if traits.system == "anywhere":
        return turns
    if traits.system != "first_user" and (len(places) > 1 or places[0] != 0):
        turns = _fold(turns, traits)
        notes.append(Note.SYSTEM_FOLDED)
    if traits.system == "first_user":
        return _into_first_user(turns, traits)
    if traits.system == "last_user" and turns[-1]["role"] != "user":
        return _into_last_user(turns, traits)
    return turns


def _split(turns: list[Message]) -> tuple[list[Message], list[Message]]:
    """System messages, and all others."""
    systems = [turn for turn in turns if turn["role"] in _SYSTEM_ROLES]
    return systems, [turn for turn in turns if turn["role"] not in _SYSTEM_ROLES]


def _joined(turns: Sequence[Message]) -> Content:
    return join_contents([turn["content"] for turn in turns], _SEPARATOR)


def _fold(turns: list[Message], traits: TemplateTraits) -> list[Message]:
    """All system texts in the first system message, which goes to the front."""
    systems, others = _split(turns)
    first = systems[0]
    return [{**first, "content": as_content(_joined(systems), first["role"], traits)}, *others]


def _together(turns: list[Message], traits: TemplateTraits) -> list[Message]:
    """One system message at the front, where there are several or it is not there."""
    places = [index for index, turn in enumerate(turns) if turn["role"] in _SYSTEM_ROLES]
    return turns if places == [0] else _fold(turns, traits)


def _into_first_user(turns: list[Message], traits: TemplateTraits) -> list[Message]:
    systems, others = _split(turns)
    text = _joined(systems)
    if not text:
        return others
    if others and others[0]["role"] == "user":
        return [_with_text_before(others[0], text, traits), *others[1:]]
    return [{"role": "user", "content": as_content(text, "user", traits)}, *others]


def _into_last_user(turns: list[Message], traits: TemplateTraits) -> list[Message]:
    system, others = turns[0], turns[1:]
    text = system["content"]
    for index in range(len(others) - 1, -1, -1):
        if others[index]["role"] == "user":
            return [*others[:index], _with_text_before(others[index], text, traits), *others[index + 1 :]]
    return turns


def _with_text_before(turn: Message, text: Content, traits: TemplateTraits) -> Message:
    whole = _joined([{"content": text}, turn])
    return {**turn, "content": as_content(whole, turn["role"], traits)}


# --- turns that follow each other -------------------------------------------------------------------


def _separate(turns: list[Message], traits: TemplateTraits) -> list[Message]:
    """Merge or part what the template does not let stand side by side."""
    if traits.takes_any_order:
        return turns
    runs: list[list[Message]] = []
    speaker = ""
    for turn in _opened(turns, traits):
        role = turn["role"]
        if runs and _merge(runs[-1][-1], turn, traits):
            runs[-1].append(turn)
            continue
        if role == "user" and speaker == "tool" and not traits.user_after_result:
            runs.append([empty_turn("assistant", traits)])
        runs.append([turn])
        if role not in _SYSTEM_ROLES:  # templates that take them anywhere look past them
            speaker = role
    return [run[0] if len(run) == 1 else _merged(run, traits) for run in runs]


def _opened(turns: list[Message], traits: TemplateTraits) -> list[Message]:
    """With an empty user turn at the start where the template needs one."""
    start = next((index for index, turn in enumerate(turns) if turn["role"] not in _SYSTEM_ROLES), len(turns))
    begins_with_answer = start < len(turns) and turns[start]["role"] == "assistant" and not traits.assistant_first
    lacks_user = traits.needs_user and all(turn["role"] != "user" for turn in turns)
    if not begins_with_answer and not lacks_user:
        return turns
    return [*turns[:start], empty_turn("user", traits), *turns[start:]]


def _merge(last: Message, turn: Message, traits: TemplateTraits) -> bool:
    role = turn["role"]
    if last["role"] != role or "tool_calls" in turn or "tool_calls" in last:
        return False
    return (role == "user" and not traits.consecutive_users) or (
        role == "assistant" and not traits.consecutive_assistants
    )


def _merged(run: Sequence[Message], traits: TemplateTraits) -> Message:
    content = as_content(_joined(run), run[0]["role"], traits)
    reasoning = _SEPARATOR.join([said for turn in run if (said := turn.get("reasoning"))])
    return {**run[0], "content": content} | ({"reasoning": reasoning} if reasoning else {})


# --- reasoning --------------------------------------------------------------------------------------


def _with_reasoning(turn: Message, traits: TemplateTraits, notes: list[Note]) -> Message:
    """The turn with its reasoning where the template looks for it."""
    reasoning, form = turn["reasoning"], traits.reasoning
    if form == "reasoning_content":
        return {**turn, "reasoning_content": reasoning}
    rest = {key: value for key, value in turn.items() if key != "reasoning"}
    if form in ("none", "inline"):
        if Note.REASONING_DROPPED not in notes:
            notes.append(Note.REASONING_DROPPED)
        return rest
    if form == "thinking":
        return {**rest, "thinking": reasoning}
    text = str(turn.get("content") or "")
    parts = [{"type": "thinking", "thinking": reasoning}, {"type": "text", "text": text}]
    return {**rest, "content": TextParts(parts if text else parts[:1])}


def _with_tags(turn: Message, traits: TemplateTraits) -> Message:
    """An assistant's turn as the model wrote it; without reasoning its tags are empty."""
    if turn["role"] != "assistant":
        return turn
    reasoning, text = turn.get("reasoning") or "", str(turn.get("content") or "")
    done = {key: value for key, value in turn.items() if key != "reasoning"}
    if not reasoning and not text:
        return done
    return done | {"content": as_content(f"<think>\n{reasoning}\n</think>\n{text}", "assistant", traits)}
