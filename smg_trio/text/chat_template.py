"""Chat templates: a conversation to prompt text.

The environment is the one Hugging Face models are written for: an immutable sandbox with trimmed blocks,
loop controls, ``{% generation %}``, a ``tojson`` that does not escape HTML, ``raise_exception`` and
``strftime_now``. Compiled once per model. A rendering costs 10 to 100 µs for usual chats and holds the GIL.

The sandbox stops attribute tricks and the shortest ways to a huge value (``range``, ``*``, ``**``), not costs:
templates come from the model's directory or the operator, never from a request. What a request controls (messages,
tools, template arguments) is data to it, and the lengths of both ends are bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from smg_trio.core.errors import ConfigError, InvalidRequest
from smg_trio.text.content_format import detect_content_format
from smg_trio.text.conversation import Fitted, fit
from smg_trio.text.message_forms import TextParts
from smg_trio.text.template_probes import find_traits
from smg_trio.text.tool_forms import fit_tools

if TYPE_CHECKING:
    from jinja2.parser import Parser

    from smg_trio.text.media_marks import MediaMarks
    from smg_trio.text.template_traits import TemplateTraits

MAX_RENDERED_CHARS: Final = 16_000_000
"""Bound on a rendered prompt; four times the text of the longest context windows served today."""

_OWN_NAMES: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_REFUSED_NAMES: Final = ("chat_template", "tokenize")
_CONTINUES_HERE: Final = "SMG-TRIO-CONTINUES-HERE "

_TOGGLE_KEYS: Final = ("enable_thinking", "thinking")
_NO_THINKING: Final = ("none", "no_think")
_LEVELS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")
_TEMPLATE_EFFORTS: Final = (*_NO_THINKING, *_LEVELS)
EFFORTS: Final = ("none", *_LEVELS)
"""What requests may ask for as ``reasoning_effort``."""


@dataclass(frozen=True, slots=True)
class ThinkingToggle:
    """The template argument that switches thinking: its name, and what leaving it out means."""

    key: str
    default: bool


class _GenerationBlock(Extension):
    """``{% generation %}...{% endgeneration %}`` marks training targets; for prompts it is a plain block."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


_DICT_ATTRIBUTES: Final = frozenset(dir(dict))
_SAFE_TEXT_METHODS: Final = frozenset(
    ("strip", "lstrip", "rstrip", "split", "rsplit", "startswith", "endswith", "removeprefix", "removesuffix", "lower")
)


_TOKEN_NAMES: Final = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token")
_OWN_LIST_METHODS: Final = frozenset(("append", "extend", "pop"))
_MAX_POWER_BITS: Final = 4_096


def _repeated(left: Any, right: Any) -> int:
    """How long ``left * right`` is, if it repeats a sequence."""
    if isinstance(left, int) and isinstance(right, int):
        return 0
    count, repeated = (left, right) if isinstance(left, int) else (right, left)
    return count * len(repeated) if isinstance(count, int) and isinstance(repeated, (str, list, tuple)) else 0


class _Given(list[Any]):
    """A list that comes from outside the template, which must not change it."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """The library's immutable sandbox, quicker at what templates do most: ``message.role``, ``content.strip()``.

    The library tries the attribute first, and only when that has failed with an exception the key; and it asks of every
    attribute whether it could change a list, a dict or a set. A template may change lists of its own: some do.
    """

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiplying is how a few characters of a template, given a number by the request, become gigabytes."""
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > _MAX_POWER_BITS:
                raise OverflowError("a power is too large")
        elif operator == "*" and _repeated(left, right) > MAX_RENDERED_CHARS:
            raise OverflowError("a repetition is too long")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """What a template may use of an object."""
        return (attr in _OWN_LIST_METHODS and type(obj) is list) or super().is_safe_attribute(obj, attr, value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if type(obj) is str and attribute in _SAFE_TEXT_METHODS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


class _AbsentToken(jinja2.Undefined):
    """A special token that the tokenizer has not: undefined, and no text where a template adds it to one."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __add__


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_plain,
    )


def _plain(value: Any) -> list[Any]:
    """What filters like ``map`` give, as JSON; raises TypeError for what is no list."""
    if isinstance(value, Generator):
        return list(value)
    raise TypeError("a value that is not JSON")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class ChatTemplate:
    """A compiled template.

    Attributes:
        source: the template text.
        referenced_variables: names it reads from outside: which template arguments can have an effect.
        traits: what conversations it takes, and in which form; found out by rendering when first asked for, which
            takes 5 to 40 ms.
        efforts: what it takes as ``reasoning_effort``, found likewise.
        thinking_toggle: its thinking switch, or None; found when first asked for.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compiles `source`.

        Args:
            source: Jinja text.
            special_tokens: ``bos_token`` and so on; absent ones stay undefined in the template, and are no text.
            clock: local time for ``strftime_now``.

        Raises:
            ConfigError: it does not compile.
        """
        environment = _environment(clock)
        try:
            tree = environment.parse(source)
            template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                "--chat-template",
                f"the chat template does not compile (line {error.lineno}: {error.message}).",
                "Pass a Jinja template made for this model.",
            ) from None
        self.source = source
        self._environment = environment
        self._blocks = template.blocks
        self._pieces = template.root_render_func
        self._names = {
            **environment.globals,
            **{name: _AbsentToken(name=name) for name in _TOKEN_NAMES},
            **{name: text for name, text in special_tokens.items() if text is not None},
        }
        self._content_format = detect_content_format(tree)
        self.referenced_variables = frozenset(meta.find_undeclared_variables(tree))

    @cached_property
    def traits(self) -> TemplateTraits:
        """See `ChatTemplate`."""
        names_developer = "'developer'" in self.source or '"developer"' in self.source
        return find_traits(self._render_probe, self._content_format, names_developer=names_developer)

    def find_traits(self) -> None:
        """Find `traits` and `efforts` now rather than with the first conversation."""
        # Both are cached: reading them finds them out.
        self.traits, self.efforts  # noqa: B018

    def _render_probe(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, thinking: bool
    ) -> str:
        toggle = self.thinking_toggle if thinking else None
        return self.render(messages, tools=tools, kwargs=None if toggle is None else {toggle.key: True})

    def fit(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        has_tools: bool = False,
        thinking: bool = False,
        marks: MediaMarks | None = None,
    ) -> Fitted:
        """Request messages in the form this template takes, see `conversation.fit`.

        Raises:
            InvalidRequest: a content part that cannot be given to a template.
            UnsupportedContent: media without `marks`.
        """
        return fit(messages, self.traits, has_tools=has_tools, thinking=thinking, marks=marks)

    def fit_tools(self, tools: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]] | None:
        """Tool definitions in the form this template takes, see `tool_forms.fit_tools`."""
        return fit_tools(tools, self.traits)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text.

        Args:
            messages: what `fit` returned.
            tools: what `fit_tools` returned.
            documents: documents for retrieval templates.
            add_generation_prompt: open the assistant's turn at the end.
            continue_final_message: end inside the last message instead, so that the model goes on with it.
            kwargs: further template arguments; the names above cannot be overridden by them.

        Raises:
            InvalidRequest: the template refuses the conversation (with the template's own words), cannot
                render it, or the outcome is too long; ``param`` names the field at fault.
        """
        context = {**self._names, **_checked(kwargs)} if kwargs else self._names.copy()
        context["tools"] = None if tools is None else _Given(tools)
        context["documents"] = documents
        context["add_generation_prompt"] = add_generation_prompt
        if not continue_final_message:
            return self._render(messages, context)
        if add_generation_prompt:
            raise InvalidRequest(
                "Cannot set both `continue_final_message` and `add_generation_prompt` to true.",
                param="continue_final_message",
            )
        return self._render_open_ended(messages, context)

    def _render(self, messages: Sequence[Mapping[str, Any]], context: dict[str, Any]) -> str:
        try:
            return self._generate(messages, context)
        except Exception as error:  # noqa: BLE001 - a template can raise anything, all of it about this conversation
            raise _as_invalid_request(error) from None

    def _generate(self, messages: Sequence[Mapping[str, Any]], context: dict[str, Any]) -> str:
        # What the library's `Template.generate` does, without gathering the same names for every rendering.
        names = {**context, "messages": _Given(messages)}
        size, parts = 0, []
        for part in self._pieces(Context(self._environment, names, None, self._blocks)):
            size += len(part)
            if size > MAX_RENDERED_CHARS:
                raise InvalidRequest(
                    f"The rendered prompt is longer than {MAX_RENDERED_CHARS} characters.", param="messages"
                )
            parts.append(part)
        return "".join(parts)

    def _render_open_ended(self, messages: Sequence[Mapping[str, Any]], context: dict[str, Any]) -> str:
        marked, final_text = _mark_final_text(messages)
        rendered = self._render(marked, context)
        cut = rendered.rfind(_CONTINUES_HERE.strip())
        if cut < 0 or final_text.strip() not in rendered:
            raise InvalidRequest(
                "The chat template drops or changes the final message, so it cannot be continued.",
                param="continue_final_message",
            )
        prompt = rendered[:cut]
        # A template that trims its messages trimmed the marker's space, and so must the prompt's end be.
        return prompt if rendered.startswith(_CONTINUES_HERE, cut) else prompt.rstrip()

    @cached_property
    def thinking_toggle(self) -> ThinkingToggle | None:
        """By trying it out on a one-message chat; by its text where that shows no difference."""
        for key in _TOGGLE_KEYS:
            if key not in self.referenced_variables and f"set {key} " not in self.source:
                continue
            on, off = self._probe({key: True}), self._probe({key: False})
            if on is None or off is None or on == off:
                return ThinkingToggle(key, f"set {key} = false" not in self.source)
            return ThinkingToggle(key, self._probe({}) == on)
        return None

    @cached_property
    def efforts(self) -> Mapping[str, str | None]:
        """Each effort that a request may ask for, and what the template takes for it; None: it takes none."""
        if "reasoning_effort" not in self.source:
            return {effort: effort for effort in EFFORTS}
        taken = [effort for effort in _TEMPLATE_EFFORTS if self._probe({"reasoning_effort": effort}) is not None]
        return {effort: nearest_effort(effort, taken) for effort in EFFORTS}

    def _probe(self, kwargs: Mapping[str, Any]) -> str | None:
        content: Any = "Hi" if self._content_format == "string" else TextParts([{"type": "text", "text": "Hi"}])
        try:
            return self.render([{"role": "user", "content": content}], kwargs=kwargs)
        except InvalidRequest:
            return None


def nearest_effort(effort: str, taken: Sequence[str]) -> str | None:
    """The one of `taken` that stands for `effort`; no thinking is never taken for some, nor some for none."""
    if effort in taken:
        return effort
    if effort in _NO_THINKING:
        return next((word for word in taken if word in _NO_THINKING), None)
    levels = [level for level in _LEVELS if level in taken]
    wanted = _LEVELS.index(effort)
    return min(levels, key=lambda level: abs(_LEVELS.index(level) - wanted), default=None)


def _environment(clock: Callable[[], datetime]) -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: clock().strftime(format)
    return environment


def _checked(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    for name in _REFUSED_NAMES:
        if name in kwargs:
            raise InvalidRequest(f"chat_template_kwargs cannot hold `{name}`.", param=f"chat_template_kwargs.{name}")
    return {name: value for name, value in kwargs.items() if name not in _OWN_NAMES}


def _as_invalid_request(error: Exception) -> InvalidRequest:
    if isinstance(error, InvalidRequest):
        return error
    if type(error) is jinja2.TemplateError:
        return InvalidRequest(str(error), param="messages")
    reason = _OWN_LISTS.sub("list", str(error))
    return InvalidRequest(f"The chat template cannot render these messages: {reason}", param="messages")


_OWN_LISTS: Final = re.compile(rf"(?:[\w.]+\.)?\b(?:{TextParts.__name__}|{_Given.__name__})\b")
"""How an interpreter's message names our kinds of list."""


def _mark_final_text(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str]:
    """The messages with a marker behind the last text of the last one, and that text."""
    final = messages[-1] if messages else {}
    content = final.get("content")
    if isinstance(content, str):
        return [*messages[:-1], {**final, "content": content + _CONTINUES_HERE}], content
    parts = TextParts(content or ())
    for index in range(len(parts) - 1, -1, -1):
        if "text" in parts[index]:
            text = parts[index]["text"]
            parts[index] = {**parts[index], "text": text + _CONTINUES_HERE}
            return [*messages[:-1], {**final, "content": parts}], text
    raise InvalidRequest("The final message has no text to continue.", param="continue_final_message")
