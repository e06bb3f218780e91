"""What the settings about media say: limits per modality, and the hosts that media are fetched from. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, get_args

from smg_trio.core.errors import ConfigError
from smg_trio.core.media import Modality

if TYPE_CHECKING:
    from smg_trio.settings.settings import Settings

DEFAULT_PORTS: Final = frozenset({80, 443})
"""What media are fetched from where a rule names no port."""
_DEFAULT_LIMITS: Final[Mapping[Modality, int]] = {"image": 16, "video": 1, "audio": 0}
_RULE: Final = re.compile(r"(?P<below>\*\.)?(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of --mm-fetch-allow.

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


def host_rules(texts: Sequence[str]) -> tuple[HostRule, ...]:
    """What --mm-fetch-allow says. Raises ConfigError."""
    return tuple(_host_rule(text) for entry in texts for text in entry.split(",") if text.strip())


def _host_rule(text: str) -> HostRule:
    found = _RULE.fullmatch(text.strip())
    rule = found and _rule_of(found)
    if not rule:
        remedy = "Write images.example.com, *.example.com or images.example.com:8443; names in their ASCII form."
        if text.strip() == "*":
            remedy = "Use --mm-fetch public for any host with a public address."
        raise ConfigError("--mm-fetch-allow", f"{text!r} is not a host.", remedy)
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


def media_limits(texts: Sequence[str]) -> Mapping[Modality, int]:
    """What --limit-mm says: most items of each modality in one request. Raises ConfigError."""
    limits = dict(_DEFAULT_LIMITS)
    known = {str(modality): modality for modality in get_args(Modality)}
    for text in (text.strip() for entry in texts for text in entry.split(",") if text.strip()):
        name, _, number = text.partition("=")
        if name not in known or not re.fullmatch(r"[0-9]{1,6}", number):
            problem = f"{text!r} does not say how many of which modality."
            raise ConfigError("--limit-mm", problem, f"Write image=16; there are {', '.join(known)}.")
        limits[known[name]] = int(number)
    return limits


def check_media(settings: Settings) -> None:
    """Refuse settings about media that cannot work. Raises ConfigError."""
    rules = host_rules(settings.mm_fetch_allow)
    media_limits(settings.limit_mm)
    if settings.mm_fetch == "allowlist" and not rules:
        raise ConfigError("--mm-fetch-allow", "is missing beside --mm-fetch allowlist.", "Name the hosts.")
    if settings.mm_fetch == "public" and settings.mm_fetch_private:
        raise ConfigError(
            "--mm-fetch-private",
            "cannot go with --mm-fetch public: any client could reach any server in your network.",
            "Use --mm-fetch allowlist and name the hosts in --mm-fetch-allow.",
        )
