"""A gateway of as many processes as its settings say."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import ConfigError
from smg_trio.gateway.run import GatewayShutdown, run_gateway
from smg_trio.settings.checks import process_count

if TYPE_CHECKING:
    from smg_trio.gateway.plugin_set import PluginSet
    from smg_trio.gateway.run import RunningGateway
    from smg_trio.settings.settings import Settings


async def run_processes(
    settings: Settings,
    *,
    plugins: PluginSet | None = None,
    shutdown: GatewayShutdown | None = None,
    watch_signals: bool = False,
    task_status: trio.TaskStatus[RunningGateway] = trio.TASK_STATUS_IGNORED,
) -> int:
    """As `run_gateway`; with several processes this one is their keeper.

    Raises ConfigError for what several processes cannot do.
    """
    count = process_count(settings, processors())
    if count == 1:
        return await run_gateway(
            settings, plugins=plugins, shutdown=shutdown, watch_signals=watch_signals, task_status=task_status
        )
    # Not needed, and so not imported, by the only process.
    from smg_trio.processes.keeper import Keeper

    _refuse_unshared(settings)
    shutdown = shutdown or GatewayShutdown()
    return await run_gateway(
        settings,
        plugins=plugins,
        shutdown=shutdown,
        role=Keeper(settings, count, shutdown),
        watch_signals=watch_signals,
        task_status=task_status,
    )


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _refuse_unshared(settings: Settings) -> None:
    """Raises ConfigError for settings whose promise several processes cannot keep."""
    remedy = "Use --processes 1, or another policy (consistent_hashing keeps a key with one worker in every process)."
    if settings.policy == "manual":
        raise ConfigError("--policy", "manual remembers assignments in one process.", remedy)
    if settings.routing_key_override:
        raise ConfigError("--routing-key-override", "remembers assignments in one process.", remedy)
    if settings.metrics_on_port:
        problem = "would show what one of several processes counts."
        raise ConfigError("--metrics-on-port", problem, "Scrape --prometheus-port, or use --processes 1.")
