"""Token ids of the pieces of long prompts, kept for the next prompt that has them too.

Conversations repeat themselves: the system prompt and the tools in every one, all earlier turns in the next turn.
Prompts are cut at special tokens, where that changes nothing (`text.bpe.segments`), and pieces worth it are remembered.
Tokenizing costs 0.2 us per token at best (`text.bpe.word_cache`), finding a piece a small part of that.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from smg_trio.text.bpe.segments import cut
from smg_trio.text.tokenizer import Tokenizer

WORTH_CUTTING_CHARS = 2_000
"""Shorter texts are tokenized as they are, in less time than all this would save."""
WORTH_KEEPING_CHARS = 500
_TOKEN_BYTES = 40
"""Of a Python integer and its place in a list."""
_ENTRY_BYTES = 400
_Key = tuple[Tokenizer, str]


class EncodingCache:
    """An LRU cache of bounded size, for any number of tokenizers; may be used from several threads.

    Attributes:
        hits, misses: pieces that were found, and that were not.
        used_bytes: about how much memory the pieces take.
        evictions: pieces forgotten for lack of room.
        reused_bytes: length of what was found, in characters of prompt.
    """

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: about how much memory it may take; 0 switches it off."""
        self._max_bytes = max_bytes
        self.used_bytes = 0
        self._entries: OrderedDict[_Key, list[int]] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = self.misses = self.evictions = self.reused_bytes = 0

    def encode(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """As ``tokenizer.encode(text)``."""
        pattern = tokenizer.cutting_pattern
        if not self._max_bytes or pattern is None or len(text) < WORTH_CUTTING_CHARS:
            return tokenizer.encode(text)
        ids: list[int] = []
        short: list[str] = []
        for piece in cut(text, pattern):
            if len(piece) < WORTH_KEEPING_CHARS:
                short.append(piece)
                continue
            if short:
                ids += tokenizer.encode("".join(short))
                short.clear()
            ids += self._encode_piece(tokenizer, piece)
        return ids + tokenizer.encode("".join(short)) if short else ids

    def _encode_piece(self, tokenizer: Tokenizer, piece: str) -> list[int]:
        key = (tokenizer, piece)
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                self.hits += 1
                self.reused_bytes += len(piece)
                return found
            self.misses += 1
        ids = tokenizer.encode(piece)
        with self._lock:
            self._keep(key, ids)
        return ids

    def _keep(self, key: _Key, ids: list[int]) -> None:
        size = _size(key[1], ids)
        if size > self._max_bytes or key in self._entries:
            return
        self._entries[key] = ids
        self.used_bytes += size
        while self.used_bytes > self._max_bytes:
            (_, text), old = self._entries.popitem(last=False)
            self.used_bytes -= _size(text, old)
            self.evictions += 1


def _size(text: str, ids: list[int]) -> int:
    return _ENTRY_BYTES + text.__sizeof__() + _TOKEN_BYTES * len(ids)
