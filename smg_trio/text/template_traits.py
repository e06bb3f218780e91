"""What one chat template takes, and in which form: `TemplateTraits`.

Templates say nothing about themselves; `template_probes` finds the traits out by rendering small conversations when a
template is loaded. `conversation.fit` gives a conversation the form that they ask for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from smg_trio.text.content_format import ContentFormat

SystemPlace = Literal["anywhere", "first", "last_user", "first_user"]
CallForm = Literal["own", "text"]
ResultForm = Literal["own", "user"]
CallText = Literal["together", "before", "apart"]
CallIds = Literal["any", "short", "numbered"]
Reasoning = Literal["reasoning_content", "thinking", "parts", "inline", "none"]
ToolForm = Literal["kept", "omitted", "filled", "flat", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateTraits:
    """The defaults describe a template that takes every conversation as it is.

    Attributes:
        content: message content as text (``string``) or as a list of text parts (``openai``).
        text_roles: roles whose content is text all the same, since parts of it would be lost.
        one_part_roles: roles of which only the first part is shown, so that all texts have to be in it.
        system: where system messages are shown: ``anywhere``; only as the ``first`` message; as the first one, but
            only while a user turn is the last (``last_user``: else they have to be in the last user turn); not at
            all (``first_user``: they have to be in the first user turn).
        needs_system: there must be a system message.
        developer: whether the ``developer`` role is shown; if not, such messages become system messages.
        consecutive_users, consecutive_assistants: several turns of that role in a row; if not, they are merged.
        assistant_first: the first turn may be the assistant's.
        needs_user: there must be a user turn.
        user_after_result: a user turn may follow a tool result; if not, an empty assistant turn comes between.
        empty_turn: content of a turn that only separates two others.
        calls: tool calls are shown (``own``), or have to be written into the content (``text``).
        results: tool results are shown (``own``), or have to be user turns (``user``).
        calls_without_tools, results_without_tools: the same for a request that offers no tools.
        arguments: a call's arguments as a mapping or as JSON text.
        raw_arguments: arguments that are no JSON object are taken as the text they are.
        call_content: content of a turn with calls and no text: ``empty``, ``text`` (``""``), ``null`` or ``absent``.
        call_text: the text of a turn with calls: ``together`` with them, as a turn of its own ``before`` them, or
            that with an empty user turn between the two (``apart``).
        several_calls: a turn may have several calls; if not, each has a turn of its own, followed by its result.
        call_ids: ``any`` that is not empty; ``short``: they must be 9 letters and digits; ``numbered``: the template
            shows a tool's name only as part of the id, which must be ``functions.NAME:N``, N counting all calls of the
            conversation.
        result_names: a tool result carries the tool's name.
        results_apart: other turns may come between a call and its result; if not, the result is moved to its call.
        reasoning: how the reasoning of a turn with calls is given: as ``reasoning_content`` (and ``reasoning``), as
            ``thinking``, as a content part, in ``<think>`` tags in the content (``inline``, only while thinking is
            switched on), or not at all.
        reasoning_with_text: a turn with calls may have both reasoning and text; if not, the text is added to the
            reasoning.
        tool_form: what a tool leaves out is null (``kept``), absent (``omitted``), or an empty value (``filled``);
            ``flat``: besides, name, description and parameters are members of the tool itself; ``plain``: schemas are
            simplified, see `tool_forms.simplified_tools`.
        empty_tools: a request without tools gives an empty list instead of nothing.
        shows_tools: whether the definitions of tools are shown.
    """

    content: ContentFormat = "string"
    text_roles: frozenset[str] = frozenset()
    one_part_roles: frozenset[str] = frozenset()
    system: SystemPlace = "anywhere"
    needs_system: bool = False
    developer: bool = False
    consecutive_users: bool = True
    consecutive_assistants: bool = True
    assistant_first: bool = True
    needs_user: bool = False
    user_after_result: bool = True
    empty_turn: str = ""
    calls: CallForm = "own"
    results: ResultForm = "own"
    calls_without_tools: CallForm = "own"
    results_without_tools: ResultForm = "own"
    arguments: Literal["mapping", "text"] = "mapping"
    raw_arguments: bool = True
    call_content: Literal["empty", "text", "null", "absent"] = "empty"
    call_text: CallText = "together"
    several_calls: bool = True
    call_ids: CallIds = "any"
    result_names: bool = False
    results_apart: bool = True
    reasoning: Reasoning = "reasoning_content"
    reasoning_with_text: bool = True
    tool_form: ToolForm = "kept"
    empty_tools: bool = False
    shows_tools: bool = True

    @property
    def takes_any_order(self) -> bool:
        """Whether turns may follow each other as they like."""
        sides = self.consecutive_users and self.consecutive_assistants and self.user_after_result
        return sides and self.assistant_first and not self.needs_user

    def as_json(self) -> dict[str, Any]:
        """The traits as a JSON object."""
        return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in asdict(self).items()}
