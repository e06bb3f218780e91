"""Which addresses a URL from a client may lead to. Pure; of use to whatever connects where a client says.

A client that chooses where this host connects to can reach what it could not reach itself: this host's own services,
its network, and the metadata service of a cloud (server-side request forgery). So an address is public only if it lies
in none of the blocks below; what Python calls ``is_global`` differs between its versions and takes 6to4 for global.

Source of the blocks: IANA's registries of special-purpose IPv4 and IPv6 addresses, and of IPv6 unicast assignments.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

Address = IPv4Address | IPv6Address

_PRIVATE_4: Final = tuple(
    IPv4Network(block)
    for block in (
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' translators; also some clouds' own services
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
    )
)
_NEVER_4: Final = tuple(
    IPv4Network(block)
    for block in (
        "0.0.0.0/8",  # Linux connects to itself
        "168.63.129.16/32",  # Azure's own services on every virtual machine
        "169.254.0.0/16",  # link-local; 169.254.169.254 is the metadata service of most clouds
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_GLOBAL_6: Final = IPv6Network("2000::/3")
_PRIVATE_6: Final = (IPv6Network("::1/128"), IPv6Network("fc00::/7"))
_NEVER_6: Final = tuple(
    IPv6Network(block)
    for block in (
        "2001::/23",  # Teredo, ORCHID and other protocols of the IETF
        "2001:db8::/32",
        "2002::/16",  # 6to4: a relay would connect to the IPv4 address inside
        "3fff::/20",
        "fd00:ec2::/32",  # metadata service of AWS
    )
)
_WITH_IPV4: Final = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))
"""IPv4-mapped, and what NAT64 translates: who connects there ends at the IPv4 address in the last 32 bits."""
_NUMBER: Final = re.compile(r"0[xX][0-9A-Fa-f]*|[0-9]+")


def is_public(address: Address) -> bool:
    """Whether it is somebody's host on the internet, which any host may connect to."""
    address = _meant(address)
    if isinstance(address, IPv4Address):
        return not any(address in block for block in (*_PRIVATE_4, *_NEVER_4))
    return address in _GLOBAL_6 and not any(address in block for block in _NEVER_6)


def is_private(address: Address) -> bool:
    """Whether it is this host, or one of a network that its operator runs; never link-local, nor of a cloud's own."""
    address = _meant(address)
    if isinstance(address, IPv4Address):
        return any(address in block for block in _PRIVATE_4)
    return any(address in block for block in _PRIVATE_6) and not any(address in block for block in _NEVER_6)


def _meant(address: Address) -> Address:
    """The IPv4 address that one of IPv6 stands for, if it does."""
    if isinstance(address, IPv6Address) and any(address in block for block in _WITH_IPV4):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def address_in(host: str) -> Address | None:
    """The address that a URL's host is written as, or None if it is a name.

    Takes every form that some resolver takes: ``127.1``, ``0x7f000001``, ``017700000001``, ``2130706433``, and IPv6 in
    brackets (WHATWG URL, "host parsing"). So nothing that reaches a resolver is an address in disguise.

    Raises:
        ValueError: it ends in a number, as names never do, but is no address.
    """
    if host.startswith("["):
        if not host.endswith("]") or "%" in host:
            raise ValueError("not an IPv6 address")
        return IPv6Address(host[1:-1])
    labels = host.removesuffix(".").split(".")
    if not _NUMBER.fullmatch(labels[-1]):
        return None
    if len(labels) > 4:
        raise ValueError("an IPv4 address of more than four parts")
    *parts, last = [_number(label) for label in labels]
    if any(part > 255 for part in parts) or last >= 256 ** (4 - len(parts)):
        raise ValueError("a part of an IPv4 address is too large")
    return IPv4Address(last + sum(part << (24 - 8 * place) for place, part in enumerate(parts)))


def _number(label: str) -> int:
    if not _NUMBER.fullmatch(label) or len(label) > 64:
        raise ValueError("a part of an IPv4 address is no number")
    if label[:2].lower() == "0x":
        return int(label, 16)
    return int(label, 8) if len(label) > 1 and label.startswith("0") else int(label)
