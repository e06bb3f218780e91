"""Worker URLs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.errors import InvalidRequest
from smg_trio.wire.addresses import MAX_SOCKET_PATH_BYTES, handshake_port, parse_worker_url


def test_a_url_names_two_sockets_and_a_port() -> None:
    addresses = parse_worker_url("ipc:///tmp/smg-zmq/ts0.ipc")
    assert addresses.path == "/tmp/smg-zmq/ts0.ipc"
    assert addresses.input == "ipc:///tmp/smg-zmq/ts0.ipc-in.sock"
    assert addresses.output == "ipc:///tmp/smg-zmq/ts0.ipc-out.sock"
    assert addresses.input_path == "/tmp/smg-zmq/ts0.ipc-in.sock"
    assert addresses.output_path == "/tmp/smg-zmq/ts0.ipc-out.sock"
    assert addresses.handshake == "tcp://127.0.0.1:25152"


@pytest.mark.parametrize(
    ("path", "port"),
    [("/tmp/smg-zmq/ts0.ipc", 25152), ("/tmp/smg-zmq/engine-31000", 22714), ("/tmp/smg-zmq/engine-0", 22670)],
)
def test_the_port_is_the_one_other_gateways_derive(path: str, port: int) -> None:
    assert handshake_port(path) == port


def test_a_stated_handshake_address_is_used_verbatim() -> None:
    assert parse_worker_url("ipc:///e", handshake="tcp://0.0.0.0:5").handshake == "tcp://0.0.0.0:5"


@pytest.mark.parametrize(
    ("url", "handshake", "message", "param"),
    [
        ("http://x", None, "ZMQ worker URL must be ipc://<path> or tcp://<host>:<port>, got 'http://x'", "url"),
        ("", None, "ZMQ worker URL must be ipc://<path> or tcp://<host>:<port>, got ''", "url"),
        ("ipc://", None, "ipc:// worker URL must include a socket path", "url"),
        (
            "ipc://@e",
            None,
            "ipc:// worker URL must name a file: every user could connect to the abstract socket '@e'",
            "url",
        ),
        (
            "ipc:///e",
            "ipc:///h",
            "zmq_handshake_address must be a tcp:// address (the engine dials a TCP handshake), got 'ipc:///h'",
            "zmq_handshake_address",
        ),
        ("ipc:///a\0b", None, "ipc:// socket path must not contain NUL", "url"),
        ("ipc:///\ud800", None, "ipc:// socket path is not valid text", "url"),
    ],
)
def test_a_wrong_address_is_refused_in_known_words(url: str, handshake: str | None, message: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_worker_url(url, handshake)
    assert (caught.value.message, caught.value.param) == (message, param)


def test_the_longest_path_is_the_one_whose_output_socket_just_fits() -> None:
    room = MAX_SOCKET_PATH_BYTES - len("-out.sock")
    assert len(parse_worker_url("ipc://" + "x" * room).output_path) == MAX_SOCKET_PATH_BYTES
    for path in ("x" * (room + 1), "é" * (room // 2 + 1)):
        with pytest.raises(InvalidRequest, match="over the system's limit of 107"):
            parse_worker_url("ipc://" + path)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_every_path_has_a_port_in_the_documented_span(path: str) -> None:
    assert 20000 <= handshake_port(path) < 30000


def test_a_tcp_url_names_three_ports() -> None:
    addresses = parse_worker_url("tcp://10.0.0.1:5570")
    assert addresses.remote
    assert (addresses.handshake, addresses.input, addresses.output) == (
        "tcp://10.0.0.1:5570",
        "tcp://10.0.0.1:5571",
        "tcp://10.0.0.1:5572",
    )
    assert addresses.told(1) == (["tcp://10.0.0.1:5571"], ["tcp://10.0.0.1:5572"])
    assert not parse_worker_url("ipc:///e").remote


@pytest.mark.parametrize(
    ("url", "advertise", "bound", "told"),
    [
        ("tcp://0.0.0.0:9", "gpu-gateway.internal", "tcp://*:10", "tcp://gpu-gateway.internal:10"),
        ("tcp://[::]:9", "fd00::1", "tcp://[::]:10", "tcp://[fd00::1]:10"),
        ("tcp://[fd00:0::7]:9", None, "tcp://[fd00::7]:10", "tcp://[fd00::7]:10"),
        ("tcp://127.0.0.1:9", "10.8.0.1", "tcp://127.0.0.1:10", "tcp://10.8.0.1:10"),
    ],
)
def test_engines_are_told_an_address_that_they_can_connect_to(
    url: str, advertise: str | None, bound: str, told: str
) -> None:
    addresses = parse_worker_url(url, advertise=advertise)
    assert addresses.input == bound
    assert addresses.told(1)[0] == [told]


@pytest.mark.parametrize(
    ("url", "options", "param"),
    [
        ("tcp://0.0.0.0:9", {}, "url"),
        ("tcp://[::]:9", {}, "url"),
        ("tcp://10.0.0.1:9", {"advertise": "0.0.0.0"}, "zmq_advertise_host"),
        ("tcp://10.0.0.1:9", {"advertise": "a b"}, "zmq_advertise_host"),
        ("tcp://10.0.0.1:9", {"handshake": "tcp://10.0.0.1:8"}, "zmq_handshake_address"),
        ("tcp://10.0.0.1:9", {"pairs": 2}, "url"),
        ("tcp://gateway:9", {}, "url"),
        ("tcp://10.0.0.1", {}, "url"),
        ("tcp://10.0.0.1:0", {}, "url"),
        ("tcp://10.0.0.1:65534", {}, "url"),
        ("tcp://10.0.0.1:\u0665", {}, "url"),
        ("tcp://:9", {}, "url"),
        ("ipc:///e", {"advertise": "10.0.0.1"}, "zmq_advertise_host"),
    ],
)
def test_a_tcp_address_that_engines_cannot_reach_is_refused(url: str, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_worker_url(url, **options)
    assert caught.value.param == param
