"""What the settings about media say: limits per modality, and the hosts that media are fetched from. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, get_args

from smg_trio.core.errors import ConfigError
from smg_trio.core.media import Modality
from smg_trio.settings.hosts import HostRule, read_host_rules

if TYPE_CHECKING:
    from smg_trio.settings.settings import Settings

_DEFAULT_LIMITS: Final[Mapping[Modality, int]] = {"image": 16, "video": 1, "audio": 0}


def host_rules(texts: Sequence[str]) -> tuple[HostRule, ...]:
    """What --mm-fetch-allow says. Raises ConfigError."""
    return read_host_rules(texts, "--mm-fetch-allow", "Use --mm-fetch public for any host with a public address.")


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
