"""The gateway against TokenSpeed's own wire modules: its handshake, its request decoding and checks, its outputs.

Only the scheduler is a toy, since the real one needs a GPU: the n-th token of an answer is 32 + n mod 90. Set
`SMG_TRIO_INTEROP_TOKENSPEED` to a directory that holds the package (`nox -s interop` does).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import shared_path
from tests.interop.cases import BRIEF, MODEL
from tests.interop.conftest import _handshake_port
from tests.interop.processes import Process, start_gateway, start_tokenspeed_peer
from tests.ports import lasting_port

PACKAGE = "SMG_TRIO_INTEROP_TOKENSPEED"
RANKS = 2
ADDED = re.compile(r"^ADD (\S+) (.*)$", re.MULTILINE)
DEATH_SEEN_WITHIN_S = 5.0


class Pair:
    """A gateway with one TokenSpeed worker, and the peers behind it."""

    def __init__(self, python: str, package: Path, model: Path, logs: Path, url: str, ranks: int) -> None:
        self._script = shared_path("interop", "ts_real_wire_engine.py")
        self._peer_arguments = (python, package, self._script, _handshake_port(url))
        self._log = logs / f"tokenspeed-{ranks}"
        port = lasting_port()
        self.url = f"http://127.0.0.1:{port}"
        self.gateway = start_gateway(
            model,
            url,
            port,
            lasting_port(),
            self._log.with_suffix(".gateway"),
            engine_count=ranks,
            backend="tokenspeed",
        )
        self.client = httpx.Client(base_url=self.url, timeout=60.0)
        self.peers = [self.start_peer(rank, ranks) for rank in range(ranks)]

    def start_peer(self, rank: int = 0, ranks: int = 1) -> Process:
        flags = ("--dp-rank", str(rank), "--dp-size", str(ranks), "--vocab", "2048", "--logprobs", "--step-ms", "2")
        return start_tokenspeed_peer(*self._peer_arguments, self._log.with_suffix(f".peer{rank}"), *flags)

    def until_ready(self) -> None:
        self.peers[0].until_answers(f"{self.url}/readiness")

    def added(self) -> list[tuple[str, str]]:
        """Id and fields of every request that a peer decoded."""
        return [match for peer in self.peers for match in ADDED.findall(peer.logged())]

    def stop(self) -> int:
        self.client.close()
        code = self.gateway.stop()
        for peer in self.peers:
            peer.kill()
        return code


@pytest.fixture(scope="module", params=[1, RANKS], ids=["one-engine", "two-ranks"])
def pair(request: pytest.FixtureRequest, vllm_python: str, model: Path, logs: Path) -> Iterator[Pair]:
    package = os.environ.get(PACKAGE)
    if not package:
        pytest.skip(f"{PACKAGE} names no directory with the package tokenspeed")
    with tempfile.TemporaryDirectory(prefix="smg-") as sockets:
        pair = Pair(vllm_python, Path(package), model, logs, f"ipc://{sockets}/ts", request.param)
        try:
            pair.until_ready()
            yield pair
        finally:
            code = pair.stop()
    assert code == 0, "the gateway did not end cleanly on SIGTERM"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": BRIEF, "max_tokens": 12, "seed": 7, **fields}


def chat(pair: Pair, **fields: Any) -> dict[str, Any]:
    response = pair.client.post("/v1/chat/completions", json=body(**fields))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def fields_of(pair: Pair, answer_id: str) -> str:
    """What the peer decoded of the request behind an answer."""
    [fields] = [fields for rid, fields in pair.added() if rid.startswith(answer_id)]
    return fields


def test_a_stream_and_a_whole_answer_are_the_same(pair: Pair) -> None:
    answer = chat(pair, return_token_ids=True, logprobs=True)
    [choice] = answer["choices"]
    assert choice["token_ids"] == [32 + n for n in range(1, 13)]
    assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 12)
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-0.5] * 12
    text = ""
    with pair.client.stream("POST", "/v1/chat/completions", json=body(stream=True)) as response:
        data = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert data.pop() == "[DONE]"
    for chunk in map(json.loads, data):
        text += chunk["choices"][0]["delta"].get("content") or ""
    assert text == choice["message"]["content"] != ""


def test_sampling_reaches_the_engine_as_asked(pair: Pair) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    answer = chat(pair, temperature=0.5, top_k=9, stop_token_ids=[40], response_format=asked)
    fields = fields_of(pair, answer["id"])
    for expected in ("err None", "temp 0.5", "top_k 9", "seed 7", "max 12", "stream True", '"integer"', "regex None"):
        assert expected in fields
    [choice] = answer["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 40)
    assert answer["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    ("constraint", "shown"),
    [
        ({"regex": "[ab]+"}, "regex [ab]+"),
        ({"choice": ["a", "b"]}, "ebnf root ::="),
        ({"grammar": 'root ::= "a"'}, "ebnf root"),
    ],
)
def test_constraints_are_taken(pair: Pair, constraint: dict[str, Any], shown: str) -> None:
    answer = chat(pair, structured_outputs=constraint)
    fields = fields_of(pair, answer["id"])
    assert "err None" in fields
    assert shown in fields


def test_a_client_that_leaves_aborts_its_request(pair: Pair) -> None:
    with pair.client.stream("POST", "/v1/chat/completions", json=body(stream=True, max_tokens=1900)) as response:
        chunk = next(line for line in response.iter_lines() if line)
    answer_id = json.loads(chunk.removeprefix("data: "))["id"]
    aborted = re.compile(rf"^ABORT {answer_id}\S* live$", re.MULTILINE)
    pair.peers[0].until(lambda: any(aborted.search(peer.logged()) for peer in pair.peers), "an abort", 10.0)


def test_all_ranks_take_part(pair: Pair) -> None:
    before = [len(ADDED.findall(peer.logged())) for peer in pair.peers]
    answer = chat(pair, n=8)
    assert len(answer["choices"]) == 8
    share = 8 // len(pair.peers)
    assert [len(ADDED.findall(peer.logged())) - n for peer, n in zip(pair.peers, before, strict=True)] == [
        share for _ in pair.peers
    ]


def test_an_engine_killed_mid_stream_ends_the_answer_and_its_successor_serves(pair: Pair) -> None:
    """Runs last: the peers of this pair are others afterwards."""
    ranks = len(pair.peers)
    with pair.client.stream("POST", "/v1/chat/completions", json=body(stream=True, max_tokens=1900)) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        for peer in pair.peers:
            peer.kill()
        rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    assert [line for line in rest if '"error"' in line] == rest[-2:-1]
    pair.gateway.until_answers(f"{pair.url}/readiness", 503, DEATH_SEEN_WITHIN_S)
    pair.peers[:] = [pair.start_peer(rank, ranks) for rank in range(ranks)]
    pair.until_ready()
    assert chat(pair, return_token_ids=True)["choices"][0]["token_ids"] == [32 + n for n in range(1, 13)]
