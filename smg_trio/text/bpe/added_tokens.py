"""Added tokens in a text, found as the library finds them. Pure.

Of two that begin at the same place the longer one counts, and the search goes on behind it. Those whose text is not
normalized are found first, the others in what is left. A token may swallow the white space behind it; one that
swallows what is before it, or must stand alone as a word, is beyond this search: `AddedTokens.odd` finds its text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from smg_trio.text.bpe.character_classes import WHITE_SPACE

if TYPE_CHECKING:
    from tokenizers import AddedToken

_END: Final = ""
"""Key of a trie's node where a token ends; its value is what may follow and belongs to it."""
_DEEPEST_TRIE: Final = 64
"""Characters; a pattern is nested as deep as its trie, and patterns are read recursively."""


class Stage:
    """The search for some of the tokens, in what earlier stages left between theirs.

    Attributes:
        split: cuts a text into pieces, every second of which is a token (with the white space that it swallows).
    """

    def __init__(self, tokens: Mapping[int, AddedToken]) -> None:
        self._ids = {token.content: key for key, token in tokens.items()}
        self.split = _pattern(tokens.values()).split

    def id_of(self, found: str) -> int:
        """Id of a token as `split` found it."""
        token_id = self._ids.get(found)
        return self._ids[found.rstrip(WHITE_SPACE)] if token_id is None else token_id


class AddedTokens:
    """The added tokens of one tokenizer.

    Attributes:
        stages: to be applied one after the other.
        odd: finds a text that may hold a token of another kind; None if there is none.
    """

    def __init__(self, tokens: Mapping[int, AddedToken]) -> None:
        found = {key: token for key, token in tokens.items() if token.content}
        begin_with_space = any(token.content[0] in WHITE_SPACE for token in found.values())
        usual = {key: token for key, token in found.items() if _is_usual(token, begin_with_space)}
        odd = [token.content for key, token in found.items() if key not in usual]
        by_stage = ({key: one for key, one in usual.items() if one.normalized is late} for late in (False, True))
        self.stages = [Stage(some) for some in by_stage if some]
        self.odd = re.compile("|".join(map(re.escape, odd))) if odd else None


def _is_usual(token: AddedToken, begin_with_space: bool) -> bool:
    if token.lstrip or token.single_word:
        return False
    return not (token.rstrip and (begin_with_space or token.content[-1] in WHITE_SPACE))


def _pattern(tokens: Collection[AddedToken]) -> re.Pattern[str]:
    """One group that matches any of them, the longest first."""
    texts = {token.content: f"[{WHITE_SPACE}]*" if token.rstrip else "" for token in tokens}
    if max(map(len, texts)) > _DEEPEST_TRIE:
        longest_first = sorted(texts, key=len, reverse=True)
        return re.compile("(" + "|".join(re.escape(text) + texts[text] for text in longest_first) + ")")
    # Alternatives in a row take time by their number; those of a trie do not.
    trie: dict[str, Any] = {}
    for text, behind in texts.items():
        node = trie
        for char in text:
            node = node.setdefault(char, {})
        node[_END] = behind
    return re.compile(f"({_written(trie)})")


def _written(node: dict[str, Any]) -> str:
    """The pattern of all that leads from a node to an end, longer ways first."""
    ways = [re.escape(char) + _written(below) for char, below in node.items() if char != _END]
    if _END in node:
        ways.append(node[_END])
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"
