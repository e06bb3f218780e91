"""Mutated bodies over real HTTP, to every endpoint that takes one.

Never a 5xx, never anything left behind, never an error worded after a class of this program.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import trio

from tests.e2e.harness import HELLO, MODEL, open_gateway
from tests.own_classes import own_class_in

from .choices import Choices
from .targets import some_body

REQUESTS = int(os.environ.get("SMG_TRIO_FUZZ_REQUESTS", "250"))
"""How many; the session ``fuzz`` asks for more."""
SEED = int(os.environ.get("SMG_TRIO_FUZZ_SEED", "1"))
CLIENTS = 4


async def test_no_mutated_body_is_a_5xx(tmp_path: Path) -> None:
    wrong: list[str] = []
    async with open_gateway(tmp_path, HELLO, request_timeout_secs=20.0) as bench:

        async def client(number: int) -> None:
            random = Random(SEED * 1000 + number)
            for _ in range(REQUESTS // CLIENTS):
                path, body = some_body(Choices(random.randbytes(random.randrange(4, 60))))
                answer = await bench.http.post(path, content=body, headers={"content-type": "application/json"})
                # 501 says that a feature is missing; 503 that the model of a mutated name has no worker.
                if answer.status_code >= 500 and answer.status_code not in (501, 503):
                    wrong.append(f"{answer.status_code} {path} {body[:2000]!r}: {answer.text[:300]}")
                if answer.status_code >= 400 and (name := own_class_in(answer.text)) is not None:
                    wrong.append(f"{name} in the error of {path} {body[:2000]!r}: {answer.text[:300]}")

        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(client, number)
        assert not wrong, wrong
        for worker in bench.gateway.registry.workers():
            if worker.spec.url not in bench.urls:
                bench.gateway.registry.remove(worker.spec.worker_id)
        await bench.wait_idle()
        assert bench.engine.exit_reason is None
        assert (await bench.chat(model=MODEL)).status_code == 200
