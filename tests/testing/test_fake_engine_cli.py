from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest
import zmq
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from smg_trio.core.errors import ConfigError
from smg_trio.testing.commands import EngineRequest
from smg_trio.testing.fake_engine_cli import add_arguments, main, script_chooser
from smg_trio.testing.script import EchoScript, LengthScript

from .front_end import init_message, vllm_add

ASKED = EngineRequest(request_id="r", prompt_token_ids=[1], max_tokens=4, eos_token_id=9)
PROGRAM = """
import argparse, sys, trio
from smg_trio.testing.fake_engine_cli import add_arguments, main
parser = argparse.ArgumentParser()
add_arguments(parser)
sys.exit(trio.run(main, parser.parse_args()))
"""


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["--handshake", "tcp://127.0.0.1:1", *words])


def test_words_choose_the_answer() -> None:
    assert isinstance(script_chooser("echo", None)(ASKED), EchoScript)
    assert isinstance(script_chooser("count", None)(ASKED), LengthScript)
    with pytest.raises(ConfigError, match="--model-path"):
        script_chooser("some text", None)


def tiny_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "one": 1, "two": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return tokenizer


def test_a_text_is_said_in_the_tokens_of_the_model_and_ends_with_eos() -> None:
    script = script_chooser("two one", tiny_tokenizer())(ASKED)
    assert [list(tick) for tick in script.ticks(ASKED)] == [[2], [1], [9]]


def test_the_notation_names_tokens_by_their_text() -> None:
    script = script_chooser('E["two"|"one","two"] fin=error', tiny_tokenizer())(ASKED)
    assert [list(tick) for tick in script.ticks(ASKED)] == [[2], [1, 2]]
    assert script.ending.reason == "error"
    with pytest.raises(ConfigError, match="not one token"):
        script_chooser('E["one two"]', tiny_tokenizer())


async def test_a_text_needs_a_tokenizer() -> None:
    with pytest.raises(ConfigError, match="--model-path"):
        await main(parse("--answer", "some text"))


def greet(handshake: zmq.Socket[bytes], inputs: zmq.Socket[bytes], folder: Path, ranks: int) -> None:
    ready = 0
    while ready < ranks:
        identity, message = handshake.recv_multipart()
        if msgpack.unpackb(message)["status"] == "HELLO":
            handshake.send_multipart([identity, init_message(f"ipc://{folder}/in", f"ipc://{folder}/out")])
        else:
            ready += 1
    assert {inputs.recv_multipart()[0] for _ in range(ranks)} == {bytes([rank, 0]) for rank in range(ranks)}


@pytest.mark.parametrize(("crash", "code"), [(False, 0), (True, 1)])
def test_ranks_serve_until_a_signal_or_a_death(tmp_path: Path, crash: bool, code: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    handshake, inputs, outputs = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER), context.socket(zmq.PULL)
    for socket in (handshake, inputs, outputs):
        socket.setsockopt(zmq.RCVTIMEO, 20_000)
    port = handshake.bind_to_random_port("tcp://127.0.0.1")
    inputs.bind(f"ipc://{tmp_path}/in")
    outputs.bind(f"ipc://{tmp_path}/out")
    words = ["--handshake", f"tcp://127.0.0.1:{port}", "--ranks", "2", "--step-ms", "1"]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *words])
    try:
        greet(handshake, inputs, tmp_path, 2)
        inputs.send_multipart([b"\1\0", *vllm_add("a", () if crash else (1, 2), max_tokens=1)])
        if crash:
            assert outputs.recv_multipart() == [b"ENGINE_CORE_DEAD"]
        else:
            assert msgpack.unpackb(outputs.recv_multipart()[0])[0] == 1
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == code
    finally:
        process.kill()
        process.wait()
        context.destroy(linger=0)


def test_a_signal_ends_it_while_it_waits_for_a_gateway() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    handshake = context.socket(zmq.ROUTER)
    handshake.setsockopt(zmq.RCVTIMEO, 20_000)
    port = handshake.bind_to_random_port("tcp://127.0.0.1")
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, "--handshake", f"tcp://127.0.0.1:{port}"])
    try:
        handshake.recv_multipart()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
        context.destroy(linger=0)
