"""What happens at the real engine when a client leaves, and at the gateway when the engine dies."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.interop.cases import BRIEF, CHAT, MODEL, brief
from tests.interop.conftest import Gateway
from tests.interop.processes import AT_WORK, GOT_INIT, SAYS_HELLO
from tests.interop.recording import ask

RUNNING = "smg_engine_running_requests"
IN_FLIGHT = "smg_engine_inflight_requests"
CHOICES = 8
STEPS = 1900
LONG_ANSWER: dict[str, Any] = {
    "model": MODEL,
    "messages": BRIEF,
    "max_tokens": STEPS,
    "ignore_eos": True,
    "temperature": 1.0,
    "seed": 1,
    "n": CHOICES,
    "logprobs": True,
    "top_logprobs": 20,
}
"""Eight sequences of 1900 tokens with many candidates each: keeps the engine at work for ten seconds and more."""
STEP = "Running batch with"
"""What the engine logs for every step."""
PROBE = brief("a_short_answer", max_tokens=6)


@contextmanager
def _asked(gateway: Gateway, *, stream: bool, already: int = 0) -> Iterator[socket.socket]:
    """A connection on which the long answer was asked for, once the engine works for it beside `already` others."""
    address = urlsplit(gateway.url)
    body = json.dumps(LONG_ANSWER | {"stream": stream}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        gateway.process.until(lambda: gateway.metric(RUNNING) == already + CHOICES, "the engine at work", 20.0)
        yield connection


def _steps(gateway: Gateway) -> int:
    return gateway.engine.process.logged().count(STEP)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_the_engine_stops_working_for_a_client_that_left(gateway: Gateway, stream: bool) -> None:
    usual = ask(gateway.client, PROBE).comparable()
    before = _steps(gateway)
    with _asked(gateway, stream=stream) as connection:
        assert gateway.metric(IN_FLIGHT) == CHOICES
        if stream:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    left = time.monotonic()
    idle = gateway.process.until(lambda: gateway.metric(RUNNING) == 0, "an idle engine", 10.0)
    assert idle - left < 1.0
    assert _steps(gateway) - before < STEPS * 0.7, "the engine worked the answer through to its end"
    assert gateway.metric(IN_FLIGHT) == 0
    assert [worker["load"] for worker in gateway.client.get("/workers").json()["workers"]] == [0]
    assert ask(gateway.client, PROBE).comparable() == usual


@pytest.mark.parametrize("busy", [True, False], ids=["at_work", "idle"])
def test_a_killed_engine_is_noticed_and_its_successor_serves(
    gateway: Gateway, busy: bool, record_property: Callable[[str, object], None]
) -> None:
    usual = ask(gateway.client, PROBE).comparable()
    if busy:
        with _asked(gateway, stream=True) as streamed, _asked(gateway, stream=False, already=CHOICES) as whole:
            gateway.engine.kill_core()
            _ends_with_an_error_event(_rest(streamed))
            _is_an_engine_error(_rest(whole))
    else:
        gateway.engine.kill_core()
    gateway.process.until_answers(gateway.url + "/readiness", 503, within_s=5.0)
    assert ask(gateway.client, PROBE).status == 503
    assert gateway.metric(IN_FLIGHT) == 0

    gateway.engine.restart()
    engine = gateway.engine.process
    hello = engine.until_logged(SAYS_HELLO)
    init = engine.until_logged(GOT_INIT, within_s=5.0)
    ready = engine.until_answers(gateway.url + "/readiness")
    loaded = engine.until_logged(AT_WORK, within_s=5.0)
    for name, seconds in (("init", init - hello), ("ready", ready - hello), ("loaded", loaded - hello)):
        record_property(f"hello_to_{name}_s", round(seconds, 3))
        print(f"HELLO to {name}: {seconds:.3f} s")
    # Between INIT and READY the engine loads its model; on a busy machine that alone takes longer than the 5 s.
    assert init - hello < 1.0
    assert ready - hello < max(5.0, loaded - hello + 1.0)
    assert ask(gateway.client, PROBE).comparable() == usual


def _rest(connection: socket.socket) -> bytes:
    """What arrives until the other side closes."""
    connection.settimeout(20.0)
    received = bytearray()
    while piece := connection.recv(1 << 20):
        received += piece
    return bytes(received)


def _ends_with_an_error_event(response: bytes) -> None:
    """A stream that broke off says so, in an event that clients know how to read, and then ends properly."""
    head, _, _ = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    events = [line.rstrip(b"\r") for line in response.split(b"\n") if line.startswith(b"data: ")]
    assert events[-1] == b"data: [DONE]"
    error = json.loads(events[-2].removeprefix(b"data: "))["error"]
    assert error["message"]


def _is_an_engine_error(response: bytes) -> None:
    """An answer that could not be finished is an error body with a status of the 500s."""
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.split(b" ")[1] in {b"500", b"502", b"503"}
    assert json.loads(body)["error"]["message"]
