"""Print the names that a version promises to keep, a line each: commands, flags, routes, error codes, metrics.

``python scripts/list_names.py > tests/stability/X.Y.txt`` when a version is made; see docs/stability.md. What follows
from the flags of ``launch`` is left out: flags of ``serve`` that hand a setting to the gateway (``--router-NAME``), and
those of the commands that take the flags of ``launch``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields

import trio

import smg_trio.gateway.run  # noqa: F401  # so that every class of errors is known
from docs_commands import commands, flags_of_parser
from smg_trio.core.errors import SmgError
from smg_trio.gateway.observability.metrics import Metrics
from smg_trio.gateway.request_body.incoming import BodyMemory
from smg_trio.gateway.routes import ROUTES
from smg_trio.http.statistics import ServerStatistics
from smg_trio.pipeline.encoding_cache import EncodingCache
from smg_trio.routing.admission import AdmissionQueue
from smg_trio.routing.registry import Registry
from smg_trio.testing.memory import MemoryNetwork

_TAKE_THE_FLAGS_OF_LAUNCH = ("config check", "config show", "doctor")


async def names() -> set[str]:
    """All names of this version."""
    return {*_command_names(), *_http_names(), *_metric_names()}


def _command_names() -> Iterator[str]:
    for path, parser, _ in commands():
        yield f"command {path}"
        for flag in flags_of_parser(parser):
            handed_on = path == "serve" and flag.startswith(("--router-", "--no-router-"))
            if not handed_on and path not in _TAKE_THE_FLAGS_OF_LAUNCH:
                yield f"flag {path} {flag}"


def _http_names() -> Iterator[str]:
    yield from (f"route {route.method} {route.path}" for route in ROUTES)
    yield from (f"error {fault.code}" for fault in _subclasses(SmgError))


def _subclasses(kind: type[SmgError]) -> Iterator[type[SmgError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


def _metric_names() -> Iterator[str]:
    # Some are read from the event loop.
    metrics = Metrics(Registry(MemoryNetwork()), AdmissionQueue(1), EncodingCache(1), BodyMemory(1))
    metrics.follow_server(lambda: ServerStatistics(*[0] * len(fields(ServerStatistics))))
    for line in metrics.exposition().decode().splitlines():
        if line.startswith("# TYPE smg_"):
            yield "metric " + line.removeprefix("# TYPE ")


def main() -> None:
    """Print them."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    print("\n".join(sorted(trio.run(names))))


if __name__ == "__main__":
    main()
