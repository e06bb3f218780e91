"""The plug-ins of one gateway: loaded at its start, for the flags that name them; parsers also for workers' labels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smg_trio.core.plugin_calls import PluginCalls
from smg_trio.parsers.plugin import ParserPlugin
from smg_trio.plugins.kinds import AUTH, HOOK, JWT, POLICY, REASONING_PARSER, TOOL_PARSER, Kind
from smg_trio.plugins.loading import Loaded, PluginLoader
from smg_trio.routing.policies import PolicyPlugin

if TYPE_CHECKING:
    from smg_trio.parsers.registry import ParserName
    from smg_trio.plugins.auth import Authenticate
    from smg_trio.settings.settings import Settings

logger = logging.getLogger("smg_trio.gateway")

DEFAULT_POLICY = "least_load"


@dataclass(frozen=True, slots=True)
class AuthPlugin:
    """A loaded ``--auth``."""

    name: str
    authenticate: Authenticate
    calls: PluginCalls
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HookPlugin:
    """A loaded ``--hook``; a method that it does not have is None."""

    name: str
    on_request: Callable[..., Any] | None
    on_answer: Callable[..., Any] | None
    calls: PluginCalls
    options: Mapping[str, str]


class PluginSet:
    """What the settings name. Raises ConfigError for whatever is named and cannot be used.

    Attributes:
        policy: None where it is a built-in one.
        auth: None where there is none, or it is a built-in one.
        hooks: in the order of their flags.
        calls: of all that are loaded, for metrics.
    """

    def __init__(self, settings: Settings) -> None:
        self.calls: list[PluginCalls] = []
        self._loader = PluginLoader(settings.plugin_file, settings.plugin_option)
        self._parsers: dict[tuple[Kind, str], ParserName] = {}
        for kind, named in ((TOOL_PARSER, settings.tool_call_parser), (REASONING_PARSER, settings.reasoning_parser)):
            if named is not None:
                self.parser(kind, named)
        self.policy = self._policy(settings.policy)
        self.auth = None if settings.auth in (None, JWT) else self._auth(settings.auth)
        self.hooks = [self._hook(name) for name in settings.hook]
        unused = self._loader.unused_options([calls.name for calls in self.calls])
        if unused:
            logger.warning("--plugin-option is for %s, which no flag names", ", ".join(unused))

    def parser(self, kind: Kind, named: str | None) -> ParserName | None:
        """The parser that a flag or label names: a plug-in, or the name of a built-in one.

        Loads a plug-in when it is first named, which reads files: in a thread, once the gateway serves.

        Raises ConfigError.
        """
        if named is None:
            return None
        found = self._parsers.get((kind, named))
        if found is None:
            loaded = self._loader.load(kind, named)
            found = named if loaded is None else self._parser_of(loaded)
            self._parsers[kind, named] = found
        return found

    def loaded_parser(self, kind: Kind, named: str) -> ParserName:
        """The same for a request of a client, which cannot have anything loaded."""
        return self._parsers.get((kind, named), named)

    def knows_parser(self, kind: Kind, named: str) -> bool:
        """Whether `parser` would find one, built in or installed; reads the metadata of distributions."""
        if named in kind.built_in() or (kind, named) in self._parsers:
            return True
        return named.rpartition(":")[2] in self._loader.names(kind)

    def _parser_of(self, loaded: Loaded) -> ParserPlugin:
        calls, options = self._begin(loaded)
        return ParserPlugin(loaded.name, loaded.value, calls, options, finds_calls=loaded.kind is TOOL_PARSER)

    def _policy(self, named: str) -> PolicyPlugin | None:
        loaded = None if named == DEFAULT_POLICY else self._loader.load(POLICY, named)
        return None if loaded is None else PolicyPlugin(loaded.name, loaded.value, *self._begin(loaded))

    def _auth(self, named: str) -> AuthPlugin | None:
        loaded = self._loader.load(AUTH, named)
        return None if loaded is None else AuthPlugin(loaded.name, loaded.value, *self._begin(loaded))

    def _hook(self, named: str) -> HookPlugin:
        loaded = self._loader.load(HOOK, named)
        assert loaded is not None, "no hook is built in"
        hook = loaded.value
        calls, options = self._begin(loaded)
        return HookPlugin(
            loaded.name, getattr(hook, "on_request", None), getattr(hook, "on_answer", None), calls, options
        )

    def _begin(self, loaded: Loaded) -> tuple[PluginCalls, Mapping[str, str]]:
        calls = PluginCalls(loaded.kind.word, loaded.name, loaded.origin)
        self.calls.append(calls)
        logger.info("plug-in %s is loaded", calls)
        return calls, self._loader.options(loaded.name)
