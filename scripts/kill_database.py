"""Kills the database that two gateways share, again and again, and looks for every response that was acknowledged.

    python scripts/kill_database.py [--responses 1000] [--kills 5] [--clients 16]

The gateways run in this process, the PostgreSQL server (as it is by default, from /usr/lib/postgresql or the path) in
its own, below a temporary directory; all its processes get SIGKILL at the same moment. Clients go on from their last
response through another gateway each time, whole or streamed, half of them with ``store: true``.

Exit code 0: each request was stored, or said that it is not, or was refused with 503; and each one that was stored is
there afterwards, through the other gateway too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.e2e.database_kills import Outcome, kill_during
from tests.e2e.harness import open_gateway
from tests.postgres import find_programs, running_server


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="kill the database during responses")
    parser.add_argument("--responses", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--clients", type=int, default=16)
    return parser.parse_args()


async def run(options: argparse.Namespace) -> Outcome:
    """Send all requests, and look for what was stored."""
    with running_server() as server, tempfile.TemporaryDirectory(prefix="smg-kills-") as directory:
        async with AsyncExitStack() as stack:
            benches, url = [], server.new_url()
            for place in (trio.Path(directory, "a"), trio.Path(directory, "b")):
                await place.mkdir()
                gateway = open_gateway(Path(place), history_backend="postgres", history_url=url, access_log=False)
                benches.append(await stack.enter_async_context(gateway))
            return await kill_during(benches, server, options.responses, options.kills, options.clients)


def main() -> int:
    """Run it; the exit code."""
    if find_programs() is None:
        print("PostgreSQL's server is not installed (Debian: postgresql)", file=sys.stderr)
        return 2
    outcome = trio.run(run, arguments())
    for kind, count in outcome.counts.most_common():
        print(f"{count:6} {kind}")
    for fault in outcome.faults:
        print(f"fault: {fault}")
    print(f"{len(outcome.acknowledged)} acknowledged, {len(outcome.faults)} faults")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
