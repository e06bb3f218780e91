"""``smg-trio plugins``: what is installed, and whether it loads; ``plugins check``: whether it keeps its contract."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from smg_trio.core.errors import ConfigError

_KINDS = ("tool_parser", "reasoning_parser", "policy", "auth", "hook")


def add_plugins(commands: Any) -> None:
    """Give the command line its command."""
    plugins = commands.add_parser(
        "plugins",
        help="list installed plug-ins, or check one",
        description="Without an action: every installed plug-in, and whether it loads. Each is imported for that.",
    )
    plugins.add_argument("--json", action="store_true", help="print JSON instead of a table")
    plugins.set_defaults(run=run_list)
    actions = plugins.add_subparsers(title="actions", dest="action", metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="hold a plug-in to the contract of its kind",
        usage="smg-trio plugins check KIND NAME [options]",
        description="Every check of its kind, with what was wrong. Exit code 0 if all passed, 1 if not.",
    )
    check.add_argument("kind", metavar="KIND", choices=_KINDS, help="what it is:")
    check.add_argument("name", metavar="NAME", help="as its flag would name it; DISTRIBUTION:NAME works too")
    check.add_argument(
        "--sample",
        metavar="FILE",
        nargs="+",
        action="extend",
        default=None,
        help="texts that a parser's model wrote",
    )
    check.add_argument("--plugin-option", metavar="NAME.KEY=VALUE", nargs="+", action="extend", default=None,
                       help="as for launch")  # fmt: skip
    check.add_argument("--plugin-file", metavar="FILE", nargs="+", action="extend", default=None, help="as for launch")
    check.set_defaults(run=run_check)


def run_list(parsed: argparse.Namespace) -> int:
    """Print what is installed. 0, also if something of it does not load."""
    from smg_trio.plugins import API_VERSION
    from smg_trio.plugins.loading import PluginLoader

    loader, rows = PluginLoader(), []
    for found in loader.installed.all():
        api, problem = None, ""
        try:
            loaded = loader.load(found.kind, f"{found.distribution}:{found.name}")
            api = None if loaded is None else loaded.api
        except ConfigError as error:
            problem = f"{error.problem} {error.remedy}".rstrip()
        rows.append(
            {
                "group": found.kind.group,
                "name": found.name,
                "distribution": found.distribution,
                "version": found.metadata.version,
                "api": api,
                "loads": not problem,
                "problem": problem,
            }
        )
    if parsed.json:
        print(json.dumps({"api_version": API_VERSION, "plugins": rows}, indent=2))
    elif rows:
        _print_table(rows)
    else:
        print("No plug-ins are installed.")
    return 0


def _print_table(rows: list[dict[str, Any]]) -> None:
    head = ("GROUP", "NAME", "DISTRIBUTION", "VERSION", "API", "LOADS")
    table = [head]
    for row in rows:
        loads = "yes" if row["loads"] else f"no: {row['problem']}"
        table.append((row["group"], row["name"], row["distribution"], row["version"], str(row["api"] or "-"), loads))
    widths = [max(len(line[column]) for line in table) for column in range(len(head) - 1)]
    for line in table:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        print("  ".join([*cells, line[-1]]))


def run_check(parsed: argparse.Namespace) -> int:
    """Print each check and its outcome. 1 if one did not pass. Raises ConfigError if the plug-in does not load."""
    from smg_trio.plugins.loading import PluginLoader
    from smg_trio.testing.plugin_checks import KIND_NAMES, check_plugin

    samples = [_read(file) for file in parsed.sample or ()]
    loader = PluginLoader(parsed.plugin_file or (), parsed.plugin_option or ())
    loaded = loader.load(KIND_NAMES[parsed.kind], parsed.name)
    if loaded is None:
        raise ConfigError("NAME", f"{parsed.name!r} is built in.", "Its checks are among the tests of smg-trio.")
    print(f"{loaded.kind.word} {loaded.name} of {loaded.origin}, plug-in API {loaded.api}")
    failed = 0
    for outcome in check_plugin(loaded, loader.options(loaded.name), samples):
        failed += bool(outcome.problem)
        print(f"  {'FAILED' if outcome.problem else 'ok':6}  {outcome.what}", flush=True)
        if outcome.problem:
            print(f"          {outcome.problem}")
    print(f"{failed} of its checks failed." if failed else "All checks passed.")
    return 1 if failed else 0


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("--sample", f"cannot read {file}: {error.strerror}.", "Name a text file.") from None
    except UnicodeDecodeError:
        raise ConfigError("--sample", f"{file} is no UTF-8 text.", "Name a text file.") from None
