"""What stands between the network and the gateway: keys, certificate, and the files that both may come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smg_trio.gateway.security.api_keys import ApiKeys
from smg_trio.gateway.security.certificates import Certificate, certificate_files
from smg_trio.gateway.security.file_watcher import FileWatcher, WatchedFile

if TYPE_CHECKING:
    from smg_trio.gateway.security.key_ring import KeyRing
    from smg_trio.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the gateway shows and asks for.

    Attributes:
        keys: in force.
        certificate: None for plain HTTP.
        files: reads keys and certificate again when they change.
    """

    keys: KeyRing
    certificate: Certificate | None
    files: FileWatcher


async def open_credentials(settings: Settings) -> Credentials:
    """Read keys and certificate. Raises ConfigError."""
    keys = ApiKeys(settings)
    await keys.read()
    followed = [WatchedFile("API keys", [] if keys.file is None else [keys.file], keys.read)]
    files = certificate_files(settings)
    certificate = None if files is None else Certificate(files)
    if certificate is not None:
        followed.append(WatchedFile("TLS certificate", certificate.files.paths, certificate.read))
    follower = FileWatcher(followed)
    await follower.read_first()
    return Credentials(keys.ring, certificate, follower)
