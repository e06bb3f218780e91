"""The server's TLS certificate: an SSL context made of its files, and made anew when they have changed.

A context is never changed once connections use it: what cannot be loaded leaves the one before in force, and open
connections keep theirs.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import ConfigError
from smg_trio.http import ALPN_PROTOCOLS

if TYPE_CHECKING:
    from smg_trio.settings.settings import Settings

_CERT, _KEY, _CLIENT_CA = "--tls-cert-path", "--tls-key-path", "--tls-client-ca-path"


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files.

    Attributes:
        cert: the server's certificate, followed by those between it and the root.
        key: its private key, not encrypted.
        client_ca: clients need a certificate signed by one of these; None: clients need no certificate.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> list[Path]:
        """All of them."""
        return [path for path in (self.cert, self.key, self.client_ca) if path is not None]


def certificate_files(settings: Settings) -> CertificateFiles | None:
    """The files that checked settings name; None for plain HTTP."""
    if settings.tls_cert_path is None or settings.tls_key_path is None:
        return None
    client_ca = settings.tls_client_ca_path
    return CertificateFiles(
        Path(settings.tls_cert_path), Path(settings.tls_key_path), None if client_ca is None else Path(client_ca)
    )


class Certificate:
    """The certificate in force. `read` it before `context` is asked for."""

    def __init__(self, files: CertificateFiles) -> None:
        self.files = files
        self._context: ssl.SSLContext | None = None

    async def read(self) -> None:
        """Put what the files hold now in force. Raises ConfigError; then nothing has changed."""
        self._context = await trio.to_thread.run_sync(load_context, self.files)

    def context(self) -> ssl.SSLContext:
        """What the next connection is to be greeted with."""
        assert self._context is not None, "a certificate is read before it is used"
        return self._context


def load_context(files: CertificateFiles) -> ssl.SSLContext:
    """The context of these files: TLS 1.2 or newer, h2 and HTTP/1.1. Raises ConfigError."""
    for flag, path in ((_CERT, files.cert), (_KEY, files.key), (_CLIENT_CA, files.client_ca)):
        if path is not None:
            _check_readable(flag, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(ALPN_PROTOCOLS)
    # A password, even a wrong one, keeps OpenSSL from asking for one at the terminal.
    _load(lambda: context.load_cert_chain(files.cert, files.key, password=""), files)
    if files.client_ca is not None:
        client_ca = files.client_ca
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError:
            raise ConfigError(_CLIENT_CA, f"{client_ca} holds no certificate.", "Give PEM certificates.") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_readable(flag: str, path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(flag, f"cannot read {path}: {error.strerror}.", "Name a file this user may read.") from None


def _load(load: Callable[[], None], files: CertificateFiles) -> None:
    try:
        load()
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                _KEY,
                f"{files.key} is not the key of the certificate {files.cert}.",
                "Give the two that belong together.",
            ) from None
        if _is_encrypted(files.key):
            raise ConfigError(_KEY, f"{files.key} is encrypted.", "Decrypt it: openssl pkey -in IN -out OUT.") from None
        problem = f"{files.cert} and {files.key} cannot be used ({error.reason or 'no PEM'})."
        raise ConfigError(_CERT, problem, "Give a certificate and its key, both PEM.") from None


def _is_encrypted(key: Path) -> bool:
    try:
        return "ENCRYPTED" in key.read_text("ascii", "replace")
    except OSError:
        return False
