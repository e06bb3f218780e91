"""Ids that clients choose for their responses: each is used once at a time, and none ends the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from .harness import ENDLESS, HELLO, PATIENCE_S, Bench, connect, error_of, hang_up, open_gateway, post, read_until

SLOW: dict[str, Any] = {"step_time_s": 0.005}


async def create(bench: Bench, **fields: Any) -> httpx.Response:
    return await bench.http.post("/v1/responses", json={"input": "hi", "request_id": "dup"} | fields)


async def settled(bench: Bench, response_id: str) -> dict[str, Any]:
    """The kept response once it has ended."""
    with trio.fail_after(PATIENCE_S):
        while True:
            found: dict[str, Any] = (await bench.http.get(f"/v1/responses/{response_id}")).json()
            if found["status"] not in ("queued", "in_progress"):
                return found
            await trio.sleep(0.01)


def assert_in_use(answer: httpx.Response) -> None:
    error = error_of(answer, 409)
    assert (error["code"], error["param"]) == ("conflict", "request_id")
    assert "'dup'" in error["message"]


async def test_a_retried_background_response_is_a_conflict_and_the_first_goes_on(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, words=HELLO, engine=SLOW) as bench:
        answers: list[httpx.Response] = []

        async def one() -> None:
            answers.append(await create(bench, background=True))

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(one)
        assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7
        for answer in answers:
            if answer.status_code == 409:
                assert_in_use(answer)
        assert (await bench.http.post("/v1/responses/dup/cancel")).json()["status"] == "cancelled"
        assert_in_use(await create(bench, background=True))
        await bench.wait_idle()
        bench.say(HELLO)
        assert (await bench.chat()).status_code == 200
        # Once it is forgotten the id is free again.
        assert (await bench.http.delete("/v1/responses/dup")).status_code == 200
        assert (await create(bench, background=True)).status_code == 200
        assert (await settled(bench, "dup"))["status"] == "completed"
        assert not bench.ended.is_set()


WAYS: list[dict[str, Any]] = [{}, {"stream": True}, {"background": True}]


@pytest.mark.parametrize("second", WAYS, ids=["whole", "streamed", "background"])
@pytest.mark.parametrize("store", [True, False], ids=["kept", "not-kept"])
async def test_an_id_is_in_use_while_its_response_runs_and_while_it_is_kept(
    tmp_path: Path, second: dict[str, Any], store: bool
) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW) as bench:
        stream = await connect(bench.port)
        body = {"input": "hi", "request_id": "dup", "stream": True, "store": store, "max_output_tokens": 60}
        await stream.send_all(post("/v1/responses", body))
        await read_until(stream, b"output_text.delta")
        assert_in_use(await create(bench, **second))
        await read_until(stream, b"response.incomplete")
        await hang_up(stream, reset=False)
        await bench.wait_idle()
        answer = await create(bench, max_output_tokens=3, **second)
        if store:
            assert_in_use(answer)
        else:
            assert answer.status_code == 200


async def test_a_request_that_fails_or_is_given_up_frees_its_id(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW) as bench:
        assert (await create(bench, max_output_tokens=10**9)).status_code == 400
        stream = await connect(bench.port)
        await stream.send_all(post("/v1/responses", {"input": "hi", "request_id": "dup", "stream": True}))
        await read_until(stream, b"output_text.delta")
        await hang_up(stream, reset=True)
        await bench.wait_idle()
        assert (await create(bench, max_output_tokens=3)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
async def test_equal_ids_of_other_apis_do_not_meet(tmp_path: Path, path: str) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        body: dict[str, Any] = {"request_id": "dup", "rid": "dup", "max_tokens": 4}
        body |= {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "text": "hi"}
        statuses: list[int] = []

        async def one() -> None:
            statuses.append((await bench.http.post(path, json=body)).status_code)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(one)
        assert statuses == [200] * 4
