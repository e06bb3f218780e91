"""The command line: launch | demo | fake-engine | handshake-port.

Heavy rooms are imported by the command that needs them, so that ``--help`` answers at once.
Exit codes: 0 done, 1 failed, 2 wrong usage or setting.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from smg_trio import __version__
from smg_trio.config import Settings, flag_of, options
from smg_trio.core.errors import ConfigError, SmgError

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = _make_parser()
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 2
    try:
        run: Callable[[argparse.Namespace], int] = parsed.run
        return run(parsed)
    except ConfigError as error:
        print(f"smg-trio: error: {error.message}", file=sys.stderr)
        return 2
    except SmgError as error:
        print(f"smg-trio: error: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smg-trio", description="A same-host LLM gateway for headless vLLM and TokenSpeed engines."
    )
    parser.add_argument("--version", action="version", version=f"smg-trio {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_launch(commands)
    _add_demo(commands)
    _add_fake_engine(commands)
    _add_handshake_port(commands)
    return parser


def _add_launch(commands: Any) -> None:
    launch = commands.add_parser("launch", help="run the gateway; engines dial in")
    add_settings(launch)
    launch.set_defaults(run=_launch)


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser("demo", help="gateway, fake engine and a tiny bundled model in one process")
    demo.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    demo.add_argument("--port", type=int, default=30000, help="port to listen on (default: %(default)s)")
    demo.add_argument("--prometheus-port", type=int, default=0, help="metrics port; 0: any (default: %(default)s)")
    demo.add_argument("--step-ms", type=float, default=20.0, help="time per token (default: %(default)s)")
    demo.set_defaults(run=_demo)


def _add_fake_engine(commands: Any) -> None:
    from smg_trio.testing import fake_engine_cli

    fake = commands.add_parser("fake-engine", help="a headless engine without a model, for tests and benchmarks")
    fake_engine_cli.add_arguments(fake)
    fake.set_defaults(run=_fake_engine)


def _add_handshake_port(commands: Any) -> None:
    port = commands.add_parser("handshake-port", help="print the port on which a worker URL's engine must dial in")
    port.add_argument("url", help="ipc://<path>")
    port.set_defaults(run=_handshake_port)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Give `parser` a flag for every field of `Settings`."""
    groups: dict[str, Any] = {}
    for option in options():
        metadata = option.metadata
        group = groups.get(metadata["group"]) or parser.add_argument_group(metadata["group"])
        groups[metadata["group"]] = group
        keywords: dict[str, Any] = {"dest": option.name, "default": option.default, "help": _help_of(option)}
        if metadata["choices"]:
            keywords["choices"] = metadata["choices"]
        elif metadata["metavar"]:
            keywords["metavar"] = metadata["metavar"]
        if isinstance(option.default, tuple):
            keywords["nargs"] = "+"
        elif isinstance(option.default, (int, float)):
            keywords["type"] = type(option.default)
        group.add_argument(flag_of(option.name), *metadata["flags"], **keywords)


def _help_of(option: dataclasses.Field[Any]) -> str:
    text: str = option.metadata["help"].replace("%", "%%")
    if option.default is None or option.default == ():
        return text
    shown = " ".join(option.default) if isinstance(option.default, tuple) else option.default
    return f"{text} (default: {shown})"


def settings_from(parsed: argparse.Namespace) -> Settings:
    """The settings of a parsed command line."""
    values: dict[str, Any] = {option.name: getattr(parsed, option.name) for option in options()}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    return Settings(**values)


def _set_up_logging(level: str) -> None:
    logging.basicConfig(
        level=_LEVELS[level], format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )


def _launch(parsed: argparse.Namespace) -> int:
    import functools

    import trio

    from smg_trio.config import check_settings
    from smg_trio.gateway.run import run_gateway

    settings = settings_from(parsed)
    check_settings(settings)
    _set_up_logging(settings.log_level)
    return trio.run(functools.partial(run_gateway, settings, watch_signals=True))


def _demo(parsed: argparse.Namespace) -> int:
    import trio

    from smg_trio.testing.demo import run_demo

    _set_up_logging("warn")
    return trio.run(run_demo, parsed.host, parsed.port, parsed.prometheus_port, parsed.step_ms / 1000)


def _fake_engine(parsed: argparse.Namespace) -> int:
    import trio

    from smg_trio.testing import fake_engine_cli

    _set_up_logging("info")
    trio.run(fake_engine_cli.main, parsed)
    return 0


def _handshake_port(parsed: argparse.Namespace) -> int:
    from smg_trio.wire.addresses import parse_worker_url

    print(parse_worker_url(parsed.url).handshake.rpartition(":")[2])
    return 0
