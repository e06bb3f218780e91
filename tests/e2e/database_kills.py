"""Clients of gateways that share a database, which is killed again and again; what was acknowledged is looked for."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import trio

from tests.postgres import PostgresServer

from .harness import Bench


@dataclass
class Outcome:
    """What became of the requests.

    Attributes:
        acknowledged: responses that were said to be stored, by id.
        counts: of requests, by how they have ended.
        answered: those that were not refused.
        faults: what must not be, in words.
    """

    acknowledged: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    answered: int = 0
    _awaited: int = 0
    _reached: trio.Event = field(default_factory=trio.Event)

    def note(self, kind: str) -> None:
        """One request has been answered so."""
        self.counts[kind] += 1
        self.answered += 1
        if self.answered >= self._awaited:
            self._reached.set()

    async def wait_answered(self, requests: int) -> None:
        """Wait until that many requests have been answered."""
        self._awaited, self._reached = requests, trio.Event()
        if self.answered < requests:
            await self._reached.wait()


async def kill_during(benches: list[Bench], server: PostgresServer, requests: int, kills: int, clients: int) -> Outcome:
    """Send requests through all gateways while the database is killed and restarted, then look for what was stored."""
    outcome = Outcome()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_kill, server, outcome, requests, kills)
        async with trio.open_nursery() as asking:
            for number in range(clients):
                asking.start_soon(_ask, benches, number, requests, outcome)
        nursery.cancel_scope.cancel()
    if not server.running:
        await trio.to_thread.run_sync(server.start)
    for number, (response_id, body) in enumerate(outcome.acknowledged.items()):
        found = await benches[number % len(benches)].http.get(f"/v1/responses/{response_id}")
        if found.status_code != 200 or found.json() != body:
            outcome.faults.append(f"{response_id} was acknowledged and is lost: {found.status_code} {found.text[:200]}")
    return outcome


async def _kill(server: PostgresServer, outcome: Outcome, requests: int, kills: int) -> None:
    for number in range(1, kills + 1):
        await outcome.wait_answered(number * requests // (kills + 1))
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(server.kill)
            outcome.counts["kills of the database"] += 1
            await trio.sleep(0.1)
            await trio.to_thread.run_sync(server.start)


async def _ask(benches: list[Bench], number: int, requests: int, outcome: Outcome) -> None:
    """One client: it goes on from its last response, through another gateway each time."""
    last: str | None = None
    turn = 0
    while outcome.answered < requests:
        fields: dict[str, Any] = {"input": f"{number} {turn}", "stream": turn % 2 == 1}
        if number % 2:
            fields["store"] = True
        if last is not None and turn % 5:
            fields["previous_response_id"] = last
        answer = await benches[(number + turn) % len(benches)].http.post("/v1/responses", json=fields)
        body = _response_of(answer.text)
        kind = _kind(answer, body, fields)
        if kind == "stored":
            last = body["id"]
            outcome.acknowledged[body["id"]] = body
        if kind == "refused":
            outcome.counts[kind] += 1
            await trio.sleep(0.05)
            continue
        turn += 1
        outcome.note(kind)
        if kind == "fault":
            outcome.faults.append(f"neither stored nor refused: {answer.status_code} {answer.text[-500:]}")


def _kind(answer: httpx.Response, body: dict[str, Any], fields: dict[str, Any]) -> str:
    """How a request has ended; only one that asks for it is refused for want of a database."""
    must = fields.get("store") or "previous_response_id" in fields
    if answer.status_code == 503 and answer.headers["x-smg-error-code"] == "history_unavailable" and must:
        return "refused"
    if answer.status_code != 200:
        return "fault"
    match body["status"], body["store"]:
        case "completed", True:
            return "stored"
        case "completed", False if not fields.get("store"):
            return "not stored, and said so"
        case "failed", False if fields.get("store") and "Stored responses" in body["error"]["message"]:
            return "failed at the end of the stream"
    return "fault"


def _response_of(text: str) -> dict[str, Any]:
    """The response, or the error, of an answer in one piece or of a stream's last event."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    value: dict[str, Any] = json.loads(lines[-1] if lines else text)
    found: dict[str, Any] = value.get("response", value)
    return found
