"""``serve``: a gateway and its engines in one task tree, and the order in which they end.

```
run_serve
└─ signal watcher
   └─ engines, one supervisor each        ended after the gateway
      └─ gateway                          started first: an engine's HELLO is answered immediately
```
The gateway is handed in: this room does not know the HTTP side.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import trio

from smg_trio.core.errors import ConfigError, SmgError
from smg_trio.core.workers import WorkerState
from smg_trio.hub.names import parse_hub_name, without_revision
from smg_trio.launcher.argv import has_flag
from smg_trio.launcher.commands import (
    EngineCommand,
    handshake_port,
    plan_engines,
    worker_addresses,
    worker_url,
)
from smg_trio.launcher.engines import Supervisor, WatchedWorker, run_engines
from smg_trio.launcher.orphan_guard_client import open_orphan_guard
from smg_trio.launcher.ports import find_ports, port_is_free
from smg_trio.launcher.serve_options import ServeOptions, settings_of
from smg_trio.settings.checks import check_settings
from smg_trio.settings.smg_flags import notes_on
from smg_trio.settings.sources import Layer, layer_of_flags, merged, with_origin
from smg_trio.worker.registrations import RegistrationFile
from smg_trio.worker.socket_directory import default_socket_directory

if TYPE_CHECKING:
    from smg_trio.launcher.process import Ending
    from smg_trio.settings.settings import Settings

logger = logging.getLogger("smg_trio.launcher")


class RunGateway(Protocol):
    """Runs a gateway until `run_serve` asks it to end; its exit code."""

    async def __call__(self, settings: Settings, started: Callable[[Sequence[WatchedWorker]], None]) -> int:
        """`started` is told the workers, in the order of their URLs, once the gateway listens."""


@dataclass(frozen=True, slots=True)
class ServePlan:
    """What is going to be started; `notes` are warnings for the log."""

    serve: ServeOptions
    settings: Settings
    commands: tuple[EngineCommand, ...]
    notes: tuple[str, ...] = ()


def plan_serve(serve: ServeOptions, environment: Mapping[str, str], layers: Layer | None = None) -> ServePlan:
    """Find ports and work out every command line. Raises ConfigError; nothing has been started then.

    `layers`: what the gateway's settings file and variables say.
    """
    serve = _with_revision_apart(serve)
    directory = default_socket_directory(environment, os.getuid())

    def is_free(port: int) -> bool:
        return _is_free(serve, directory, port)

    ports = find_ports(serve.replicas, serve.worker_base_port, is_free)
    commands = plan_engines(serve, ports, directory, environment)
    settings = settings_of(serve, [command.url for command in commands], layers)
    try:
        check_settings(settings)
    except ConfigError as error:
        raise with_origin(error, merged(layers or {}, layer_of_flags(serve.given))) from None
    return ServePlan(serve, settings, commands, tuple(notes_on(serve.smg_flags)))


def _with_revision_apart(serve: ServeOptions) -> ServeOptions:
    """For the engine: of ``ORG/NAME@REVISION`` the revision is a flag of its own."""
    name = None if os.path.isdir(serve.model) else parse_hub_name(serve.model, option="--model")
    model = without_revision(serve.model)
    if name is None or model == serve.model:
        return serve
    words = serve.engine_words
    if not has_flag(words, ("--revision",)):
        words = (*words, "--revision", name.revision)
    return replace(serve, model=model, engine_words=words)


def _is_free(serve: ServeOptions, directory: str, port: int) -> bool:
    """Whether a worker port may be used.

    Neither it nor its handshake port is in use, nor do engines of a gateway that died remain there, which would be
    taken for the new ones.
    """
    url = worker_url(directory, port)
    if not port_is_free(port) or not port_is_free(handshake_port(url)):
        return False
    if _registrations(serve, url).load():
        logger.warning("engines of an earlier gateway may still be alive at %s; passing it over", url)
        return False
    return True


def _registrations(serve: ServeOptions, url: str) -> RegistrationFile:
    return RegistrationFile(worker_addresses(url).path, serve.backend)


async def run_serve(
    plan: ServePlan,
    run_gateway: RunGateway,
    ask_gateway_end: Callable[[], None],
    say: Callable[[str], None] | None = None,
) -> int:
    """Run gateway and engines until a signal, or until an engine cannot start.

    Args:
        plan: from `plan_serve`.
        run_gateway: see `RunGateway`.
        ask_gateway_end: makes it drain and end; called again, it ends immediately.
        say: takes the engines' lines; None: they go to stderr.

    Returns 128 + N after signal N, else the gateway's exit code. Raises SmgError if the gateway or an engine could
    not start. However it ends, no engine process and no file of the workers' sockets is left.
    """
    running = _Serve(plan, run_gateway, ask_gateway_end, say or _print)
    if plan.serve.replicas == 1:
        retries = "" if plan.serve.engine_count > 1 else ", no retries"
        logger.info("one worker: policy passthrough, no circuit breaker%s", retries)
    try:
        async with trio.open_nursery() as around:
            await around.start(running.watch_signals)
            async with open_orphan_guard(running.hurry) as ending:
                await running.run(ending)
            around.cancel_scope.cancel()
    finally:
        for command in plan.commands:
            with suppress(OSError):
                _registrations(plan.serve, command.url).remove()
    return running.exit_code()


def _print(line: str) -> None:
    # The reader of our stderr may be gone: that costs the lines, not the engines.
    with suppress(OSError, ValueError):  # ValueError: stderr is closed
        print(line, file=sys.stderr, flush=True)


class _Serve:
    def __init__(
        self,
        plan: ServePlan,
        run_gateway: RunGateway,
        ask_gateway_end: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._run_gateway = run_gateway
        self._ask_gateway_end = ask_gateway_end
        self._say = say
        self._signal: int | None = None
        self._failure: SmgError | None = None
        self._gateway_code = 0
        self.hurry = trio.Event()

    def exit_code(self) -> int:
        """What the process ends with. Raises what stopped it."""
        if self._failure is not None:
            raise self._failure
        return self._gateway_code if self._signal is None else 128 + self._signal

    async def watch_signals(self, *, task_status: trio.TaskStatus[None]) -> None:
        """The first signal ends serve in order, the second immediately."""
        # nohup's wish is respected; a terminal that goes away otherwise ends serve, and so its engines.
        hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hangup) as signals:
            task_status.started()
            async for number in signals:
                if self._signal is not None:
                    self.hurry.set()
                self._signal = self._signal or number
                logger.info("Received signal %d, shutting down", number)
                self._ask_gateway_end()

    async def run(self, ending: Ending) -> None:
        """Gateway and engines, until the gateway has ended and the engines after it."""
        async with trio.open_nursery() as engines:

            def started(workers: Sequence[WatchedWorker]) -> None:
                if not self._refused(workers):
                    engines.start_soon(run_engines, self._supervisors(workers, ending), self._give_up)

            try:
                self._gateway_code = await self._run_gateway(self._plan.settings, started)
            except SmgError as error:
                self._failure = self._failure or error
            logger.info("ending %d engine(s)", len(self._plan.commands))
            engines.cancel_scope.cancel()

    def _refused(self, workers: Sequence[WatchedWorker]) -> bool:
        """Whether a worker could not bind its sockets: engines would dial in vain forever."""
        for snapshot in [worker.snapshot() for worker in workers]:
            if snapshot.state is WorkerState.FAILED:
                self._give_up(ConfigError("--worker-base-port", f"{snapshot.spec.url} failed: {snapshot.reason}"))
                return True
        return False

    def _supervisors(self, workers: Sequence[WatchedWorker], ending: Ending) -> list[Supervisor]:
        serve = self._plan.serve
        return [
            Supervisor(
                command,
                worker,
                ending,
                self._say,
                startup_timeout_s=serve.startup_timeout_s,
                host=serve.worker_host,
            )
            for command, worker in zip(self._plan.commands, workers, strict=True)
        ]

    def _give_up(self, failure: SmgError) -> None:
        # Once it is ending anyway, an engine's death is no failure: some supervisors signal all processes at once.
        if self._failure is None and self._signal is None:
            self._failure = failure
            logger.error("%s", failure.message)
            self._ask_gateway_end()
