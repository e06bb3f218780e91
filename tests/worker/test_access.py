"""Which addresses may connect to ``tcp://`` workers."""

from __future__ import annotations

import ipaddress

import pytest

from smg_trio.worker.access import PRIVATE_NETWORKS, is_allowed, is_public


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("127.0.0.1", True),
        ("10.77.0.2", True),
        ("172.31.0.1", True),
        ("172.32.0.1", False),
        ("192.168.1.9", True),
        ("100.64.0.5", True),
        ("8.8.8.8", False),
        ("::1", True),
        ("fd00::1", True),
        ("fe80::1%eth0", True),
        ("2001:db8::1", False),
        ("::ffff:10.0.0.1", True),
        ("::ffff:8.8.8.8", False),
        ("", False),
        ("somewhere", False),
    ],
)
def test_private_addresses_are_allowed_by_default(address: str, allowed: bool) -> None:
    assert is_allowed(address, PRIVATE_NETWORKS) is allowed


def test_only_those_that_are_named_otherwise() -> None:
    networks = (ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("2001:db8::/32"))
    assert is_allowed("10.1.2.3", networks)
    assert is_allowed("2001:db8::1", networks)
    assert not is_allowed("127.0.0.1", networks)


@pytest.mark.parametrize(
    ("endpoint", "public"),
    [
        ("tcp://10.0.0.1:5", False),
        ("tcp://8.8.8.8:5", True),
        ("tcp://[2001:db8::1]:5", True),
        ("tcp://*:5", False),
        ("tcp://[::]:5", False),
    ],
)
def test_public_addresses_are_known(endpoint: str, public: bool) -> None:
    assert is_public(endpoint) is public
