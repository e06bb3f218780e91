"""How long a text may be that is tokenized, found out before its tokens take memory.

A token of a long text takes some 250 bytes while it is made, so 64 MiB of text take 7 GB, and most of it is thrown away
when the prompt turns out to be longer than the context window. So a text that may be too long is counted first, piece
by piece, until it is.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from smg_trio.core.errors import ContextLengthExceeded, InvalidRequest
from smg_trio.text.chat_template import MAX_RENDERED_CHARS

if TYPE_CHECKING:
    from smg_trio.pipeline.models import ServedModel
    from smg_trio.text.tokenizer import Tokenizer

MAX_TEXT_TOKENS: Final = 1_000_000
"""Tokens of a text that is tokenized for its own sake, or cut afterwards, where the model's window is shorter."""
_PIECE_CHARS: Final = 1 << 18
_USUAL_CHARS: Final = 4
"""Characters that a token stands for in most texts: below so many per token of room, a text is not counted first."""
_CUT_TOKENS: Final = 64
"""Tokens that cutting a text at any place may add, and far more than that."""


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Room for the tokens of a text.

    Attributes:
        tokens: how many.
        is_window: they are the model's context window.
    """

    tokens: int
    is_window: bool = False

    def check(self, text: str, model: ServedModel, param: str) -> None:
        """Refuse a text of more tokens; one of a few more may pass. Long texts take time: not for the loop.

        Raises:
            ContextLengthExceeded, InvalidRequest: naming `param`.
        """
        if len(text) > MAX_RENDERED_CHARS:
            raise self._refusal(f"of {len(text)} characters has too many", param)
        if len(text) <= max(_PIECE_CHARS, _USUAL_CHARS * self.tokens):
            return
        counted = _count(text, model.text.tokenizer, self.tokens)
        if counted > self.tokens:
            raise self._refusal(f"of {len(text)} characters has at least {counted}", param)

    def _refusal(self, found: str, param: str) -> InvalidRequest | ContextLengthExceeded:
        if not self.is_window:
            return InvalidRequest(f"Input exceeds {self.tokens} tokens: it {found}.", param=param)
        return ContextLengthExceeded(
            f"This model's maximum context length is {self.tokens} tokens. However, your prompt {found} input tokens. "
            "Please reduce the length of the input prompt.",
            param=param,
        )


def _count(text: str, tokenizer: Tokenizer, limit: int) -> int:
    """Tokens of a text, at least: not all of them if they are more than `limit`."""
    counted = 0
    for start in range(0, len(text), _PIECE_CHARS):
        # A client that is gone needs no count; on the loop, where only tests count, none can go.
        with contextlib.suppress(RuntimeError):
            trio.from_thread.check_cancelled()
        counted += max(0, len(tokenizer.encode(text[start : start + _PIECE_CHARS])) - _CUT_TOKENS)
        if counted > limit:
            break
    return counted
