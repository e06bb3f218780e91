from __future__ import annotations

import socket
from itertools import pairwise

import pytest

from smg_trio.core.errors import ConfigError
from smg_trio.launcher.ports import find_ports, port_is_free


def test_ports_are_taken_upwards_a_step_after_each_hit_and_one_after_each_miss() -> None:
    steps = iter([3, 5, 1])
    assert find_ports(3, 100, lambda port: port not in {100, 104}, lambda: next(steps)) == [101, 105, 110]


def test_steps_are_random_and_small() -> None:
    ports = find_ports(200, 1000, lambda port: True)
    steps = {second - first for first, second in pairwise(ports)}
    assert steps == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("base", [65530, 0, 70000])
def test_running_out_of_ports_is_said(base: int) -> None:
    with pytest.raises(ConfigError, match=f"Could not find 9 available ports starting from {base}"):
        find_ports(9, base, lambda port: True, lambda: 1)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_port_with_a_listener_is_not_free(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"this host has no {host}")
        listener.listen()
        port = listener.getsockname()[1]
        assert not port_is_free(port)
    assert port_is_free(port)


def test_connections_that_just_ended_do_not_hold_a_port() -> None:
    with socket.socket() as listener:
        # As libzmq and HTTP servers do; without it their own next start would have to wait as well.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = listener.accept()
        served.close()
        client.close()
    assert port_is_free(port)
