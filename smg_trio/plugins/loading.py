"""From a name on the command line to a plug-in that keeps its contract, or to a ConfigError that says why not.

Nothing is imported but what is named, and nothing that is named is skipped.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
import stat
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, Final

from smg_trio.core.errors import ConfigError
from smg_trio.parsers.plugin import ParserContext
from smg_trio.plugins import API_VERSION
from smg_trio.plugins.installed import Installed, InstalledPlugins, normalized
from smg_trio.plugins.kinds import AUTH, HOOK, KINDS, POLICY, REASONING_PARSER, TOOL_PARSER, Kind
from smg_trio.routing.policies.plugin import PolicyContext

logger = logging.getLogger("smg_trio.plugins")

VERSION_ATTRIBUTE: Final = "smg_trio_api"
_MEMBERS: Final[Mapping[Kind, tuple[str, ...]]] = {
    TOOL_PARSER: ("needs_special_tokens", "feed", "finish"),
    REASONING_PARSER: ("needs_special_tokens", "feed", "finish"),
    POLICY: ("choose", "forget", "cache_lost", "statistics"),
}
_HOOK_METHODS: Final = ("on_request", "on_answer")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plug-in that was imported and looked at.

    Attributes:
        value: what its entry point is; a hook's class has been called.
        origin: distribution and version, or the file.
        api: the version of the API it is written for.
    """

    kind: Kind
    name: str
    value: Any
    origin: str
    api: int


@dataclass(frozen=True, slots=True)
class PluginFile:
    """A file of ``--plugin-file`` that was run: its tables, and the API version that it is written for."""

    file: str
    tables: Mapping[str, Mapping[str, Any]]
    api: object


class ContractBroken(Exception):
    """A plug-in lacks something that its kind must have; the message goes on from its name."""


class PluginLoader:
    """Loads what flags name. The files of ``--plugin-file`` are run when it is made: raises ConfigError.

    Attributes:
        installed: what there is.
    """

    def __init__(self, files: Sequence[str] = (), options: Sequence[str] = ()) -> None:
        self.installed = InstalledPlugins()
        self._options = parse_options(options)
        self._files = [run_plugin_file(file) for file in files]

    def options(self, name: str) -> Mapping[str, str]:
        """What ``--plugin-option`` says for a plug-in, by key."""
        return self._options.get(name, {})

    def unused_options(self, names: Sequence[str]) -> list[str]:
        """Plug-ins that options are given for although they are not among `names`."""
        return sorted(self._options.keys() - set(names))

    def names(self, kind: Kind) -> list[str]:
        """Every plug-in of a kind that `load` would find."""
        in_files = [name for file in self._files for name in file.tables[kind.table]]
        return [*in_files, *(found.name for found in self.installed.of(kind))]

    def load(self, kind: Kind, named: str) -> Loaded | None:
        """The plug-in that `named` means, ``NAME`` or ``DISTRIBUTION:NAME``; None if it is built in.

        Raises ConfigError if it is neither, or cannot be loaded.
        """
        distribution, _, name = named.rpartition(":")
        found = self.installed.of(kind, name)
        if distribution:
            found = [one for one in found if normalized(one.distribution) == normalized(distribution)]
            return self._load_installed(kind, named, found)
        if name.strip().lower().replace("-", "_") in kind.built_in():
            for one in found:
                logger.warning(
                    "%s %s is the built-in %s; name the plug-in of that name as %s:%s",
                    kind.flag, name, kind.word, one.distribution, name,
                )  # fmt: skip
            return None
        for file in self._files:
            if name in file.tables[kind.table]:
                return _checked(kind, name, file.tables[kind.table][name], file.file, file.api)
        return self._load_installed(kind, named, found)

    def _load_installed(self, kind: Kind, named: str, found: list[Installed]) -> Loaded:
        if not found:
            known = sorted({*kind.built_in(), *self.names(kind)})
            near = get_close_matches(named, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            remedy = f"Or install a package that provides entry point {kind.group}:{named.rpartition(':')[2]}."
            raise ConfigError(
                kind.flag, f"{named!r} is not a known {kind.word}.{hint} Known: {', '.join(known) or 'none'}.", remedy
            )
        if len(found) > 1:
            who = " and ".join(one.origin for one in found)
            remedy = f"Write {' or '.join(f'{one.distribution}:{one.name}' for one in found)}."
            raise ConfigError(kind.flag, f"both {who} provide a {kind.word} {named!r}.", remedy)
        (one,) = found
        try:
            value = one.entry.load()
        except (Exception, SystemExit) as error:
            raise _cannot(kind, one.name, one.origin, error) from error
        module = sys.modules.get(one.entry.module)
        return _checked(kind, one.name, value, one.origin, getattr(module, VERSION_ATTRIBUTE, None))


def _cannot(kind: Kind, name: str, origin: str, error: BaseException) -> ConfigError:
    said = traceback.format_exception_only(error)[-1].strip()
    return ConfigError(kind.flag, f"the plug-in {name!r} of {origin} cannot be loaded: {said}")


def _checked(kind: Kind, name: str, value: Any, origin: str, api: object) -> Loaded:
    """The plug-in, if its version and its members are what they must be. Raises ConfigError."""
    api = getattr(value, VERSION_ATTRIBUTE, None) if api is None else api
    what = f"the plug-in {name!r} of {origin}"
    if type(api) is not int:
        raise ConfigError(
            kind.flag, f"{what} does not say which plug-in API it is written for; this version of smg-trio has "
            f"{API_VERSION}.", f"Set {VERSION_ATTRIBUTE} = {API_VERSION} in its module.",
        )  # fmt: skip
    if not 1 <= api <= API_VERSION:
        raise ConfigError(
            kind.flag, f"{what} is written for plug-in API {api}; this version of smg-trio has {API_VERSION}.",
            "Install a newer smg-trio, or an older version of the plug-in.",
        )  # fmt: skip
    try:
        return Loaded(kind, name, _kept(kind, value), origin, api)
    except ContractBroken as error:
        raise ConfigError(kind.flag, f"{what} {error}.", "docs/howto/plugins.md has the contract.") from None
    except (Exception, SystemExit) as error:
        raise _cannot(kind, name, origin, error) from error


def _kept(kind: Kind, value: Any) -> Any:
    """What is called of a plug-in. Raises ContractBroken, or what the plug-in's own code raises."""
    if kind is HOOK:
        return _hook(value)
    if not callable(value):
        raise ContractBroken(f"is {_article(value)}, which cannot be called")
    if kind is AUTH:
        if not (inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(getattr(value, "__call__", None))):  # noqa: B004
            raise ContractBroken("is not an async function")
        return value
    made = value(PolicyContext(random=Random(0)) if kind is POLICY else ParserContext())
    for member in _MEMBERS[kind]:
        if not hasattr(made, member):
            raise ContractBroken(f"makes {_article(made)} without {member}")
        if member != "needs_special_tokens" and not callable(getattr(made, member)):
            raise ContractBroken(f"makes {_article(made)} whose {member} cannot be called")
    return value


def _hook(value: Any) -> Any:
    if isinstance(value, type):
        value = value()
    methods = [method for method in _HOOK_METHODS if hasattr(value, method)]
    if not methods:
        raise ContractBroken(f"is {_article(value)} with neither on_request nor on_answer")
    for method in methods:
        if not callable(getattr(value, method)):
            raise ContractBroken(f"is {_article(value)} whose {method} cannot be called")
    return value


def _article(value: object) -> str:
    return f"an object of class {type(value).__name__}"


def parse_options(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """``--plugin-option NAME.key=value …`` by name and key. Raises ConfigError."""
    options: dict[str, dict[str, str]] = {}
    for text in texts:
        target, separator, value = text.partition("=")
        name, dot, key = target.rpartition(".")
        if not (separator and dot and name.strip() and key.strip()):
            raise ConfigError(
                "--plugin-option", f"{text!r} is not of the form NAME.key=value.", "For example first.prefer=w0."
            )
        options.setdefault(name.strip(), {})[key.strip()] = value
    return options


def run_plugin_file(name: str) -> PluginFile:
    """Run a file of plug-ins. Raises ConfigError.

    It is refused if every user of the host can write to it or to its folder: what is in it runs as this process.
    """
    path = Path(name)
    try:
        path = path.resolve(strict=True)
        for checked in (path, path.parent):
            if os.stat(checked).st_mode & stat.S_IWOTH:
                problem = f"every user of this host can write to {checked}."
                raise ConfigError("--plugin-file", problem, f"Run chmod o-w {checked}")
        module = _run(path)
    except OSError as error:
        raise ConfigError("--plugin-file", f"cannot read {name}: {error.strerror}.", "Name a Python file.") from None
    tables: dict[str, Mapping[str, Any]] = {}
    for kind in KINDS:
        table = getattr(module, kind.table, {})
        if not isinstance(table, Mapping) or not all(isinstance(key, str) for key in table):
            raise ConfigError("--plugin-file", f"{kind.table} of {name} is not a table.", 'Write {"name": factory}.')
        tables[kind.table] = table
    if not any(tables.values()):
        known = ", ".join(tables)
        raise ConfigError("--plugin-file", f"{name} has no table of plug-ins.", f"Define one of {known}.")
    return PluginFile(name, tables, getattr(module, VERSION_ATTRIBUTE, None))


def _run(path: Path) -> ModuleType:
    # Its own name among the modules, so that dataclasses and pickling work in it.
    name = f"smg_trio_plugin_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=SourceFileLoader(name, str(path)))
    assert spec is not None, "a loader is given"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        assert spec.loader is not None, "a loader is given"
        spec.loader.exec_module(module)
    except OSError:
        raise
    except (Exception, SystemExit) as error:
        said = traceback.format_exception_only(error)[-1].strip()
        raise ConfigError("--plugin-file", f"{path} cannot be run: {said}", "Correct it.") from error
    return module
