"""The command line: launch, serve, doctor, config, plugins, demo, fake-engine, handshake-port, chat, top, completion.

Heavy rooms are imported by the command that needs them, so that ``--help`` answers immediately.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smg_trio import __version__
from smg_trio.cli.plugins import add_plugins
from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import ConfigError, InvalidRequest, SmgError
from smg_trio.settings.flags import argument_keywords, flags_of
from smg_trio.settings.help_text import Parser, exit_codes
from smg_trio.settings.settings import Settings, options
from smg_trio.settings.smg_flags import add_smg_flags, given_smg_flags, notes_on
from smg_trio.settings.sources import (
    CONFIG_VARIABLE,
    Layer,
    Reading,
    defaults,
    layer_of_flags,
    merged,
    read_environment,
    read_toml,
    settings_of,
    with_origin,
)
from smg_trio.settings.text import settings_text
from smg_trio.worker.address_checks import check_worker_addresses

if TYPE_CHECKING:
    from smg_trio.gateway.plugin_set import PluginSet
    from smg_trio.launcher.engines import WatchedWorker

logger = logging.getLogger("smg_trio")

_SOURCES = (
    "Every option may also stand in a TOML file (--config FILE, or the variable SMG_TRIO_CONFIG) as worker_urls = "
    '["ipc:///run/w0"], or in the environment as SMG_TRIO_WORKER_URLS, several values with commas. The command line '
    "wins over the environment, that over the file. `smg-trio config show` tells where each value comes from."
)
_ENGINES_DIAL_IN = (
    "Bind the sockets of each --worker-urls and serve HTTP; engines dial in whenever they start. The port that an "
    "engine needs is what `smg-trio handshake-port ipc://<path>` prints."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = make_parser()
    # The words after `serve` are for three readers, one of whom this parser does not know.
    parsed = parser.parse_args(words[:1] if words[:1] == ["serve"] else words)
    parsed.words = words[1:]
    if parsed.command is None:
        parser.print_help()
        return 2
    try:
        run: Callable[[argparse.Namespace], int] = parsed.run
        return run(parsed)
    except (SmgError, KeyboardInterrupt, BaseExceptionGroup) as error:
        return _exit_code(error)


def _exit_code(error: BaseException) -> int:
    """What an exception ends the process with, after a line about it. Raises it again if it was not raised on purpose.

    Nurseries wrap what is raised within them in groups; what counts then is the first of the faults.
    """
    leaves = list(_leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return 130
    faults = [leaf for leaf in leaves if isinstance(leaf, SmgError)]
    if len(faults) < len(leaves):
        raise error
    print(f"smg-trio: error: {faults[0].message}", file=sys.stderr)
    return 2 if isinstance(faults[0], ConfigError) else 1


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def make_parser(serve: argparse.ArgumentParser | None = None) -> argparse.ArgumentParser:
    """The whole command line.

    `serve` keeps its words to itself, unless its own parser (`launcher.serve_options`) is given, for those who want to
    know all flags.
    """
    parser = Parser(
        prog="smg-trio",
        description="A same-host LLM gateway for headless vLLM and TokenSpeed engines.",
        epilog="`smg-trio COMMAND --help` shows the options of one command.\n\n" + exit_codes(),
    )
    parser.add_argument("--version", action="version", version=f"smg-trio {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    _add_launch(commands)
    _add_serve(commands, serve)
    _add_config(commands)
    _add_doctor(commands)
    _add_demo(commands)
    _add_fake_engine(commands)
    _add_handshake_port(commands)
    _add_chat(commands)
    _add_completion(commands)
    _add_top(commands)
    add_plugins(commands)
    return parser


def _add_launch(commands: Any) -> None:
    launch = commands.add_parser(
        "launch",
        help="run the gateway; engines dial in",
        usage="smg-trio launch [options]",
        description=_ENGINES_DIAL_IN,
        epilog=_SOURCES + "\n\n" + exit_codes(),
    )
    add_settings(launch)
    launch.set_defaults(run=_launch)


def _add_serve(commands: Any, parser: argparse.ArgumentParser | None) -> None:
    own = commands.add_parser("serve", help="start engines and the gateway in front of them", add_help=False)
    own.set_defaults(run=_serve)
    if parser is not None:
        commands.choices["serve"] = parser


def _add_config(commands: Any) -> None:
    config = commands.add_parser("config", help="validate a settings file, or show the effective settings")
    actions = config.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="check a settings file",
        usage="smg-trio config check FILE [options]",
        description="Whether `launch --config FILE` with these options would start: every problem is named.",
    )
    check.add_argument("file", metavar="FILE", help="TOML file")
    add_settings(check, with_config=False)
    check.set_defaults(run=_config_check)
    show = actions.add_parser(
        "show",
        help="print every setting, its value and where it comes from, as TOML",
        usage="smg-trio config show [options]",
        description="What `launch` with these options would run with. Secrets are not shown.",
    )
    add_settings(show)
    show.set_defaults(run=_config_show)


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check whether this host is ready for a launch, and say what to do",
        usage="smg-trio doctor [options]",
        description="Takes the options of `launch` and checks that launch: settings, model files, socket directories, "
        "ports, file limits, versions, engines. Changes nothing, asks no network, and works beside a running gateway.",
        epilog="The exit code is 0 if there is no problem, 1 if there is one; warnings do not count.",
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.add_argument("--engine-python", metavar="PYTHON", help="interpreter whose engine is to be looked at too")
    add_settings(doctor)
    doctor.set_defaults(run=_doctor)


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser("demo", help="gateway, fake engine and a tiny bundled model in one process")
    demo.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    demo.add_argument("--port", type=int, default=30000, help="port to listen on (default: %(default)s)")
    demo.add_argument("--prometheus-port", type=int, default=0, help="metrics port; 0: any (default: %(default)s)")
    demo.add_argument("--step-ms", type=float, default=20.0, help="time per token (default: %(default)s)")
    demo.set_defaults(run=_demo)


def _add_fake_engine(commands: Any) -> None:
    from smg_trio.testing import fake_engine_cli

    fake = commands.add_parser(
        "fake-engine",
        help="a headless engine without a model, for tests and benchmarks",
        usage="smg-trio fake-engine --handshake tcp://HOST:PORT [options]",
    )
    fake_engine_cli.add_arguments(fake)
    fake.set_defaults(run=_fake_engine)


def _add_handshake_port(commands: Any) -> None:
    port = commands.add_parser("handshake-port", help="print the port on which a worker URL's engine must dial in")
    port.add_argument("url", help="ipc://<path> or tcp://<host>:<port>")
    port.add_argument("--zmq-advertise-host", metavar="HOST", help="tcp: as for launch")
    port.add_argument(
        "--engine-command", action="store_true", help="tcp: print commands that start engines on other hosts instead"
    )
    port.set_defaults(run=_handshake_port)


def _add_chat(commands: Any) -> None:
    chat = commands.add_parser("chat", help="talk to a model behind a running gateway")
    chat.add_argument("--url", default="http://127.0.0.1:30000", help="the gateway (default: %(default)s)")
    chat.add_argument("--model", default="", help="which model; not needed where there is only one")
    chat.add_argument("--api-key", default=None, help="key to send")
    chat.add_argument("--instructions", default=None, help="system message of the conversation")
    chat.add_argument("--max-output-tokens", type=int, default=None, help="limit of each answer")
    chat.set_defaults(run=_chat)


def _add_completion(commands: Any) -> None:
    completion = commands.add_parser(
        "completion",
        help="print a script that completes commands and flags in a shell",
        description='For this session: eval "$(smg-trio completion bash)". To keep it, write it where the shell looks '
        "for completions; docs/cli.md says where that is.",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")
    completion.set_defaults(run=_completion)


def _add_top(commands: Any) -> None:
    top = commands.add_parser(
        "top",
        help="watch a running gateway: workers, load, latency, requests, errors",
        epilog="With --once or --json the exit code is 0 if the gateway is ready, 1 if it cannot be reached or refuses "
        "the key, 3 if it answers but is not ready.",
    )
    top.add_argument("--url", default="http://127.0.0.1:30000", help="the gateway (default: %(default)s)")
    top.add_argument("--api-key", default=None, help="key to send; else the variable SMG_TRIO_API_KEY")
    top.add_argument("--once", action="store_true", help="print one snapshot as text and end")
    top.add_argument("--json", action="store_true", help="print one snapshot as JSON and end")
    top.set_defaults(run=_top)


def add_settings(parser: argparse.ArgumentParser, *, with_config: bool = True) -> None:
    """Give `parser` a flag for every field of `Settings`, and one for the file they may stand in."""
    if with_config:
        parser.add_argument("--config", metavar="FILE", default=None, help="TOML file with settings")
    groups: dict[str, Any] = {}
    for option in options():
        name = option.metadata["group"]
        group = groups.get(name) or parser.add_argument_group(name)
        groups[name] = group
        group.add_argument(*flags_of(option), **argument_keywords(option))
    add_smg_flags(parser)


def _read_layers(config: str | None) -> tuple[Layer, list[str]]:
    """What file and environment say, and warnings. `config` is the file that the command line names."""
    environment, warnings = read_environment(os.environ)
    config = config or os.environ.get(CONFIG_VARIABLE)
    file: Layer = {}
    if config:
        file = _read_file(config).checked()
    return merged(file, environment.checked()), warnings


def _read_file(name: str) -> Reading:
    try:
        text = Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("--config", f"cannot read {name}: {error.strerror}.", "Name a TOML file.") from None
    except UnicodeDecodeError:
        raise ConfigError("--config", f"{name} is not UTF-8 text.", "Name a TOML file.") from None
    return read_toml(text, name)


def _checked(layers: Layer) -> Settings:
    """The settings `launch` runs with. Raises ConfigError, which names a value's origin where that is no flag."""
    settings = settings_of(layers)
    try:
        check_worker_addresses(settings)
    except ConfigError as error:
        raise with_origin(error, layers) from None
    return settings


def _set_up_logging(settings: Settings, warnings: Sequence[str]) -> None:
    from smg_trio.gateway.observability.logs import set_up_logging

    set_up_logging(settings.log_level, as_json=settings.log_json, directory=settings.log_dir)
    for warning in warnings:
        logger.warning("%s", warning)


def _launch(parsed: argparse.Namespace) -> int:
    import functools

    import trio

    from smg_trio.gateway.garbage_collector import calm_garbage_collector
    from smg_trio.processes.run import run_processes

    layers, warnings = _read_layers(parsed.config)
    effective = merged(defaults(), layers, layer_of_flags(vars(parsed)))
    settings = _checked(effective)
    _set_up_logging(settings, [*warnings, *notes_on(given_smg_flags(parsed))])
    plugins = _load_plugins(settings, effective)
    calm_garbage_collector()
    return trio.run(functools.partial(run_processes, settings, plugins=plugins, watch_signals=True))


def _load_plugins(settings: Settings, layers: Layer) -> PluginSet:
    """What the settings name. Raises ConfigError, which names a value's origin where that is no flag."""
    from smg_trio.gateway.plugin_set import PluginSet

    try:
        return PluginSet(settings)
    except ConfigError as error:
        raise with_origin(error, layers) from error


def _all_problems(
    file: Reading, environment: Reading, flags: Layer
) -> tuple[tuple[Settings, PluginSet] | None, list[ConfigError]]:
    """The settings of these sources and the plug-ins they name, or everything that is wrong with them."""
    problems = [*file.problems, *environment.problems]
    if not problems:
        try:
            layers = merged(defaults(), file.layer, environment.layer, flags)
            settings = _checked(layers)
            return (settings, _load_plugins(settings, layers)), []
        except ConfigError as error:
            problems.append(error)
    return None, problems


def _config_check(parsed: argparse.Namespace) -> int:
    file = _read_file(parsed.file)
    environment, warnings = read_environment(os.environ)
    _, problems = _all_problems(file, environment, layer_of_flags(vars(parsed)))
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for problem in problems:
        print(f"{parsed.file}: {problem.message}", file=sys.stderr)
    if problems:
        return 2
    print(f"{parsed.file}: {len(file.layer)} settings, valid")
    return 0


def _config_show(parsed: argparse.Namespace) -> int:
    layers, warnings = _read_layers(parsed.config)
    effective = merged(defaults(), layers, layer_of_flags(vars(parsed)))
    _checked(effective)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(settings_text(effective), end="")
    return 0


def _doctor(parsed: argparse.Namespace) -> int:
    import functools

    import trio

    from smg_trio.doctor.run import Launch, run_doctor

    environment, warnings = read_environment(os.environ)
    config = parsed.config or os.environ.get(CONFIG_VARIABLE)
    try:
        file = _read_file(config) if config else Reading({})
        found, problems = _all_problems(file, environment, layer_of_flags(vars(parsed)))
    except ConfigError as error:
        found, problems = None, [error]
    settings, plugins = found or (None, None)
    launch = Launch(
        settings=settings,
        plugins=plugins,
        file=config,
        problems=problems,
        warnings=[*warnings, *notes_on(given_smg_flags(parsed))],
        engine_python=parsed.engine_python,
    )
    return trio.run(functools.partial(run_doctor, launch, as_json_text=parsed.json))


def _serve(parsed: argparse.Namespace) -> int:
    import trio

    from smg_trio.gateway.run import GatewayShutdown, RunningGateway
    from smg_trio.launcher.serve import plan_serve, run_serve
    from smg_trio.launcher.serve_options import ignored_by_serve, parse_serve
    from smg_trio.processes.run import run_processes

    serve = parse_serve(parsed.words, os.environ)
    layers, warnings = _read_layers(serve.config)
    plan = plan_serve(serve, os.environ, layers)
    _set_up_logging(plan.settings, [*warnings, *ignored_by_serve(layers), *plan.notes])
    shutdown = GatewayShutdown()

    class Started:
        """Translates what the gateway reports for those who only know workers."""

        def __init__(self, tell: Callable[[Sequence[WatchedWorker]], None]) -> None:
            self._tell = tell

        def started(self, value: RunningGateway | None = None) -> None:
            assert value is not None, "a gateway reports itself"
            self._tell(value.gateway.registry.workers())

    async def gateway(settings: Settings, started: Callable[[Sequence[WatchedWorker]], None]) -> int:
        return await run_processes(settings, shutdown=shutdown, task_status=Started(started))

    return trio.run(run_serve, plan, gateway, shutdown.ask)


def _demo(parsed: argparse.Namespace) -> int:
    import trio

    from smg_trio.gateway.observability.logs import set_up_logging
    from smg_trio.testing.demo import run_demo

    set_up_logging("warn")
    return trio.run(run_demo, parsed.host, parsed.port, parsed.prometheus_port, parsed.step_ms / 1000)


def _fake_engine(parsed: argparse.Namespace) -> int:
    import trio

    from smg_trio.gateway.observability.logs import set_up_logging
    from smg_trio.testing import fake_engine_cli

    set_up_logging("info")
    return trio.run(fake_engine_cli.main, parsed)


def _handshake_port(parsed: argparse.Namespace) -> int:
    from smg_trio.wire.addresses import parse_worker_url

    try:
        addresses = parse_worker_url(parsed.url, advertise=parsed.zmq_advertise_host)
    except InvalidRequest as error:
        raise ConfigError("URL", error.message) from None
    if parsed.engine_command:
        if not addresses.remote:
            raise ConfigError("--engine-command", "is for tcp:// workers.", "Leave it out to get the port alone.")
        from smg_trio.launcher.commands import remote_engine_commands

        print(remote_engine_commands(addresses), end="")
    else:
        print(addresses.handshake.rpartition(":")[2])
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


def _completion(parsed: argparse.Namespace) -> int:
    from smg_trio.cli.completion import completion_script
    from smg_trio.launcher.serve_options import make_parser as make_serve_parser

    parser = make_parser(serve=make_serve_parser(EngineProtocol.VLLM))
    print(completion_script(parser, parsed.shell), end="")
    return 0


def _top(parsed: argparse.Namespace) -> int:
    import trio

    from smg_trio.terminal.top import TopOptions, run_top

    options = TopOptions(
        url=parsed.url,
        api_key=parsed.api_key or os.environ.get("SMG_TRIO_API_KEY") or None,
        once=parsed.once,
        as_json=parsed.json,
    )
    return trio.run(run_top, options)
