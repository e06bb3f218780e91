"""What a gateway must hold when nobody asks anything of it: nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from disorder.tasks import count_tasks

if TYPE_CHECKING:
    from disorder.fleet import Fleet
    from smg_trio.gateway.state import Gateway


@dataclass(frozen=True, slots=True)
class Belongings:
    """What the process holds of the system: open files and sockets, and tasks."""

    descriptors: int
    tasks: int


def belongings() -> Belongings:
    """Of this process, now."""
    return Belongings(len(os.listdir("/proc/self/fd")), count_tasks())


def open_accounts(gateway: Gateway) -> list[str]:
    """What is not back to zero though no request is there any more."""
    admission = gateway.admission.statistics()
    figures = {
        "answers": gateway.answers,
        "admitted": admission.in_flight,
        "waiting for admission": admission.waiting,
        "request deadlines": len(gateway.deadlines),
        "keep-alive deadlines": len(gateway.keep_alives),
    }
    for worker in gateway.registry.workers():
        name = worker.spec.url.rpartition("/")[2]
        figures[f"in the ledger of {name}"] = worker.in_flight
        figures[f"leases on {name}"] = gateway.registry.load(worker.spec.worker_id)
        for rank in worker.snapshot().ranks:
            figures[f"in flight at rank {rank.rank} of {name}"] = rank.in_flight
    return [f"{what}: {count}" for what, count in figures.items() if count]


def engine_leftovers(fleet: Fleet) -> list[str]:
    """What engines still do for nobody."""
    return [left for member in fleet.members if member.engines is not None for left in member.engines.leftovers()]


def doubled(received: list[str]) -> list[str]:
    """Request ids that engines have got more than once."""
    count = len(received) - len(set(received))
    return [f"{count} request ids came twice to an engine"] if count else []


def files_left(directory: Path) -> list[str]:
    """Sockets and locks of workers that are gone. Kept registrations may stay: engines may outlive their worker."""
    return [f"file left: {file.name}" for file in directory.iterdir() if file.suffix != ".json"]
