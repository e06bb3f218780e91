"""Worker URLs."""

from __future__ import annotations

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
        ("http://x", None, "ZMQ worker URL must be ipc://<path>, got 'http://x'", "url"),
        ("", None, "ZMQ worker URL must be ipc://<path>, got ''", "url"),
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
