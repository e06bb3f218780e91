"""The workers of the gateway under test and their engines: they come, change and go through the worker API."""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import httpx
import trio

from disorder.engines import Engines, LocalEngines, ProcessEngines
from smg_trio.core.engines import EngineProtocol
from smg_trio.wire.addresses import handshake_port, parse_worker_url

if TYPE_CHECKING:
    import zmq

MOST_WORKERS = 6
PROTOCOLS = tuple(EngineProtocol)


@dataclass(slots=True)
class Member:
    """A worker; `engines` is None for one that nobody dials in to."""

    worker_id: str
    url: str
    engines: Engines | None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Fleet:
    """The workers.

    Attributes:
        done: what was done to workers and engines, by name.
        received: ids of the requests that local engines have got, those of workers that are gone included.
    """

    def __init__(
        self,
        directory: str,
        random: Random,
        http: httpx.AsyncClient,
        nursery: trio.Nursery,
        context: zmq.Context[zmq.Socket[bytes]],
    ) -> None:
        self._directory = directory
        self._random = random
        self._http = http
        self._nursery = nursery
        self._context = context
        self._names = itertools.count()
        self._changing = trio.Lock()
        self.members: list[Member] = []
        self.done: Counter[str] = Counter()
        self.received: list[str] = []
        self.faults: list[str] = []

    async def add(self, kind: str) -> None:
        """Add a worker whose engines are of a kind: ``process``, ``local`` or ``none``."""
        protocol, ranks = self._random.choice(PROTOCOLS), self._random.choice((1, 1, 2))
        url = self._free_url()
        body = {"url": url, "runtime_type": protocol.value, "dp_size": ranks}
        answer = await self._http.post("/workers", json=body | {"health": {"drain_settle_secs": 2}})
        if answer.status_code != 202:
            self.faults.append(f"adding a worker: {answer.status_code} {answer.text}")
            return
        engines = self._engines(kind, parse_worker_url(url).handshake, protocol, ranks)
        member = Member(str(answer.json()["worker_id"]), url, engines)
        self.members.append(member)
        if engines is not None:
            self._nursery.start_soon(_run_in, member.scope, engines)

    def _engines(self, kind: str, handshake: str, protocol: EngineProtocol, ranks: int) -> Engines | None:
        seed = Random(self._random.random())
        if kind == "process":
            return ProcessEngines(handshake, protocol, ranks, seed)
        return LocalEngines(handshake, protocol, ranks, seed, self._context) if kind == "local" else None

    def _free_url(self) -> str:
        while True:
            path = f"{self._directory}/w{next(self._names)}"
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", handshake_port(path)))
                except OSError:
                    continue
            return f"ipc://{path}"

    async def remove(self, member: Member) -> None:
        """Delete a worker; its engines live on until it is gone, as they would."""
        self.members.remove(member)
        answer = await self._http.delete(f"/workers/{member.worker_id}")
        if answer.status_code != 202:
            self.faults.append(f"removing a worker: {answer.status_code} {answer.text}")
        while not await self._is_gone(member):  # noqa: ASYNC110 (the API can only be asked)
            await trio.sleep(0.02)
        if isinstance(member.engines, LocalEngines):
            self.received += member.engines.received()
        member.scope.cancel()

    async def _is_gone(self, member: Member) -> bool:
        try:
            return (await self._http.get(f"/workers/{member.worker_id}")).status_code == 404
        except httpx.TransportError:
            return False  # the front that was asked has been killed

    async def disturb_until(self, ends: float) -> None:
        """Break one thing after another until then; whatever comes back by itself has come back when this returns."""
        while trio.current_time() < ends:
            await trio.sleep(self._random.uniform(0.0, 0.4))
            if self._random.random() < 0.2:
                async with self._changing:
                    await self._change_workers()
            elif self.members:
                await self._break_one(self._random.choice(self.members))

    async def _break_one(self, member: Member) -> None:
        if member.engines is None:
            return
        name, fault = self._random.choice(list(member.engines.faults().items()))
        self.done[name] += 1
        await fault()

    async def _change_workers(self) -> None:
        way = self._random.choice(("add", "remove", "patch", "put"))
        if way == "add" and len(self.members) < MOST_WORKERS:
            await self.add(self._random.choice(("process", "local", "local", "none")))
        elif way == "remove" and len(self.members) > 2:
            await self.remove(self._random.choice(self.members))
        elif way in ("patch", "put") and self.members:
            await self._tell(self._random.choice(self.members), way)
        self.done[f"worker {way}"] += 1

    async def _tell(self, member: Member, method: str) -> None:
        path = f"/workers/{member.worker_id}"
        shown = (await self._http.get(path)).json()
        body: dict[str, Any] = {"priority": self._random.randrange(100), "labels": {"a": "b"}}
        if method == "put":
            body |= {"url": member.url, "runtime_type": shown["runtime_type"], "dp_size": shown.get("dp_size", 1)}
        answer = await self._http.request(method.upper(), path, json=body)
        if answer.status_code != 202:
            self.faults.append(f"{method} of a worker: {answer.status_code} {answer.text}")

    async def wait_ready(self) -> None:
        """Wait until every worker with engines serves, with all its ranks."""
        while await self.missing():  # noqa: ASYNC110 (the API can only be asked)
            await trio.sleep(0.02)

    async def never_ready(self, limit_s: float) -> list[str]:
        """What is still `missing` after waiting so long; nothing if there was a moment when all served."""
        with trio.move_on_after(limit_s):
            await self.wait_ready()
            return []
        return await self.missing()

    async def missing(self) -> list[str]:
        """Workers whose engines are there and do not serve."""
        found = []
        for member in self.members:
            shown = (await self._http.get(f"/workers/{member.worker_id}")).json()
            states = [shown["status"], *(rank["status"] for rank in shown.get("ranks", ()))]
            if member.engines is not None and set(states) != {"ready"}:
                kind = f"{type(member.engines).__name__} {shown['runtime_type']}"
                found.append(f"{member.url} ({kind}) is {states}: {shown.get('status_reason')}")
        return found

    async def remove_all(self) -> None:
        """Delete every worker and end its engines."""
        for member in list(self.members):
            await self.remove(member)


async def _run_in(scope: trio.CancelScope, engines: Engines) -> None:
    with scope:
        await engines.run()
