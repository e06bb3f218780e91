"""What a gateway with these settings leaves open, and the flag that closes it. Pure."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smg_trio.gateway.security.key_ring import KeyRing
    from smg_trio.settings.settings import Settings


def exposures(settings: Settings, keys: KeyRing) -> list[str]:
    """What these settings leave unprotected, each with the flag that protects it."""
    found: list[str] = []
    reach = _reach(settings.host)
    found += _exposures_without_key(keys, reach)
    if settings.tls_cert_path is None and not is_local(settings.host):
        found.append(f"HTTP without TLS on {settings.host} (--tls-cert-path FILE --tls-key-path FILE)")
    if is_everywhere(settings.host):
        found.append(f"HTTP on every interface, {settings.host} (--host 127.0.0.1)")
    if not is_local(settings.prometheus_host) and settings.prometheus_tls_client_ca_path is None:
        closing = "--prometheus-host 127.0.0.1, or --prometheus-tls-client-ca-path FILE"
        found.append(f"metrics without a key on {settings.prometheus_host} ({closing})")
    if "*" in settings.cors_allowed_origins:
        found.append("web pages of any origin (--cors-allowed-origins https://your.site)")
    if "*" in settings.allowed_hosts and not keys.guards_models and is_local(settings.host):
        found.append("web pages by DNS rebinding (--allowed-hosts your.host)")
    return found


def exposure_line(settings: Settings, keys: KeyRing) -> str:
    """`exposures` on one line."""
    found = exposures(settings, keys)
    return f"security: {'; '.join(found)}" if found else "security: all configurable protections are on"


def _exposures_without_key(keys: KeyRing, reach: str) -> list[str]:
    control = "--control-plane-api-keys ID:NAME:ROLE:KEY"
    if keys.guards_models:
        if keys.guards_control_plane:
            return []
        return [f"no control-plane key: anyone who can use models can also manage workers ({control})"]
    if keys.guards_control_plane:
        return [f"no API key: {reach} can use models (--api-key-file FILE)"]
    return [f"no API key: {reach} can use models and manage workers (--api-key-file FILE, {control})"]


def _reach(host: str) -> str:
    return "any process on this host" if is_local(host) else "anyone who can reach this port"


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
