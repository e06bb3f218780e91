"""Addresses in every disguise, and which of them a client may send this host to."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.net.addresses import address_in, is_private, is_public

PUBLIC = ["8.8.8.8", "93.184.215.14", "172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0", "192.0.1.0",
          "223.255.255.255", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "2a00:1450::1", "::ffff:8.8.8.8",
          "64:ff9b::8.8.8.8"]  # fmt: skip
PRIVATE = ["127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1",
           "100.127.255.255", "::1", "fc00::1", "fdff::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
           "64:ff9b::10.0.0.1"]  # fmt: skip
NEVER = ["0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "168.63.129.16", "192.0.0.192", "192.0.2.1",
         "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
         "::", "::2", "::127.0.0.1", "fe80::1", "fec0::1", "ff02::1", "2001::1", "2001:db8::1", "2002:7f00:1::",
         "2002:a00:1::", "3fff::1", "64:ff9b:1::1", "100::1", "fd00:ec2::254", "::ffff:169.254.169.254",
         "64:ff9b::169.254.169.254", "::ffff:0.0.0.0", "4000::1", "5f00::1"]  # fmt: skip


@pytest.mark.parametrize("text", PUBLIC)
def test_the_internet_is_public(text: str) -> None:
    assert is_public(ip_address(text))
    assert not is_private(ip_address(text))


@pytest.mark.parametrize("text", PRIVATE)
def test_ones_own_network_is_private(text: str) -> None:
    assert is_private(ip_address(text))
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("text", NEVER)
def test_everything_else_is_neither(text: str) -> None:
    assert not is_public(ip_address(text))
    assert not is_private(ip_address(text))


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_what_python_calls_reserved_is_never_public(address: IPv4Address | IPv6Address) -> None:
    mapped = getattr(address, "ipv4_mapped", None)
    odd = address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified
    if not mapped and (odd or address.is_private):
        assert not is_public(address)
    assert not (is_public(address) and is_private(address))


@given(st.ip_addresses(v=4))
def test_what_stands_for_an_ipv4_address_is_judged_as_it(address: IPv4Address) -> None:
    for prefix in ("::ffff:0:0", "64:ff9b::"):
        disguised = IPv6Address(int(IPv6Address(prefix)) | int(address))
        assert is_public(disguised) == is_public(address)
        assert is_private(disguised) == is_private(address)


number_forms = st.sampled_from([str, hex, lambda n: f"0{n:o}", lambda n: f"0X{n:08X}", lambda n: f"000{n:o}"])


@given(st.ip_addresses(v=4), st.integers(1, 4), st.lists(number_forms, min_size=4, max_size=4), st.booleans())
def test_every_form_of_an_ipv4_address_is_seen_through(
    address: IPv4Address, parts: int, forms: list[object], dot: bool
) -> None:
    packed = address.packed
    numbers = [*packed[: parts - 1], int.from_bytes(packed[parts - 1 :], "big")]
    host = ".".join(form(number) for form, number in zip(forms, numbers, strict=False))  # type: ignore[operator]
    assert address_in(host + "." * dot) == address
    # What the system's own resolver makes of it is the same.
    assert socket.inet_aton(host) == packed


@given(st.text("0123456789abcdefxX.-", max_size=20))
def test_what_is_taken_for_a_name_is_none_to_the_system_either(host: str) -> None:
    try:
        found = address_in(host)
    except ValueError:
        return
    try:
        packed = socket.inet_aton(host)
    except OSError:
        assert found is None or host.endswith(".")
    else:
        assert found == IPv4Address(packed)


@given(st.ip_addresses(v=6))
def test_ipv6_stands_in_brackets(address: IPv6Address) -> None:
    assert address_in(f"[{address}]") == address_in(f"[{address.exploded}]") == address


@pytest.mark.parametrize("host", ["[::1", "[]", "[::1%eth0]", "[127.0.0.1]", "[fe80::1%25lo]", "1.2.3.4.5", "1.2.3.256",
                                  "256.1.1.1", "4294967296", "1..2", "a.1", "0x", "1.0x", "09", "a.0x1", "9" * 5000,
                                  "." * 9 + "1"])  # fmt: skip
def test_half_an_address_is_refused(host: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # whatever the words are
        address_in(host)


@pytest.mark.parametrize("host", ["localhost", "a.example", "1.example", "0x7f.example", "1-2", "a1", ""])
def test_names_are_names(host: str) -> None:
    assert address_in(host) is None
