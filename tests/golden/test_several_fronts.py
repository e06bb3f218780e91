"""Frames of two front processes on one real vLLM engine: what we send is the same to the byte."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.errors import EngineFault
from smg_trio.core.requests import GenerationRequest, SamplingParams
from smg_trio.wire.codec import check_client_index, codec_for
from smg_trio.wire.handshake import encode_init

RUNS = sorted((Path(__file__).parent / "captured").glob("*-two-fronts.jsonl.xz"))
VLLM = codec_for(EngineProtocol.VLLM)


def to_engine(run: Path, socket: str) -> Iterator[list[bytes]]:
    with lzma.open(run, "rt") as lines:
        for line in lines:
            message = json.loads(line)
            if message["sock"] == socket and message["dir"] == "gw->engine":
                yield [bytes.fromhex(frame) for frame in message["frames"]][1:]


def _request(payload: list[Any]) -> GenerationRequest:
    sampling = payload[3]
    return GenerationRequest(
        request_id=payload[0],
        prompt_token_ids=payload[1],
        arrival_time=payload[5],
        sampling=SamplingParams(
            temperature=sampling["temperature"], max_tokens=sampling["max_tokens"], ignore_eos=sampling["ignore_eos"]
        ),
    )


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name[:5])
def test_init_lists_every_pair(run: Path) -> None:
    [[init]] = to_engine(run, "handshake")
    addresses = msgpack.unpackb(init)["addresses"]
    assert len(addresses["inputs"]) == 3
    assert encode_init(addresses["inputs"], addresses["outputs"]) == init


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name[:5])
def test_requests_and_calls_name_the_process_that_gets_the_outputs(run: Path) -> None:
    seen = set()
    for frames in to_engine(run, "input"):
        payload = msgpack.unpackb(frames[1])
        if frames[0] == b"\x00" and "ignore_eos" in payload[3]:
            client_index = payload[11]
            written = msgpack.unpackb(VLLM.encode_add(_request(payload), client_index=client_index)[1])
            # What our encoder leaves out are defaults, some of which the recorded front wrote.
            written[3]["_all_stop_token_ids"] = []
            assert written == payload[: len(written)]
            assert client_index == 0 or len(written) == 12
        elif frames[0] == b"\x03":
            client_index, call_id, method, arguments = payload
            assert VLLM.encode_utility(call_id, method, arguments, client_index=client_index) == frames
        else:
            continue
        seen.add((frames[0], client_index))
    assert {(b"\x00", 0), (b"\x00", 1), (b"\x03", 0), (b"\x03", 1)} <= seen


@pytest.mark.parametrize("client_index", [-1, 3, 7])
def test_a_pair_that_init_did_not_list_is_refused(client_index: int) -> None:
    with pytest.raises(EngineFault, match="knows 3 socket pair"):
        check_client_index(client_index, EngineInfo(max_model_len=1, pairs=3))
