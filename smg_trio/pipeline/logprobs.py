"""Engine log probabilities (ids and numbers) → what is shown (texts and bytes). Pure.

Token texts follow vLLM 0.32's API server, so that answers can be compared: a token's text is its decoding alone; if
that is no whole character, the token that completes the character (looking back over at most four tokens) shows the
whole character and those before it show "". The bytes are always the token's own where its text is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from smg_trio.core.events import TokenLogprob
from smg_trio.text.token_pieces import REPLACEMENT

if TYPE_CHECKING:
    from smg_trio.core.outputs import PositionLogprobs
    from smg_trio.text.tokenizer import Tokenizer

MIN_LOGPROB = -9999.0
"""What -inf is shown as: JSON has no infinities (vLLM's number)."""
_LOOK_BACK = 4


class LogprobTranslator:
    """Translates the positions of one sequence in order; remembers the last tokens for split characters.

    Args:
        tokenizer: whose ids they are.
        top: candidates shown per position; -1 = all there are.
    """

    __slots__ = ("_recent", "_shown", "_tokenizer", "_top")

    def __init__(self, tokenizer: Tokenizer, top: int) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._recent: deque[int] = deque(maxlen=_LOOK_BACK)
        self._shown = tokenizer.shown_alone

    def translate(self, positions: Sequence[PositionLogprobs]) -> list[TokenLogprob]:
        """One entry per position, each with its best candidates in rank order."""
        translated = []
        for position in positions:
            translated.append(self._position(position))
            self._recent.append(position.token_ids[0])
        return translated

    def _position(self, position: PositionLogprobs) -> TokenLogprob:
        ids, logprobs = position.token_ids, position.logprobs
        count = len(ids) - 1 if self._top < 0 else min(self._top, len(ids) - 1)
        shown = self._shown
        entries: list[TokenLogprob] = []
        rank = position.rank
        for place in range(count + 1):
            token_id, logprob = ids[place], logprobs[place]
            text, raw, partial = shown[token_id]
            if partial:
                text = self._completed(token_id)
            if not logprob > MIN_LOGPROB:  # "not a number" too
                logprob = MIN_LOGPROB
            entries.append(TokenLogprob(token_id, text, raw, logprob, rank))
            rank = place + 1  # those behind the token that stands there are in rank order
        sampled = entries.pop(0)
        sampled.top = entries
        return sampled

    def _completed(self, token_id: int) -> str:
        recent, decode = list(self._recent), self._tokenizer.decode
        for start in range(len(recent) - 1, -1, -1):
            before = decode(recent[start:], skip_special_tokens=False)
            text = decode([*recent[start:], token_id], skip_special_tokens=False)
            if not text.endswith(REPLACEMENT):
                return text[len(before.rstrip(REPLACEMENT)) :]
        return ""


def translate_prompt(
    tokenizer: Tokenizer, positions: Sequence[PositionLogprobs], top: int
) -> list[TokenLogprob | None]:
    """Entries for every prompt position, of which the first has none."""
    return [None, *LogprobTranslator(tokenizer, top).translate(positions)]
