"""What stands between the network and the gateway: keys, tokens, certificate, and the files that they may come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smg_trio.core.errors import ConfigError
from smg_trio.core.plugin_calls import PluginCalls
from smg_trio.gateway.plugin_set import AuthPlugin, PluginSet
from smg_trio.gateway.security.api_keys import ApiKeys, default_limits
from smg_trio.gateway.security.authentication import Authentication
from smg_trio.gateway.security.certificates import (
    Certificate,
    certificate_files,
    metrics_certificate_files,
    watch_expiry,
)
from smg_trio.gateway.security.file_watcher import FileWatcher, WatchedFile
from smg_trio.plugins.kinds import AUTH, JWT
from smg_trio.settings.checks import uses_jwt

if TYPE_CHECKING:
    from smg_trio.gateway.security.jwt_keys import IssuerKeys
    from smg_trio.gateway.security.key_ring import KeyRing
    from smg_trio.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the gateway shows and asks for.

    Attributes:
        keys: in force.
        certificate: None for plain HTTP.
        metrics_certificate: of the metrics listener; None for plain HTTP.
        files: reads keys and certificates again when they change.
        auth: looks at tokens that are no keys; None where nothing does.
        issuer_keys: of ``--auth jwt``, to be run if they are fetched.
    """

    keys: KeyRing
    certificate: Certificate | None
    metrics_certificate: Certificate | None
    files: FileWatcher
    auth: Authentication | None = None
    issuer_keys: IssuerKeys | None = None

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Those there are, by listener."""
        both = {"http": self.certificate, "metrics": self.metrics_certificate}
        return {listener: certificate for listener, certificate in both.items() if certificate is not None}

    async def watch_expiry(self) -> None:
        """Warn of certificates that are about to expire; see `watch_expiry`."""
        await watch_expiry(list(self.certificates.values()))


async def open_credentials(settings: Settings, plugins: PluginSet) -> Credentials:
    """Read keys and certificates. Raises ConfigError."""
    keys = ApiKeys(settings)
    await keys.read()
    followed = [WatchedFile("API keys", [] if keys.file is None else [keys.file], keys.read)]
    certificate, metrics_certificate = (
        None if files is None else Certificate(files)
        for files in (certificate_files(settings), metrics_certificate_files(settings))
    )
    for what, one in (
        ("TLS certificate", certificate),
        ("TLS certificate of the metrics listener", metrics_certificate),
    ):
        if one is not None:
            followed.append(WatchedFile(what, one.files.paths, one.read))
    plugin, issuer_keys = plugins.auth, None
    if uses_jwt(settings):
        plugin, issuer_keys = _open_jwt(settings, plugins)
        if issuer_keys.file is None:
            # If the issuer is not there yet, its tokens are answered 503 until it is; the rest of the gateway runs.
            await issuer_keys.refresh()
        else:
            followed.append(WatchedFile("the issuer's keys", [issuer_keys.file], issuer_keys.read))
    auth = None if plugin is None else Authentication(keys.ring, plugin, default_limits(settings))
    follower = FileWatcher(followed)
    await follower.read_first()
    return Credentials(keys.ring, certificate, metrics_certificate, follower, auth, issuer_keys)


def _open_jwt(settings: Settings, plugins: PluginSet) -> tuple[AuthPlugin, IssuerKeys]:
    try:
        # Imported here, so that it costs nothing where there are no tokens, and need not be installed.
        from smg_trio.gateway.security.jwt_auth import JwtAuth
    except ImportError as error:
        raise ConfigError("--auth", f"jwt needs PyJWT ({error}).", "Install smg-trio[jwt].") from None
    jwt_auth = JwtAuth(settings)
    calls = PluginCalls(AUTH.word, JWT, "built in")
    plugins.calls.append(calls)
    return AuthPlugin(JWT, jwt_auth.authenticate, calls, {}), jwt_auth.keys
