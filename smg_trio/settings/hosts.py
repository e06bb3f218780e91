"""Hosts that settings name. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from smg_trio.core.errors import ConfigError

DEFAULT_PORTS: Final = frozenset({80, 443})
"""The ports that are meant where a rule names none."""
_RULE: Final = re.compile(r"(?P<below>\*\.)?(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class HostRule:
    """One host that a setting names.

    Attributes:
        host: name in lower case, or an address as `ipaddress` writes it, without brackets.
        below: the names below `host` are meant, and not `host` itself.
        port: the one port; None for 80 and 443.
    """

    host: str
    below: bool = False
    port: int | None = None

    def allows_port(self, port: int) -> bool:
        """Whether a URL of this port is meant."""
        return port in DEFAULT_PORTS if self.port is None else port == self.port

    def allows_host(self, host: str) -> bool:
        """Whether a URL of this host is meant: lower case, no dot at its end, addresses as `ipaddress` writes them."""
        return host.endswith(f".{self.host}") if self.below else host == self.host


def read_host_rules(texts: Sequence[str], option: str, any_host: str) -> tuple[HostRule, ...]:
    """What an option that names hosts says; `any_host`: the remedy for those who write ``*``. Raises ConfigError."""
    return tuple(
        _host_rule(text.strip(), option, any_host) for entry in texts for text in entry.split(",") if text.strip()
    )


def _host_rule(text: str, option: str, any_host: str) -> HostRule:
    found = _RULE.fullmatch(text)
    rule = found and _rule_of(found)
    if not rule:
        remedy = "Write tools.example.com, *.example.com or tools.example.com:8443; names in their ASCII form."
        raise ConfigError(option, f"{text!r} is not a host.", any_host if text == "*" else remedy)
    return rule


def _rule_of(found: re.Match[str]) -> HostRule | None:
    host, port = found["host"].lower().rstrip("."), found["port"]
    below = found["below"] is not None
    address = host.startswith("[") or re.fullmatch(r"[0-9.]+", host) is not None
    if address:
        try:
            host = str(ip_address(host.strip("[]")))
        except ValueError:
            return None
    if not host or (address and below) or (port is not None and not 0 < int(port) <= 65535):
        return None
    return HostRule(host, below, None if port is None else int(port))
