"""What the settings mean to workers behind HTTP. Reads the files they name."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from smg_trio.core.errors import ConfigError
from smg_trio.upstream.client import UpstreamLimits
from smg_trio.upstream.http_worker import HttpWorkerOptions

if TYPE_CHECKING:
    from smg_trio.settings.settings import Settings

_HEALTH_INTERVAL_S: Final = 10.0


def http_worker_options(settings: Settings) -> HttpWorkerOptions:
    """How the workers behind HTTP of a gateway are reached. Raises ConfigError for a file that cannot be used."""
    worker_api_key(settings)  # read when workers are added; what is wrong with it is said at the start
    return HttpWorkerOptions(
        limits=UpstreamLimits(
            first_byte_s=settings.upstream_first_byte_secs,
            silence_s=settings.upstream_silence_secs,
            idle_s=settings.upstream_idle_secs,
        ),
        health_path=settings.health_check_endpoint,
        health_interval_s=min(_HEALTH_INTERVAL_S, settings.health_check_interval_secs),
        health_timeout_s=settings.health_check_timeout_secs,
        tls=None if settings.upstream_ca is None else _trusting(settings.upstream_ca),
    )


def _trusting(path: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            "--upstream-ca", f"{path} cannot be read ({reason}).", "Name a file of PEM certificates."
        ) from None


def worker_api_key(settings: Settings) -> str | None:
    """The key that the http(s) workers of the settings are sent. Raises ConfigError for its file."""
    if settings.worker_api_key_file is None:
        return settings.worker_api_key
    path = Path(settings.worker_api_key_file)
    try:
        key = path.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError("--worker-api-key-file", f"{path} cannot be read ({reason}).") from None
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError("--worker-api-key-file", f"{path} has no key in its first line.")
    return key
