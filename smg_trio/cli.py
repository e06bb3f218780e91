"""The command line: launch | serve | demo | fake-engine | handshake-port.

Heavy rooms are imported by the command that needs them, so that ``--help`` answers at once.
Exit codes: 0 done, 1 failed, 2 wrong usage or setting.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from smg_trio import __version__
from smg_trio.config import Settings, argument_keywords, flags_of, options
from smg_trio.core.errors import ConfigError, SmgError

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = _make_parser()
    # The words after `serve` are for three readers, one of whom this parser does not know.
    parsed = parser.parse_args(words[:1] if words[:1] == ["serve"] else words)
    parsed.words = words[1:]
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
    serve = commands.add_parser("serve", help="start engines and the gateway in front of them", add_help=False)
    serve.set_defaults(run=_serve)
    _add_demo(commands)
    _add_fake_engine(commands)
    _add_handshake_port(commands)
    _add_chat(commands)
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


def _add_chat(commands: Any) -> None:
    chat = commands.add_parser("chat", help="talk to a model behind a running gateway")
    chat.add_argument("--url", default="http://127.0.0.1:30000", help="the gateway (default: %(default)s)")
    chat.add_argument("--model", default="", help="which model; not needed where there is only one")
    chat.add_argument("--api-key", default=None, help="key to send")
    chat.add_argument("--instructions", default=None, help="system message of the conversation")
    chat.add_argument("--max-output-tokens", type=int, default=None, help="limit of each answer")
    chat.set_defaults(run=_chat)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Give `parser` a flag for every field of `Settings`."""
    groups: dict[str, Any] = {}
    for option in options():
        name = option.metadata["group"]
        group = groups.get(name) or parser.add_argument_group(name)
        groups[name] = group
        group.add_argument(*flags_of(option), **argument_keywords(option))


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
    _calm_garbage_collector()
    return trio.run(functools.partial(run_gateway, settings, watch_signals=True))


def _serve(parsed: argparse.Namespace) -> int:
    import os

    import trio

    from smg_trio.gateway.run import GatewayShutdown, RunningGateway, run_gateway
    from smg_trio.launcher.engines import WatchedWorker
    from smg_trio.launcher.serve import plan_serve, run_serve
    from smg_trio.launcher.serve_options import parse_serve

    plan = plan_serve(parse_serve(parsed.words, os.environ), os.environ)
    _set_up_logging(plan.settings.log_level)
    shutdown = GatewayShutdown()

    class Started:
        """Translates what the gateway reports for those who only know workers."""

        def __init__(self, tell: Callable[[Sequence[WatchedWorker]], None]) -> None:
            self._tell = tell

        def started(self, value: RunningGateway | None = None) -> None:
            assert value is not None, "a gateway reports itself"
            self._tell(value.gateway.registry.workers())

    async def gateway(settings: Settings, started: Callable[[Sequence[WatchedWorker]], None]) -> int:
        return await run_gateway(settings, shutdown=shutdown, task_status=Started(started))

    return trio.run(run_serve, plan, gateway, shutdown.ask)


def _calm_garbage_collector() -> None:
    """Collect cycles rarely. What requests leave behind is freed by reference counts; with the default thresholds the
    collector walks the whole heap (tens of thousands of objects of imported code) several times a second under load.
    """
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


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


def _chat(parsed: argparse.Namespace) -> int:
    import trio

    from smg_trio.terminal.chat import ChatOptions, read_terminal_line, run_chat

    options = ChatOptions(
        url=parsed.url,
        model=parsed.model,
        api_key=parsed.api_key,
        instructions=parsed.instructions,
        max_output_tokens=parsed.max_output_tokens,
    )
    return trio.run(run_chat, options, read_terminal_line)
