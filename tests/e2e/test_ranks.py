"""A request may name the data-parallel rank that is to answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smg_trio.testing.fake_engine import FakeEngine

from .harness import HELLO, HI, MODEL, TOKENSPEED, VLLM, Bench, error_of, open_gateway

RANKS = 3
HEADER = "X-data-parallel-rank"
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 5},
    "/v1/responses": {"input": "hi"},
    "/generate": {"text": "hi"},
}


async def start_group(bench: Bench) -> list[FakeEngine]:
    for rank in range(RANKS):
        bench.start_engine(HELLO, rank=rank, group_size=RANKS)
    await bench.wait_ready()
    for engine in bench.engines:
        await engine.wait_connected()
    return bench.engines


@pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])
async def test_the_rank_of_the_header_answers(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol, connect=False, zmq_engine_count=RANKS) as bench:
        engines = await start_group(bench)
        for path, body in PATHS.items():
            for stream in (False, True):
                before = [len(engine.received) for engine in engines]
                for rank in (2, 2, 0, 2):
                    headers = {HEADER: str(rank)}
                    answer = await bench.http.post(
                        path, json={"model": MODEL, "stream": stream} | body, headers=headers
                    )
                    assert answer.status_code == 200, answer.text
                received = [len(engine.received) - count for engine, count in zip(engines, before, strict=True)]
                assert received == [1, 0, 3], path
        # Without it all of them do.
        for _ in range(3):
            await bench.chat()
        assert len(engines[1].received) == 1


async def test_generate_takes_the_rank_in_its_body_and_that_wins(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, zmq_engine_count=RANKS) as bench:
        engines = await start_group(bench)
        for _ in range(3):
            body = {"text": "hi", "data_parallel_rank": 1}
            assert (await bench.http.post("/generate", json=body, headers={HEADER: "0"})).status_code == 200
        assert [len(engine.received) for engine in engines] == [0, 3, 0]
        error = error_of(await bench.http.post("/generate", json={"text": "hi", "data_parallel_rank": -1}), 400)
        assert error["param"] == "data_parallel_rank"


@pytest.mark.parametrize(
    ("rank", "param"),
    [("3", "data_parallel_rank"), ("999999999", "data_parallel_rank"), ("-1", HEADER), ("one", HEADER), ("", HEADER),
     ("1.0", HEADER), ("9" * 400, HEADER), ("\u00b2".encode("latin-1"), HEADER)],
)  # fmt: skip
async def test_a_rank_that_does_not_exist_is_refused(tmp_path: Path, rank: str | bytes, param: str) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, zmq_engine_count=RANKS) as bench:
        await start_group(bench)
        for path, body in PATHS.items():
            for stream in (False, True):
                answer = await bench.http.post(path, json={"stream": stream} | body, headers={HEADER: rank})
                assert answer.status_code == 400, (path, answer.text)
                if path != "/v1/messages":
                    assert error_of(answer, 400)["param"] == param
        assert not any(engine.received for engine in bench.engines)
        await bench.wait_idle()


async def test_a_rank_that_is_not_there_now_is_a_503(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, zmq_engine_count=RANKS, disable_retries=True) as bench:
        engines = await start_group(bench)
        bench.kill(engines[1])
        while bench.worker.snapshot().ranks[1].phase == "ready":
            await bench.worker.wait_change()
        answer = await bench.http.post("/v1/completions", json={"prompt": "hi"}, headers={HEADER: "1"})
        assert error_of(answer, 503)["code"] == "no_available_workers"
        answer = await bench.http.post("/v1/completions", json={"prompt": "hi"}, headers={HEADER: "2"})
        assert answer.status_code == 200
