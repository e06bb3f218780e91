"""Token ids of one running answer to text, piece by piece.

States: *clean* (everything so far is out) or *holding* (some last tokens are, or may be, part of a
character). Joining all pushes and the flush gives the decoded answer; no U+FFFD leaves while later tokens
could still turn it into a character. Pieces are cut as vLLM 0.32's v1 engine cuts them
(``v1/engine/detokenizer.py``, a `DecodeStream` primed with the prompt), which is why the prompt is an
argument: behind a prompt the first word keeps its leading space.

Where we differ from it on purpose:

* held text is released by `flush` instead of being lost at the end;
* a byte-fallback run that turns out broken after part of it was released gives U+FFFD for its remaining
  bytes and goes on; the library raises "Invalid prefix" there and the remaining bytes are lost;
* a prompt that ends inside a character is not repeated in the answer;
* at most `HELD_LIMIT` tokens or bytes are held, so endless invalid bytes cost linear time.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tokenizers.decoders import DecodeStream

from smg_trio.text.token_pieces import REPLACEMENT, TokenPieces

if TYPE_CHECKING:
    from smg_trio.text.tokenizer import Tokenizer

HELD_LIMIT: Final = 64
"""No character, and no chain of characters that a decoder joins, needs this many held tokens."""

_PROMPT_TAIL: Final = 64
"""Prompt tokens given to the library's stream: enough context for any decoder, cheap for long prompts."""


class Detokenizer:
    """Incremental detokenizer of one sequence; not shared between sequences."""

    __slots__ = ("_flush", "_step")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        """Starts after `prompt_token_ids` (int[T], T may be 0), of which nothing appears in the output."""
        pieces = tokenizer.pieces
        state: _ByteLevel | _ByteFallback | _Stream
        if pieces is None or not (skip_special_tokens or spaces_between_special_tokens):
            state = _Stream(tokenizer, prompt_token_ids, skip_special_tokens, spaces_between_special_tokens)
        elif pieces.kind == "byte_level":
            state = _ByteLevel(pieces, prompt_token_ids, skip_special_tokens)
        else:
            state = _ByteFallback(pieces, prompt_token_ids, skip_special_tokens)
        self._step: Callable[[int], str] = state.step
        self._flush: Callable[[], str] = state.flush

    def push(self, token_ids: Sequence[int], *, hide_last: bool = False) -> str:
        """Text that `token_ids` complete; may be empty.

        Args:
            token_ids: newly generated ids, int[n], n >= 0. Ids outside the vocabulary give nothing.
            hide_last: leave out the last id: it ended the sequence (EOS or a stop token) and the client
                did not ask for the stop to be included.
        """
        if hide_last:
            token_ids = token_ids[:-1]
        if len(token_ids) == 1:
            return self._step(token_ids[0])
        return "".join(map(self._step, token_ids))

    def flush(self) -> str:
        """What is still held, at the end of the sequence; incomplete characters become U+FFFD."""
        return self._flush()


class _ByteLevel:
    """Every token is bytes; bytes that do not end a character wait for the next token."""

    __slots__ = ("_held", "_pieces", "_skip", "_table")

    def __init__(self, pieces: TokenPieces, prompt: Sequence[int], skip: bool) -> None:
        self._pieces = pieces
        self._skip = pieces.special_ids if skip else frozenset()
        self._table = pieces.skipping if skip else pieces.keeping
        self._held = b"" if self._is_ended(prompt) else _unfinished(self._tail_bytes(prompt))

    def _is_ended(self, prompt: Sequence[int]) -> bool:
        """Whether the prompt's last visible token ends in ASCII, as nearly all do."""
        for token_id in reversed(prompt[-8:]):
            if token_id not in self._skip:
                raw = self._pieces.raw(token_id)
                return raw != b"" and raw[-1] < 0x80
        return True

    def _tail_bytes(self, prompt: Sequence[int]) -> bytes:
        return b"".join(self._pieces.raw(token_id) for token_id in prompt[-8:] if token_id not in self._skip)

    def step(self, token_id: int) -> str:
        if not self._held:
            text = self._table.get(token_id)
            if text is not None:
                return text
        return self._step_slowly(token_id)

    def _step_slowly(self, token_id: int) -> str:
        pieces = self._pieces
        if token_id in self._skip:
            return ""
        if not self._held:
            text = pieces.fill(token_id, skip=self._table is pieces.skipping)
            if text is not None:
                return text
        self._held += pieces.raw(token_id)
        text = self._held.decode("utf-8", "replace")
        if not text.endswith(REPLACEMENT):
            self._held = b""
            return text
        return self._decided() if len(self._held) > HELD_LIMIT else ""

    def _decided(self) -> str:
        """Releases all that no later byte can change."""
        text, used = utf_8_decode(self._held, "replace", False)
        self._held = self._held[used:]
        return text

    def flush(self) -> str:
        text = self._held.decode("utf-8", "replace")
        self._held = b""
        return text


class _ByteFallback:
    """Words are text; consecutive byte tokens form a run that is valid as a whole or not at all."""

    __slots__ = ("_broken", "_clean", "_held", "_lost", "_pieces", "_run", "_skip", "_strip", "_table")

    def __init__(self, pieces: TokenPieces, prompt: Sequence[int], skip: bool) -> None:
        self._pieces = pieces
        self._skip = pieces.special_ids if skip else frozenset()
        self._table = pieces.skipping if skip else pieces.keeping
        self._held = ""  # text that ends in U+FFFD: the window rule does not release it yet
        self._run = _unfinished(self._prompt_run(prompt))  # bytes that may still become a character
        self._broken = False  # the present run can never be valid
        self._lost = 0  # bytes of a broken run not released yet
        self._strip = pieces.strips_leading_space and not any(map(self._visible, prompt))
        self._clean = not (self._run or self._strip)

    def _visible(self, token_id: int) -> bool:
        return token_id not in self._skip and self._pieces.raw(token_id) != b""

    def _prompt_run(self, prompt: Sequence[int]) -> bytes:
        run = b""
        for token_id in reversed(prompt[-8:]):
            if token_id in self._skip:
                continue
            if token_id in self._table or not self._pieces.is_byte(token_id):
                break
            run = self._pieces.raw(token_id) + run
        return run

    def step(self, token_id: int) -> str:
        if self._clean:
            text = self._table.get(token_id)
            if text is not None:
                return text
        return self._step_slowly(token_id)

    def _step_slowly(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        pieces = self._pieces
        if pieces.is_byte(token_id):
            text = self._add_byte(pieces.raw(token_id))
        else:
            text = self._add_word(token_id)
        self._clean = not (self._held or self._run or self._broken)
        if self._strip and text:
            text = self._without_first_space(text)
        return text

    def _without_first_space(self, text: str) -> str:
        self._strip = False
        return text.removeprefix(" ")

    def _add_word(self, token_id: int) -> str:
        word = self._table.get(token_id)
        if word is None:
            self._pieces.fill(token_id, skip=self._table is self._pieces.skipping)
            word = self._pieces.raw(token_id).decode("utf-8", "replace")
        if not word:
            return ""
        text = self._take() + word
        if text.endswith(REPLACEMENT) and len(text) <= HELD_LIMIT:
            self._held = text
            return ""
        return text

    def _add_byte(self, byte: bytes) -> str:
        if self._broken:
            self._lost += 1
        else:
            self._run += byte
            try:
                text, used = utf_8_decode(self._run, "strict", False)
            except UnicodeDecodeError:
                self._broken, self._lost, self._run = True, len(self._run), b""
            else:
                if used == len(self._run) and not text.endswith(REPLACEMENT):
                    return self._take_character(text)
        return self._release_lost() if self._lost > HELD_LIMIT else ""

    def _take_character(self, text: str) -> str:
        text, self._held, self._run = self._held + text, "", b""
        return text

    def _release_lost(self) -> str:
        text, self._held, self._lost = self._held + REPLACEMENT * self._lost, "", 0
        return text

    def _take(self) -> str:
        """All that is held, as it reads once the present run is over."""
        whole = self._run.decode("utf-8", "replace") if _is_whole(self._run) else REPLACEMENT * len(self._run)
        text = self._held + whole + REPLACEMENT * self._lost
        self._held, self._run, self._lost, self._broken = "", b"", 0, False
        return text

    def flush(self) -> str:
        text = self._take()
        self._clean = not self._strip
        return self._without_first_space(text) if self._strip and text else text


class _Stream:
    """Any other decoder: the library's `DecodeStream`, with held ids remembered for the end."""

    __slots__ = ("_added", "_after_added", "_context", "_held", "_skip", "_skip_flag", "_stream", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip: bool, spaces: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_flag = skip
        self._skip = tokenizer.special_ids if skip else frozenset()
        self._added = {} if skip or spaces else tokenizer.added_tokens
        self._after_added = False
        self._held: list[int] = []
        self._context = [token_id for token_id in prompt[-_PROMPT_TAIL:] if self._knows(token_id)]
        while self._context and self._decode(self._context).endswith(REPLACEMENT):
            self._held.insert(0, self._context.pop())
        self._stream = DecodeStream(ids=self._context, skip_special_tokens=skip)
        for token_id in self._held:
            self._stream.step(tokenizer.backend, token_id)

    def _knows(self, token_id: int) -> bool:
        return 0 <= token_id < self._tokenizer.vocab_size

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.backend.decode(token_ids, skip_special_tokens=self._skip_flag)
        return text

    def step(self, token_id: int) -> str:
        if token_id in self._skip or not self._knows(token_id):
            return ""
        try:
            text: str | None = self._stream.step(self._tokenizer.backend, token_id)
        except Exception as error:  # the library raises its base class only; the text tells
            if "Invalid prefix" not in str(error):
                raise
            return self._restart() + self.step(token_id)
        if text is None:
            self._held.append(token_id)
            return self._give_up_holding() if len(self._held) > HELD_LIMIT else ""
        self._context = [*self._held, token_id] if self._held else [token_id]
        self._held = []
        return self._own_text(token_id, text) if self._added else text

    def _own_text(self, token_id: int, text: str) -> str:
        """An added token right behind another one gives its own text, without a decoder's space."""
        own = self._added.get(token_id)
        after_added, self._after_added = self._after_added, own is not None
        return own if own is not None and after_added else text

    def _restart(self) -> str:
        """Goes on behind an id sequence that the stream cannot extend."""
        self._stream = DecodeStream(skip_special_tokens=self._skip_flag)
        return self.flush()

    def _give_up_holding(self) -> str:
        self._stream = DecodeStream(ids=self._context, skip_special_tokens=self._skip_flag)
        return self.flush()

    def flush(self) -> str:
        if not self._held:
            return ""
        before, both = self._decode(self._context), self._decode(self._context + self._held)
        text = both[len(before) :] if both.startswith(before) else self._decode(self._held)
        self._held = []
        return text


def _is_whole(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _unfinished(data: bytes) -> bytes:
    """The last 0 to 3 bytes that begin a character and do not end it."""
    for start in range(max(0, len(data) - 3), len(data)):
        tail = data[start:]
        try:
            _, used = utf_8_decode(tail, "strict", False)
        except UnicodeDecodeError:
            continue
        if used == 0:
            return tail
    return b""
