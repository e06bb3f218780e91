"""What a gateway with these settings leaves open, and the flag that closes it. Pure."""

from __future__ import annotations

from ipaddress import ip_address

from smg_trio.config import Settings


def open_doors(settings: Settings) -> list[str]:
    """What is open, each with what closes it; empty if nothing is that these settings could close."""
    doors: list[str] = []
    reach = _reach(settings.host)
    if not (settings.api_key or settings.api_key_file):
        doors.append(f"no API key, so {reach} may use models and manage workers (--api-key-file FILE)")
    if is_everywhere(settings.host):
        doors.append(f"HTTP on every interface, {settings.host} (--host 127.0.0.1)")
    if not is_local(settings.prometheus_host):
        doors.append(f"metrics without a key on {settings.prometheus_host} (--prometheus-host 127.0.0.1)")
    if "*" in settings.cors_allowed_origins:
        doors.append("web pages of any origin (--cors-allowed-origins https://your.site)")
    return doors


def posture_line(settings: Settings) -> str:
    """`open_doors` on one line."""
    doors = open_doors(settings)
    return f"security: open: {'; '.join(doors)}" if doors else "security: nothing is open that a flag would close"


def _reach(host: str) -> str:
    return "every process of this host" if is_local(host) else "whoever reaches this port"


def is_everywhere(host: str) -> bool:
    """Whether listening there means listening on every interface."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return host == ""


def is_local(host: str) -> bool:
    """Whether only this host can reach it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
