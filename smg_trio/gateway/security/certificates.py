"""A listener's TLS certificate: an SSL context made of its files, and made anew when they have changed.

A context is never changed once connections use it: what cannot be loaded leaves the one before in force, and open
connections keep theirs. A certificate that is about to expire is warned of once a day.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import ConfigError
from smg_trio.gateway.security.validity import Validity, soonest_end
from smg_trio.http import ALPN_PROTOCOLS

if TYPE_CHECKING:
    from smg_trio.settings.settings import Settings

logger = logging.getLogger("smg_trio.gateway")

_WARN_S = 14 * 86400.0
_WARN_SHARE = 0.25
"""A certificate is about to expire when so much time is left, or this share of its life if that is less: certificates
that are renewed every few days are not always about to."""
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files.

    Attributes:
        cert: the server's certificate, followed by those between it and the root.
        key: its private key, not encrypted.
        client_ca: clients need a certificate signed by one of these; None: clients need no certificate.
        flags: beginning of the flags that name them.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    flags: str = "--tls-"

    @property
    def paths(self) -> list[Path]:
        """All of them."""
        return [path for path in (self.cert, self.key, self.client_ca) if path is not None]


def certificate_files(settings: Settings) -> CertificateFiles | None:
    """The files that checked settings name for HTTP; None without TLS."""
    return _files("--tls-", settings.tls_cert_path, settings.tls_key_path, settings.tls_client_ca_path)


def metrics_certificate_files(settings: Settings) -> CertificateFiles | None:
    """The files that checked settings name for the metrics listener; None without TLS."""
    return _files(
        "--prometheus-tls-",
        settings.prometheus_tls_cert_path,
        settings.prometheus_tls_key_path,
        settings.prometheus_tls_client_ca_path,
    )


def _files(flags: str, cert: str | None, key: str | None, client_ca: str | None) -> CertificateFiles | None:
    if cert is None or key is None:
        return None
    return CertificateFiles(Path(cert), Path(key), None if client_ca is None else Path(client_ca), flags)


class Certificate:
    """The certificate in force. `read` it before `context` is asked for.

    Attributes:
        files: where it is read.
        validity: of the certificate in the file that expires first; None if that could not be read.
        watched: `watch_expiry` warns of it, here and when it is read again: in one of a gateway's processes.
    """

    def __init__(self, files: CertificateFiles, now: Callable[[], float] = time.time) -> None:
        """`now`: seconds since the epoch."""
        self.files = files
        self.validity: Validity | None = None
        self.watched = False
        self._now = now
        self._context: ssl.SSLContext | None = None

    async def read(self) -> None:
        """Put what the files hold now in force. Raises ConfigError; then nothing has changed."""
        self._context, self.validity = await trio.to_thread.run_sync(_load_both, self.files)
        if self.watched:
            self.warn_of_expiry()

    def context(self) -> ssl.SSLContext:
        """What the next connection is to be greeted with."""
        assert self._context is not None, "a certificate is read before it is used"
        return self._context

    def warn_of_expiry(self) -> None:
        """Say so in the log if it is about to expire, or has."""
        if self.validity is None:
            return
        begins, ends = self.validity
        left_s = ends - self._now()
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ends))
        if left_s <= 0:
            logger.error("TLS certificate %s has expired (%s): clients refuse it", self.files.cert, when)
        elif left_s < min(_WARN_S, _WARN_SHARE * (ends - begins)):
            left = f"{left_s / _DAY_S:.0f} days" if left_s >= 2 * _DAY_S else f"{left_s / 3600:.0f} hours"
            logger.warning("TLS certificate %s expires in %s (%s)", self.files.cert, left, when)


async def watch_expiry(certificates: Sequence[Certificate]) -> None:
    """Warn of those that are about to expire, now and once a day; returns immediately if there are none."""
    while certificates:
        for certificate in certificates:
            certificate.watched = True
            certificate.warn_of_expiry()
        await trio.sleep(_DAY_S)


def _load_both(files: CertificateFiles) -> tuple[ssl.SSLContext, Validity | None]:
    return load_context(files), soonest_end(files.cert.read_text("ascii", "replace"))


def load_context(files: CertificateFiles) -> ssl.SSLContext:
    """The context of these files: TLS 1.2 or newer, h2 and HTTP/1.1. Raises ConfigError."""
    for name, path in (("cert", files.cert), ("key", files.key), ("client-ca", files.client_ca)):
        if path is not None:
            _check_readable(f"{files.flags}{name}-path", path)
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
            flag = f"{files.flags}client-ca-path"
            raise ConfigError(flag, f"{client_ca} holds no certificate.", "Give PEM certificates.") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_readable(flag: str, path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(flag, f"cannot read {path}: {error.strerror}.", "Name a file this user may read.") from None


def _load(load: Callable[[], None], files: CertificateFiles) -> None:
    cert_flag, key_flag = f"{files.flags}cert-path", f"{files.flags}key-path"
    try:
        load()
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                key_flag,
                f"{files.key} is not the key of the certificate {files.cert}.",
                "Give the two that belong together.",
            ) from None
        if _is_encrypted(files.key):
            remedy = "Decrypt it: openssl pkey -in IN -out OUT."
            raise ConfigError(key_flag, f"{files.key} is encrypted.", remedy) from None
        problem = f"{files.cert} and {files.key} cannot be used ({error.reason or 'no PEM'})."
        raise ConfigError(cert_flag, problem, "Give a certificate and its key, both PEM.") from None


def _is_encrypted(key: Path) -> bool:
    try:
        return "ENCRYPTED" in key.read_text("ascii", "replace")
    except OSError:
        return False
