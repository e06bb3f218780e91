"""What a gateway with these settings leaves open, and the flag that closes it. Pure."""

from __future__ import annotations

from ipaddress import ip_address

from smg_trio.gateway.security.key_ring import KeyRing
from smg_trio.settings.settings import Settings


def exposures(settings: Settings, keys: KeyRing) -> list[str]:
    """What is open, each with what closes it; empty if nothing is that these settings could close."""
    doors: list[str] = []
    reach = _reach(settings.host)
    doors += _exposures_without_key(keys, reach)
    if settings.tls_cert_path is None and not is_local(settings.host):
        doors.append(f"HTTP without TLS on {settings.host} (--tls-cert-path FILE --tls-key-path FILE)")
    if is_everywhere(settings.host):
        doors.append(f"HTTP on every interface, {settings.host} (--host 127.0.0.1)")
    if not is_local(settings.prometheus_host):
        doors.append(f"metrics without a key on {settings.prometheus_host} (--prometheus-host 127.0.0.1)")
    if "*" in settings.cors_allowed_origins:
        doors.append("web pages of any origin (--cors-allowed-origins https://your.site)")
    if "*" in settings.allowed_hosts and not keys.guards_models and is_local(settings.host):
        doors.append("web pages by DNS rebinding (--allowed-hosts your.host)")
    return doors


def exposure_line(settings: Settings, keys: KeyRing) -> str:
    """`exposures` on one line."""
    doors = exposures(settings, keys)
    return f"security: open: {'; '.join(doors)}" if doors else "security: nothing is open that a flag would close"


def _exposures_without_key(keys: KeyRing, reach: str) -> list[str]:
    control = "--control-plane-api-keys ID:NAME:ROLE:KEY"
    if keys.guards_models:
        if keys.guards_control_plane:
            return []
        return [f"no control-plane key, so whoever may use models may also manage workers ({control})"]
    if keys.guards_control_plane:
        return [f"no API key, so {reach} may use models (--api-key-file FILE)"]
    return [f"no API key, so {reach} may use models and manage workers (--api-key-file FILE, {control})"]


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
