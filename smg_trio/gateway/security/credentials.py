"""What stands between the network and the gateway: keys, tokens, certificate, and the files that they may come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smg_trio.core.errors import ConfigError
from smg_trio.core.plugin_calls import PluginCalls
from smg_trio.gateway.plugin_set import AuthPlugin, PluginSet
from smg_trio.gateway.security.api_keys import ApiKeys, default_limits
from smg_trio.gateway.security.authentication import Authentication
from smg_trio.gateway.security.certificates import Certificate, certificate_files
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
        files: reads keys and certificate again when they change.
        auth: looks at tokens that are no keys; None where nothing does.
        issuer_keys: of ``--auth jwt``, to be run if they are fetched.
    """

    keys: KeyRing
    certificate: Certificate | None
    files: FileWatcher
    auth: Authentication | None = None
    issuer_keys: IssuerKeys | None = None


async def open_credentials(settings: Settings, plugins: PluginSet) -> Credentials:
    """Read keys and certificate. Raises ConfigError."""
    keys = ApiKeys(settings)
    await keys.read()
    followed = [WatchedFile("API keys", [] if keys.file is None else [keys.file], keys.read)]
    files = certificate_files(settings)
    certificate = None if files is None else Certificate(files)
    if certificate is not None:
        followed.append(WatchedFile("TLS certificate", certificate.files.paths, certificate.read))
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
    return Credentials(keys.ring, certificate, follower, auth, issuer_keys)


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
