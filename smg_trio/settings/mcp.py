"""What the settings about MCP servers say. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.core.errors import ConfigError
from smg_trio.settings.hosts import HostRule, read_host_rules

if TYPE_CHECKING:
    from smg_trio.settings.settings import Settings


def mcp_hosts(settings: Settings) -> tuple[HostRule, ...]:
    """The hosts of --mcp-allow. Raises ConfigError."""
    rules = read_host_rules(
        settings.mcp_allow, "--mcp-allow", "Name each host: its tools can do whatever the server lets them."
    )
    if settings.mcp_private and not rules:
        raise ConfigError("--mcp-private", "has a meaning beside --mcp-allow only.", "Name the hosts, or leave it out.")
    return rules
