"""The keys of the settings and of their file, put on the ring at the start and whenever the file changes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import ConfigError
from smg_trio.gateway.security.key_files import control_key, plain_keys, read_key_lines, read_key_toml, tenants_key
from smg_trio.gateway.security.key_ring import Key, KeyHolder, KeyLimits, KeyRing, Role
from smg_trio.settings.checks import control_plane_key, tenant_key, uses_jwt

if TYPE_CHECKING:
    from smg_trio.settings.settings import Settings

logger = logging.getLogger("smg_trio.gateway")


class ApiKeys:
    """Where the keys of a gateway come from. `read` them before `ring` is used.

    Attributes:
        ring: the keys in force.
        file: the key file, if there is one.
    """

    def __init__(self, settings: Settings) -> None:
        limits = default_limits(settings)
        self.ring = KeyRing(by_token=roles_by_token(settings))
        self.file = None if settings.api_key_file is None else Path(settings.api_key_file)
        self._limits = limits
        self._everybody = KeyHolder("", limits=limits)
        self._told = plain_keys(settings.api_key, "api-key", limits)
        self._told += [
            tenants_key(tenant_key(text, number), limits) for number, text in enumerate(settings.tenant_api_key, 1)
        ]
        self._told += [
            control_key(control_plane_key(text, number))
            for number, text in enumerate(settings.control_plane_api_keys, 1)
        ]

    async def read(self) -> None:
        """Put the keys of settings and file in force. Raises ConfigError; then nothing has changed."""
        keys = list(self._told)
        if self.file is not None:
            keys += await trio.to_thread.run_sync(read_key_file, self.file, self._limits)
        self.ring.replace(keys, self._everybody)


def roles_by_token(settings: Settings) -> frozenset[Role]:
    """The roles that tokens may give. SMG's flags alone guard the control plane, as they do there."""
    if settings.auth is not None:
        return frozenset(Role)
    return frozenset({Role.USER, Role.ADMIN}) if uses_jwt(settings) else frozenset()


def default_limits(settings: Settings) -> KeyLimits:
    """The limits of keys that have none of their own."""
    return KeyLimits(settings.key_max_concurrent_requests or None, settings.key_tokens_per_minute or None)


def read_key_file(path: Path, limits: KeyLimits) -> list[Key]:
    """The keys in a file, TOML by its name or plain; `limits` of those without their own. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(
            "--api-key-file", f"cannot read {path}: {error.strerror}.", "Name a file this user may read."
        ) from None
    except UnicodeDecodeError:
        raise ConfigError("--api-key-file", f"{path} is not UTF-8 text.", "Write one key per line.") from None
    keys = (read_key_toml if path.suffix == ".toml" else read_key_lines)(text, str(path), limits)
    if mode & 0o004:
        logger.warning("every user of this host can read the API keys in %s (chmod 600 closes it)", path)
    return keys
