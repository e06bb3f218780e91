"""Several gateway processes in front of workers behind HTTP: every connection shows one gateway."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import trio

from tests.upstream.scripted import Call, scripted

from .fronts import ANSWER, answering, asked, open_front, serving
from .harness import HI, PATIENCE_S, Bench
from .scrape import Scrape
from .test_owners import ALICE, BOB, KEYS
from .test_processes import client, clients_of, eventually, keeper_of

CHAT = {"model": "m", "messages": HI}


async def endless(call: Call) -> None:
    """A stream that begins, and goes on until its client leaves; or a whole answer."""
    if b'"stream"' not in call.request.body:
        await call.answer(ANSWER)
        return
    await call.begin()
    await call.chunk(b'data: {"choices":[]}\n\n')
    await call.wait_closed()


async def stream(bench: Bench, begun: list[int]) -> None:
    """A stream on a connection of its own, read until it ends."""
    async with client(bench) as http:
        try:
            async with http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as answer:
                reads = answer.aiter_raw()
                await anext(reads)
                begun.append(answer.status_code)
                async for _ in reads:
                    pass
        except httpx.HTTPError:
            begun.append(0)


async def wait_ready(fronts: dict[int, httpx.AsyncClient], statuses: set[str]) -> None:
    """Wait until every process knows what the workers serve, and they are in these states."""

    async def there(http: httpx.AsyncClient) -> bool:
        workers = (await http.get("/workers")).json()["workers"]
        models = (await http.get("/v1/models")).json()["data"]
        return bool(models) and {worker["status"] for worker in workers} == statuses

    with trio.fail_after(PATIENCE_S):
        for http in fronts.values():
            while not await there(http):  # noqa: ASYNC110 - a process of its own
                await trio.sleep(0.02)


async def test_all_processes_relay_and_count_together(tmp_path: Path) -> None:
    async with (
        scripted(serving(endless)) as first,
        scripted(serving(answering)) as second,
        open_front(tmp_path, first.url, processes="2", max_concurrent_requests=4) as bench,
    ):
        board = keeper_of(bench).board
        async with clients_of(bench) as fronts:
            await wait_ready(fronts, {"ready"})
            for http in fronts.values():
                response = await http.post("/v1/chat/completions", json=CHAT)
                assert (response.status_code, response.content) == (200, ANSWER)
            async with trio.open_nursery() as nursery:
                begun: list[int] = []
                for _ in range(4):
                    nursery.start_soon(stream, bench, begun)
                await eventually(lambda: len(begun) == 4)
                worker = (await fronts[1].get("/workers")).json()["workers"][0]
                assert (worker["load"], worker["in_flight"]) == (4, 4)
                mine = board.process(1).answers
                assert 0 < mine < 4, "connections are spread"
                os.kill(board.process(1).pid, signal.SIGKILL)
                await eventually(lambda: board.answers() == 4 - mine)
                worker = (await fronts[2].get("/workers")).json()["workers"][0]
                assert (worker["load"], worker["in_flight"]) == (4 - mine, 4 - mine)
                nursery.cancel_scope.cancel()
            await eventually(lambda: board.answers() == 0 and board.process(1).accepting)
        async with clients_of(bench) as fronts:  # the one that was started again, too
            await wait_ready(fronts, {"ready"})
            added = await fronts[1].post("/workers", json={"url": second.url})
            assert added.status_code == 202, added.text
            removed = await fronts[2].get("/workers")
            await wait_ready(fronts, {"ready"})
            first_id = next(one["id"] for one in removed.json()["workers"] if one["url"] == first.url)
            assert (await fronts[2].delete(f"/workers/{first_id}")).status_code == 202
            await eventually(lambda: len(bench.gateway.registry.all_workers()) == 1)
            for http in fronts.values():
                with trio.fail_after(PATIENCE_S):
                    answer = await http.post("/v1/chat/completions", json=CHAT)
                    while answer.status_code != 200:
                        await trio.sleep(0.02)
                        answer = await http.post("/v1/chat/completions", json=CHAT)
                assert answer.headers["x-smg-routed-worker"] == added.json()["worker_id"]
            assert len(asked(second)) >= 2
            async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
                found = Scrape((await http.get(bench.metrics_url)).text)
            assert found.value("smg_worker_pool_size", connection_mode="http") == 1
            assert found.value("smg_router_requests_total", connection_mode="http", streaming="false") >= 2


async def keeping(call: Call) -> None:
    """Makes responses, and has whatever is asked for."""
    if call.request.method == "POST":
        body = b'{"id": "resp_%d_%d", "object": "response", "output": []}' % (id(call.stream), call.number)
    else:
        body = b'{"id": "%s"}' % call.request.path.rpartition("/")[2].encode()
    await call.answer(body)


def key_file(tmp_path: Path) -> str:
    """Keys of two holders."""
    file = tmp_path / "keys.toml"
    file.write_text(KEYS)
    file.chmod(0o600)
    return str(file)


async def test_a_stored_response_is_found_by_its_owner_from_every_process(tmp_path: Path) -> None:
    settings = {"api_key_file": key_file(tmp_path), "history_backend": "none", "processes": "2"}
    async with (
        scripted(serving(keeping)) as one,
        scripted(serving(keeping)) as two,
        open_front(tmp_path, one.url, two.url, policy="round_robin", ready=0, **settings) as bench,
        clients_of(bench) as fronts,
    ):
        for http in fronts.values():
            http.headers.update(ALICE)
        await wait_ready(fronts, {"ready"})
        body: dict[str, Any] = {"model": "m", "input": "hi"}
        ids = [(await fronts[1].post("/v1/responses", json=body)).json()["id"] for _ in range(2)]
        homes = [(await fronts[2].get(f"/v1/responses/{one}")).headers["x-smg-routed-worker"] for one in ids]
        assert len(set(homes)) == 2
        for response_id, home in zip(ids, homes, strict=True):
            following = body | {"previous_response_id": response_id}
            for _ in range(2):
                answer = await fronts[2].post("/v1/responses", json=following)
                assert answer.headers["x-smg-routed-worker"] == home
        assert (await fronts[2].get(f"/v1/responses/{ids[0]}", headers=BOB)).status_code == 404
        assert (await fronts[2].delete(f"/v1/responses/{ids[0]}", headers=BOB)).status_code == 404
        unstored = await fronts[1].post("/v1/responses", json=body | {"store": False})
        assert (await fronts[1].get(f"/v1/responses/{unstored.json()['id']}")).status_code == 404
        assert (await fronts[2].delete(f"/v1/responses/{ids[0]}")).status_code == 200
        assert (await fronts[1].get(f"/v1/responses/{ids[0]}")).status_code == 404


async def test_a_stored_response_is_found_after_a_restart_by_its_owner_alone(tmp_path: Path) -> None:
    settings = {"api_key_file": key_file(tmp_path), "history_backend": f"sqlite:{tmp_path}/history.db"}
    async with scripted(serving(keeping)) as one, scripted(serving(keeping)) as two:
        async with open_front(tmp_path, one.url, two.url, **settings) as bench:
            made = await bench.http.post("/v1/responses", json={"model": "m", "input": "hi"}, headers=ALICE)
        home = next(server for server in (one, two) if asked(server))
        path = f"/v1/responses/{made.json()['id']}"
        (again := tmp_path / "again").mkdir()
        async with open_front(again, one.url, two.url, **settings) as bench:
            assert (await bench.http.get(path, headers=BOB)).status_code == 404
            assert (await bench.http.get(path, headers=ALICE)).json()["id"] == made.json()["id"]
            assert [call.path for call in asked(home)][-1] == path
            assert len(asked(one)) + len(asked(two)) == 2
