"""Cost of the wire: checking and encoding requests, decoding a step's outputs, for both engine protocols.

    python scripts/bench_wire.py [--json FILE]

Pure computing, no sockets; about ten seconds.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.timing import Rows, cpu_us, parser
from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.requests import GenerationRequest, SamplingParams
from smg_trio.testing.commands import EngineRequest
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.sequences import Load, RunningSequence
from smg_trio.testing.tokenspeed_codec import TokenSpeedCodec as TokenspeedEngine
from smg_trio.testing.vllm_codec import VllmCodec as VllmEngine
from smg_trio.wire.codec import codec_for

PROMPTS = (("32 tokens", 32), ("1k tokens", 1_000), ("32k tokens", 32_000))
STREAMS = (1, 32, 128, 512)
INFO = EngineInfo(max_model_len=65_536, engine_version="0.32.0")
VOCABULARY = 32_000


def request_of(prompt_tokens: int) -> GenerationRequest:
    """A chat request as most are: a temperature, a limit, an end token."""
    sampling = SamplingParams(max_tokens=64, temperature=0.7, eos_token_id=2, all_stop_token_ids=frozenset({2}), seed=1)
    ids = [100 + number % 20_000 for number in range(prompt_tokens)]
    return GenerationRequest(
        request_id="chatcmpl-" + "0" * 32, prompt_token_ids=ids, sampling=sampling, arrival_time=1.0
    )


def step_of(protocol: EngineProtocol, streams: int) -> list[bytes]:
    """The frames of one engine step in which every stream gets one token."""
    options = EngineOptions(protocol=protocol)
    engine = VllmEngine(options) if protocol is EngineProtocol.VLLM else TokenspeedEngine(options)
    saying = []
    for number in range(streams):
        request = EngineRequest(request_id=f"chatcmpl-{number:032x}", prompt_token_ids=[1], max_tokens=64)
        sequence = RunningSequence(request, iter(()), 0.0)
        sequence.first, sequence.token_ids = False, [1_000 + number]
        saying.append(sequence)
    return engine.step(saying, Load(running=streams), 1.0)


def measure(rows: Rows, protocol: EngineProtocol) -> None:
    """All rows of one protocol."""
    codec = codec_for(protocol)
    for name, count in PROMPTS:
        request = request_of(count)
        rows.add(f"{protocol}: check, {name}", cpu_us(partial(codec.check, request, INFO, VOCABULARY)), "request")
        rows.add(f"{protocol}: encode_add, {name}", cpu_us(partial(codec.encode_add, request)), "request")
    for streams in STREAMS:
        frames = step_of(protocol, streams)
        cost = cpu_us(partial(codec.decode_outputs, frames), streams)
        rows.add(f"{protocol}: decode, {streams} streams", cost, "token")


def main() -> None:
    """Measure and show."""
    options = parser("CPU cost of the wire").parse_args()
    rows = Rows()
    for protocol in EngineProtocol:
        measure(rows, protocol)
    rows.show(options.json)


if __name__ == "__main__":
    main()
