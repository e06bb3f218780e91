"""Mistral's official chat encoding: a conversation to token ids, by mistral_common.

Mistral's models come with no chat template, or with one that only approximates what they were trained on: their
reference is the library, which checks the conversation, brings it into the form of the tokenizer's version (v1 to v15)
and never lets the text of a message become a control token. It is an optional dependency (``smg-trio[mistral]``).

The texts between control tokens are tokenized by the gateway's own tokenizer, which gives the same ids: it remembers
words, leaves the interpreter to others meanwhile, and no text makes it give up.
"""

from __future__ import annotations

import hashlib
import string
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import tokenizers

from smg_trio.core.errors import ConfigError, InvalidRequest
from smg_trio.core.media import MediaSource
from smg_trio.text.conversation import fit
from smg_trio.text.media_marks import MediaMarks
from smg_trio.text.message_forms import normalise
from smg_trio.text.template_traits import TemplateTraits
from smg_trio.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from smg_trio.core.media import Modality

_ID_CHARS: Final = 9
_ID_ALPHABET: Final = string.ascii_letters + string.digits
_MARKS: Final = {"[TOOL_CALLS]": 2, "[ARGS]": 11, "[THINK]": 13}
"""Control tokens of answers, and the versions that they are used since."""
_EFFORT_VERSION: Final = 15


_AS_SENT: Final = TemplateTraits(content="openai", developer=True, arguments="text")
_STRICT_ORDER: Final = TemplateTraits(
    content="openai",
    system="first",
    consecutive_users=False,
    consecutive_assistants=False,
    assistant_first=False,
    needs_user=True,
    user_after_result=False,
    empty_turn="OK.",
    arguments="text",
    results_apart=False,
)


class _LibraryRefusal(Exception):
    """The library does not take the conversation; in its words."""


class EncodedChat(NamedTuple):
    """A conversation as the model sees it: its token ids, how they read, and its media in their order."""

    token_ids: list[int]
    text: str
    media: Sequence[MediaSource] = ()


@dataclass(slots=True)
class _Media:
    """The media of a conversation that is being encoded.

    Attributes:
        placed: those that have a place in the tokens so far.
    """

    marks: MediaMarks
    placeholder_ids: Mapping[Modality, tuple[int, ...]]
    placed: list[MediaSource] = field(default_factory=list)


class MistralLibraryMissing(ConfigError):
    """The optional dependency is not installed."""


class MistralChat:
    """The chat encoding of one tokenizer.

    Attributes:
        source: the control tokens that tell which parsers fit the answers.
        version: of the tokenizer; what a prompt looks like depends on it.
        thinking_toggle: None: there is no switch; ``reasoning_effort`` is passed on where the version knows it.
    """

    thinking_toggle = None

    def __init__(self, file: Path, tokenizer: Tokenizer) -> None:
        """Reads ``tekken.json`` or ``tokenizer.model.vN`` again, with the library. Blocking: 1 s, and 1 s to import it.

        Args:
            file: the vocabulary that `tokenizer` was made of.
            tokenizer: tokenizes all texts.

        Raises:
            MistralLibraryMissing: the library is not installed.
            ConfigError: it is too old for this file, or does not understand it.
        """
        self._library = _import_library()
        try:
            mode = self._library.ValidationMode.test
            self._encoder = self._library.MistralTokenizer.from_file(str(file), mode=mode)
        except Exception as error:  # noqa: BLE001 - it raises many kinds, AssertionError among them
            raise ConfigError(
                "--tokenizer-path",
                f"mistral_common does not understand '{file}' ({error}).",
                "Upgrade it (pip install -U 'smg-trio[mistral]'), or pass --chat-template.",
            ) from None
        inner = self._encoder.instruct_tokenizer.tokenizer
        self._pieces = _without_added_tokens(tokenizer)
        self._tokenizer = tokenizer
        inner.encode = self._encode_piece
        self._bos, self._eos = inner.bos_id, inner.eos_id
        self.version = int(str(inner.version.value).removeprefix("v"))
        self.source = " ".join(
            mark for mark, since in _MARKS.items() if self.version >= since and tokenizer.token_id(mark) is not None
        )
        self._thinks = "[THINK]" in self.source
        self._encoding = threading.local()

    def _encode_piece(self, s: str, bos: bool, eos: bool) -> list[int]:
        """In place of the library's own method, with its signature."""
        media: _Media | None = getattr(self._encoding, "media", None)
        ids = self._pieces.encode(s) if media is None else self._encode_marked(s, media)
        return [*([self._bos] if bos else ()), *ids, *([self._eos] if eos else ())]

    @cached_property
    def _joint(self) -> str:
        """What the library puts between two parts that are text; versions differ."""
        parts = [{"type": "text", "text": word} for word in ("Quince", "Medlar")]
        media, self._encoding.media = self._encoding.media, None
        try:
            ids = self._ids([{"role": "user", "content": parts}], {})
        finally:
            self._encoding.media = media
        return "\n\n" if "Quince\n\nMedlar" in self._tokenizer.decode(ids) else ""

    def _encode_marked(self, text: str, media: _Media) -> list[int]:
        """A text with marks of media.

        To the library they are texts, which it joins with those beside them; its own images are not joined.
        """
        pieces = media.marks.split(text)
        ids: list[int] = []
        for place, piece in enumerate(pieces):
            if isinstance(piece, MediaSource):
                media.placed.append(piece)
                ids += media.placeholder_ids[piece.modality]
                continue
            if place > 0:
                piece = piece.removeprefix(self._joint)
            if place < len(pieces) - 1:
                piece = piece.removesuffix(self._joint)
            ids += self._pieces.encode(piece)
        return ids

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        reasoning_effort: str | None = None,
        placeholder_ids: Mapping[Modality, tuple[int, ...]] | None = None,
    ) -> EncodedChat:
        """The prompt of a conversation.

        Args:
            messages: Chat Completions messages.
            tools: tool definitions, or None.
            add_generation_prompt: an answer is to follow. The prompt is the same; only a conversation that ends with
                the assistant is refused then.
            continue_final_message: end inside the last message, so that the model goes on with it.
            reasoning_effort: passed on to versions that know it.
            placeholder_ids: what stands for one item of media in the tokens; None where media cannot be in them.

        What the library refuses as it was sent is given the order that all versions take: one system text at the front,
        turns of one role together, results behind their calls.

        Raises:
            InvalidRequest: the library refuses that too; in its words.
            UnsupportedContent: a content part that holds media.
        """
        self._check_end(messages, add_generation_prompt, continue_final_message)
        marks = None if placeholder_ids is None else MediaMarks(in_parts=False)
        more: dict[str, Any] = {"continue_final_message": continue_final_message}
        if tools:
            more["tools"] = [_tool(tool) for tool in tools]
        if reasoning_effort and self.version >= _EFFORT_VERSION:
            more["reasoning_effort"] = reasoning_effort
        media = None if marks is None else _Media(marks, placeholder_ids or {})
        self._encoding.media = media
        try:
            ids = self._encoded(messages, more, marks)
        finally:
            self._encoding.media = None
        text = self._tokenizer.decode(ids, skip_special_tokens=False)
        return EncodedChat(ids, text, () if media is None else media.placed)

    def _encoded(
        self, messages: Sequence[Mapping[str, Any]], more: Mapping[str, Any], marks: MediaMarks | None
    ) -> list[int]:
        try:
            return self._ids(self._as_sent(messages, marks), more)
        except _LibraryRefusal as refusal:
            # The order of turns, mostly: what the API takes and a chat template is given in another form.
            if not messages:
                raise InvalidRequest(f"The conversation cannot be encoded: {refusal}", param="messages") from None
            try:
                return self._ids(self._fitted(messages, marks, has_tools="tools" in more), more)
            except _LibraryRefusal:
                message = f"The conversation cannot be encoded: {refusal}"
                raise InvalidRequest(message, param="messages") from None

    def _ids(self, messages: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> list[int]:
        media: _Media | None = self._encoding.media
        if media is not None:
            media.placed.clear()
        try:
            request = self._library.ChatCompletionRequest.from_openai(messages=messages, **more)
            return list(self._encoder.encode_chat_completion(request).tokens)
        except Exception as error:  # noqa: BLE001 - many kinds, AssertionError too, all about this conversation
            raise _LibraryRefusal(_reason(error)) from None

    def _as_sent(self, messages: Sequence[Mapping[str, Any]], marks: MediaMarks | None) -> list[dict[str, Any]]:
        """The turns in their order. Raises ClientFault for a content part that cannot be read."""
        checked = [normalise(message, _AS_SENT, f"messages[{index}]", marks) for index, message in enumerate(messages)]
        return [
            self._prepared(message, seen.get("reasoning"), marks)
            for message, seen in zip(messages, checked, strict=True)
        ]

    def _fitted(
        self, messages: Sequence[Mapping[str, Any]], marks: MediaMarks | None, *, has_tools: bool
    ) -> list[dict[str, Any]]:
        """The turns in the order that all versions take, without answers that say nothing."""
        said = [message for message in messages if message["role"] != "assistant" or _says_something(message)]
        turns = fit(said, _STRICT_ORDER, has_tools=has_tools, marks=marks).messages
        return [self._prepared(turn, turn.get("reasoning"), marks) for turn in turns]

    def _check_end(self, messages: Sequence[Mapping[str, Any]], prompts: bool, continues: bool) -> None:
        if prompts and continues:
            raise InvalidRequest(
                "Cannot set both `continue_final_message` and `add_generation_prompt` to true.",
                param="continue_final_message",
            )
        last = messages[-1].get("role") if messages else None
        if prompts and last == "assistant":
            raise InvalidRequest(
                "The last message is from the assistant. To let the model go on with it, set "
                "`continue_final_message` to true and `add_generation_prompt` to false.",
                param="messages",
            )
        if continues and last != "assistant":
            raise InvalidRequest(
                "`continue_final_message` needs a last message from the assistant.", param="continue_final_message"
            )

    def _prepared(self, message: Mapping[str, Any], reasoning: Any, marks: MediaMarks | None) -> dict[str, Any]:
        """A message with what the library takes, and nothing that it would have to fetch."""
        role, content = message["role"], message.get("content")
        seen: dict[str, Any] = {"role": role}
        seen["content"] = content if isinstance(content, str) else self._parts(content, marks)
        if role == "assistant":
            seen["content"] = seen["content"] or None
            if reasoning and self._thinks:
                seen["reasoning"] = reasoning
            calls = message.get("tool_calls")
            if calls:
                seen["tool_calls"] = [_call(call) for call in calls]
        elif role == "tool":
            seen["tool_call_id"] = _call_id(message.get("tool_call_id"))
            if isinstance(message.get("name"), str):
                seen["name"] = message["name"]
        return seen

    def _parts(self, content: Sequence[Any] | None, marks: MediaMarks | None) -> list[dict[str, Any]]:
        """Content parts: texts, marks, and reasoning where the tokenizer's version knows it."""
        parts: list[dict[str, Any]] = []
        for part in content or ():
            if self._thinks and isinstance(part, Mapping) and part.get("type") == "thinking":
                parts.append({"type": "thinking", "thinking": part["thinking"]})
            else:
                parts += normalise({"role": "user", "content": [part]}, _AS_SENT, "messages", marks)["content"]
        return parts


def _import_library() -> Any:
    try:
        from smg_trio.text import mistral_library
    except ImportError as error:
        raise MistralLibraryMissing(
            "--model-path",
            f"Its conversations are encoded by mistral_common, which cannot be imported (`{error}`).",
            "Install it in the gateway's environment (pip install 'smg-trio[mistral]'), or start the gateway with "
            "--chat-template.",
        ) from None
    return mistral_library


def _without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The same vocabulary, in which no text becomes a control token."""
    backend = tokenizers.Tokenizer(tokenizer.backend.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        component = getattr(tokenizer.backend, part)
        if component is not None:
            setattr(backend, part, component)
    return Tokenizer(backend)


def _says_something(answer: Mapping[str, Any]) -> bool:
    return any(answer.get(key) for key in ("content", "tool_calls", "reasoning", "reasoning_content"))


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    kept = {key: function[key] for key in ("name", "arguments") if key in function}
    return {"id": _call_id(call.get("id")), "type": "function", "function": kept}


def _call_id(given: Any) -> str:
    """The id as Mistral's tokenizers before v13 demand it: nine letters or digits.

    The last nine characters, as vLLM 0.32 takes them, or nine made of the whole id where those will not do: call and
    result get the same.
    """
    text = str(given or "")
    last = text[-_ID_CHARS:]
    if len(last) == _ID_CHARS and all(char in _ID_ALPHABET for char in last):
        return last
    digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
    return "".join(_ID_ALPHABET[byte % len(_ID_ALPHABET)] for byte in digest[:_ID_CHARS])


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {key: value for key, value in tool["function"].items() if value is not None}
    return {"type": "function", "function": {"parameters": {}} | function}


def _reason(error: Exception) -> str:
    """The first line; pydantic's errors have a line per field, and links."""
    errors = getattr(error, "errors", None)
    if callable(errors) and (found := errors()):
        place = ".".join(map(str, found[0].get("loc", ())))
        return f"{place}: {found[0].get('msg', '')}" if place else str(found[0].get("msg", ""))
    if isinstance(error, KeyError):
        return f"{error} is missing"
    text = str(getattr(error, "message", "") or error) or type(error).__name__
    return text.strip().splitlines()[0]
