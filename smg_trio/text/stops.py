"""Stop strings over a stream of text pieces.

States: *watching* (some last characters may be held, because they could begin a stop) and *matched*
(nothing more comes out). The stop that is complete first ends the text; of several complete at the same
character the one listed first is named. That is vLLM 0.32's rule (``check_stop_strings``), and it makes the
answer independent of how the text was cut.

Held is the longest end of the text that is a proper beginning of some stop, nothing more; with
``include_stop`` nothing needs holding. All stops are walked at once as an automaton (Aho-Corasick), so the
cost is linear in the text whatever it holds; text without any stop's first character passes in one search.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from smg_trio.core.errors import InvalidRequest


class StopResult(NamedTuple):
    """What one push releases: `text` (may be empty) and the stop that ended the text, or None."""

    text: str
    matched: str | None


class StopMatcher:
    """Watches one text for stop strings; not shared between texts."""

    __slots__ = ("_automaton", "_held", "_include", "_matched", "_node", "_stops")

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """Watches for `stops`; with `include_stop` the matched one stays at the end of the text.

        Raises:
            InvalidRequest: one of them is empty.
        """
        if "" in stops:
            raise InvalidRequest("stop cannot contain an empty string.", param="stop")
        self._stops = tuple(stops)
        self._automaton = _automaton(self._stops) if stops else None
        self._include = include_stop
        self._held = ""
        self._node = 0
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop that ended the text, or None so far."""
        return self._matched

    def push(self, text: str, *, armed: bool = True) -> StopResult:
        """Takes the next piece of text.

        Args:
            text: may be empty.
            armed: False while fewer than ``min_tokens`` tokens came: a stop complete within this piece
                does not count, then or later; one that only begins in it does (as vLLM's).

        Returns:
            The text released now. After a match, only empty text.
        """
        automaton = self._automaton
        if automaton is None:
            return StopResult(text, None)
        if self._matched is not None:
            return StopResult("", self._matched)
        if not self._node and automaton.first_chars.search(text) is None:
            return StopResult(text, None)
        return self._walk(automaton, text, armed)

    def _walk(self, automaton: _Automaton, text: str, armed: bool) -> StopResult:
        node, ends = self._node, automaton.ends
        for position, char in enumerate(text):
            node = automaton.step(node, char)
            if ends[node] >= 0 and armed:
                return self._match(self._stops[ends[node]], text[: position + 1])
        self._node = node
        return StopResult(self._release(text, automaton.held_lengths[node]), None)

    def _match(self, stop: str, text: str) -> StopResult:
        self._matched = stop
        text, self._held = self._held + text, ""
        return StopResult(text if self._include else text[: -len(stop)], stop)

    def _release(self, text: str, hold: int) -> str:
        if self._include:
            return text
        text = self._held + text
        cut = len(text) - hold
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """The text still held, at the end of the stream; empty after a match."""
        text, self._held, self._node = self._held, "", 0
        return text


@lru_cache(maxsize=32)
def _automaton(stops: tuple[str, ...]) -> _Automaton:
    """Shared by all texts with these stops: it does not change, and a request's choices have the same ones."""
    return _Automaton(stops)


class _Automaton:
    """Aho-Corasick over characters.

    Attributes:
        ends: per node, the lowest index of a stop that ends there, -1 for none.
        held_lengths: per node, the length of the longest text end that properly begins a stop.
        first_chars: finds any character that begins a stop.
    """

    __slots__ = ("_fails", "_next", "ends", "first_chars", "held_lengths")

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fails = [0]
        self.ends = [-1]
        self.held_lengths = [0]
        for index, stop in enumerate(stops):
            self._add(index, stop)
        self._link()
        self.first_chars = re.compile("[" + "".join(re.escape(char) for char in self._next[0]) + "]")

    def _add(self, index: int, stop: str) -> None:
        node = 0
        for depth, char in enumerate(stop, 1):
            if char not in self._next[node]:
                self._next[node][char] = len(self._next)
                self._next.append({})
                self._fails.append(0)
                self.ends.append(-1)
                self.held_lengths.append(depth)
            node = self._next[node][char]
        if self.ends[node] < 0:
            self.ends[node] = index

    def _link(self) -> None:
        """Breadth first: a node's failure is shorter than the node, so it is complete before it is used."""
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            fail = self._fails[node]
            candidates = [index for index in (self.ends[node], self.ends[fail]) if index >= 0]
            self.ends[node] = min(candidates, default=-1)
            if not self._next[node]:
                self.held_lengths[node] = self.held_lengths[fail]
            for char, child in self._next[node].items():
                self._fails[child] = self.step(fail, char) if node else 0
                queue.append(child)

    def step(self, node: int, char: str) -> int:
        """The node for the longest text end that begins (or is) a stop, after one more character."""
        following = self._next[node].get(char)
        while following is None and node:
            node = self._fails[node]
            following = self._next[node].get(char)
        return following or 0
