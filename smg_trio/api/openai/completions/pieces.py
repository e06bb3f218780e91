"""Updates to pieces of completion text: the one step that streamed and folded completions share.

A piece is what one update adds to one choice: text, log probabilities with their text offsets, and, first
of all, the echoed prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from smg_trio.api.openai.answer import shown_logprob, shown_token
from smg_trio.core.events import ChoiceUpdate, ContentDelta, TokenLogprob


@dataclass(frozen=True, slots=True)
class AnsweredPrompt:
    """A prompt as far as its answer shows it.

    Attributes:
        text: what ``echo`` shows.
        token_ids: int[T], what ``return_token_ids`` shows.
        first_token: the first token's text, which has no log probability of its own to bring it.
    """

    text: str = ""
    token_ids: Sequence[int] = ()
    first_token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionAnswer:
    """What is the same in every chunk of a completions answer, and what the request wants shown.

    Attributes:
        response_id: ``cmpl-...``.
        model: the name the client asked for.
        created: seconds since the epoch.
        n: choices per prompt; choice ``c`` answers prompt ``c // n``.
        prompts: one per prompt.
        echo: texts begin with the prompt, and logprobs with the prompt's.
        logprobs: candidates shown per token, beside the token itself; -1 = all there are; None = none.
        tokens_as_ids: show tokens as ``token_id:<n>``.
        return_token_ids: show token ids.
        system_fingerprint: shown if not None.
    """

    response_id: str
    model: str
    created: int
    n: int = 1
    prompts: Sequence[AnsweredPrompt] = (AnsweredPrompt(),)
    echo: bool = False
    logprobs: int | None = None
    tokens_as_ids: bool = False
    return_token_ids: bool = False
    system_fingerprint: str | None = None


@dataclass(slots=True)
class Logprobs:
    """OpenAI's column form: four lists of one entry per token."""

    text_offset: list[int] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)

    def value(self) -> dict[str, Any]:
        """As a JSON value."""
        return {
            "text_offset": self.text_offset,
            "token_logprobs": self.token_logprobs,
            "tokens": self.tokens,
            "top_logprobs": self.top_logprobs,
        }

    def extend(self, other: Logprobs) -> None:
        """Append another piece's entries."""
        self.text_offset += other.text_offset
        self.token_logprobs += other.token_logprobs
        self.tokens += other.tokens
        self.top_logprobs += other.top_logprobs


@dataclass(slots=True)
class Piece:
    """What one update adds: ``is_first`` on a choice's first."""

    text: str
    logprobs: Logprobs | None
    is_first: bool


class ChoicePieces:
    """The pieces of one choice, in order."""

    __slots__ = ("_answer", "_offset", "prompt", "started")

    def __init__(self, answer: CompletionAnswer, choice: int) -> None:
        self._answer = answer
        self._offset = 0
        self.prompt = answer.prompts[choice // answer.n]
        self.started = False

    def piece(self, update: ChoiceUpdate) -> Piece:
        """The next piece. Only visible text counts: completions have no reasoning and no tool calls."""
        is_first, self.started = not self.started, True
        text = "".join([event.text for event in update.events if isinstance(event, ContentDelta)])
        echoes = is_first and self._answer.echo
        if echoes:
            text = self.prompt.text + text
        return Piece(text, self._logprobs(update, echoes), is_first)

    def _logprobs(self, update: ChoiceUpdate, echoes: bool) -> Logprobs | None:
        if self._answer.logprobs is None:
            return None
        shown = Logprobs()
        if echoes:
            for entry in update.prompt_logprobs or ():
                self._append(shown, entry)
        for entry in update.logprobs or ():
            self._append(shown, entry)
        return shown

    def _append(self, shown: Logprobs, entry: TokenLogprob | None) -> None:
        # Offsets count the tokens' own texts, as vLLM's do: text held back for stop strings lags them.
        if entry is None:
            token = self._first_token()
        else:
            token = shown_token(entry, self._answer.tokens_as_ids)
        shown.text_offset.append(self._offset)
        shown.tokens.append(token)
        shown.token_logprobs.append(None if entry is None else shown_logprob(entry.logprob))
        shown.top_logprobs.append(None if entry is None else self._top(entry))
        self._offset += len(token)

    def _first_token(self) -> str:
        prompt = self.prompt
        if self._answer.tokens_as_ids and prompt.token_ids:
            return f"token_id:{prompt.token_ids[0]}"
        return prompt.first_token

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The token itself, then its rivals, by text. Rivals of the same text are told apart by bytes."""
        limit = self._answer.logprobs or 0
        rivals = entry.top if limit < 0 else entry.top[:limit]
        top: dict[str, float] = {}
        seen = set()
        for candidate in (entry, *rivals):
            if candidate.token_id in seen:
                continue
            seen.add(candidate.token_id)
            key = shown_token(candidate, self._answer.tokens_as_ids)
            if key in top:
                key = _bytes_key(candidate.raw)
            top[key] = shown_logprob(candidate.logprob)
        return top


def _bytes_key(raw: bytes) -> str:
    return "bytes:" + "".join([f"\\x{byte:02x}" for byte in raw])
