"""One plug-in of each kind. Everything that they need of smg-trio is in `smg_trio.plugins`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import trio

from smg_trio.plugins import (
    Changes,
    ContentDelta,
    Identity,
    Policy,
    ReasoningDelta,
    Refuse,
    ToolCallArguments,
    ToolCallStart,
)  # fmt: skip

smg_trio_api = 1


class ShoutParser:
    """A line like ``GET_WEATHER! {"city": "Rome"}`` is a call of `get_weather`; all else is content."""

    needs_special_tokens = False
    _CALL = re.compile(r"([A-Z_]+)! (\{.*\})")

    def __init__(self, context):
        self._tools = context.tools
        self._line = ""
        self._calls = 0

    def feed(self, text):
        *lines, self._line = (self._line + text).split("\n")
        return [event for line in lines for event in self._read(line + "\n")]

    def finish(self):
        line, self._line = self._line, ""
        return self._read(line) if line else []

    def _read(self, line):
        call = self._CALL.fullmatch(line.strip())
        if call is None or call[1].lower() not in self._tools:
            return [ContentDelta(line)]
        index, self._calls = self._calls, self._calls + 1
        return [ToolCallStart(index, call[1].lower()), ToolCallArguments(index, call[2])]


class AsideParser:
    """What an answer says in ``((`` and ``))`` at its beginning is reasoning."""

    needs_special_tokens = False

    def __init__(self, context):
        self._held = ""
        self._kind = None  # of the text that comes, once that is known

    def feed(self, text):
        self._held += text
        if self._kind is None:
            if "((".startswith(self._held):
                return []
            opened = self._held.startswith("((")
            self._kind = ReasoningDelta if opened else ContentDelta
            self._held = self._held[2:] if opened else self._held
        if self._kind is ReasoningDelta:
            thought, closed, rest = self._held.partition("))")
            if closed:
                self._kind = ContentDelta
                self._held = ""
                return [*self._shown(ReasoningDelta, thought), *self._shown(ContentDelta, rest)]
            thought = self._held.removesuffix(")")
            self._held = self._held[len(thought) :]
            return self._shown(ReasoningDelta, thought)
        shown, self._held = self._held, ""
        return self._shown(ContentDelta, shown)

    def finish(self):
        kind, rest = self._kind or ContentDelta, self._held
        self._held, self._kind = "", None
        return self._shown(kind, rest)

    def _shown(self, kind, text):
        return [kind(text)] if text else []


class First(Policy):
    """The preferred worker, else the first one, while it has less than 8 requests; then the one with the fewest."""

    name = "first"

    def __init__(self, context):
        self._prefer = context.options.get("prefer", "")

    def choose(self, candidates, context, now):
        wanted = next((one for one in candidates if one.spec.url == self._prefer), candidates[0])
        return wanted if wanted.load < 8 else min(candidates, key=lambda one: one.load)


async def users(credentials):
    """Tokens of the file that the option `file` names: lines of a token and a name, ``*`` before those of operators."""
    text = await trio.Path(credentials.options.get("file", "/dev/null")).read_text()
    names = dict(line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    name = names.get(credentials.token)
    if name is None:
        return None
    scopes = {"models", "admin"} if name.startswith("*") else {"models"}
    return Identity(name=name.lstrip("*").strip(), scopes=frozenset(scopes), ttl_s=10)


class Sessions:
    """Keeps the requests of each user on one worker; the option `file` names where their tokens are counted."""

    def __init__(self):
        self.tokens = Counter()

    def on_request(self, view):
        user = view.body.get("user") or view.identity
        if user == "mallory":
            return Refuse(status=403, code="not_welcome", message="Please talk to the operator.")
        return Changes(routing_key=user) if user else None

    def on_answer(self, view):
        self.tokens[view.identity] += view.prompt_tokens + view.completion_tokens
        if "file" in view.options:
            Path(view.options["file"]).write_text("".join(f"{who} {count}\n" for who, count in self.tokens.items()))
