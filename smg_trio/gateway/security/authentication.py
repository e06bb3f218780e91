"""Whose a request is where that is not said by a key of the settings alone: ``--auth``.

Keys come first. What they do not fit is shown to the plug-in (or to `jwt_auth`, which is called in the same way), and
the identity that it names has the rights and limits of a key holder. Nobody is let in because it fails.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import trio

from smg_trio.core.errors import Forbidden, GatewayFault, Unauthorized
from smg_trio.core.plugin_calls import PluginMistake
from smg_trio.gateway.plugin_calls import PluginFailed, call_plugin
from smg_trio.gateway.security.key_ring import Access, KeyHolder, KeyLimits, KeyRing, Role, given_key, tag_of
from smg_trio.plugins.auth import Credentials, Identity

if TYPE_CHECKING:
    from smg_trio.gateway.plugin_set import AuthPlugin

LIMIT_S: Final = 2.0
"""How long one call may take."""
_MOST_REMEMBERED: Final = 10_000
_LONGEST_TTL_S: Final = 3600.0
_MOST_CHARS: Final = 256


class AuthUnavailable(GatewayFault):
    """It could not be found out who sends the request."""

    code = "auth_unavailable"


class Authentication:
    """Admits by keys, then by tokens."""

    def __init__(self, keys: KeyRing, plugin: AuthPlugin, limits: KeyLimits) -> None:
        """`limits`: of identities that have none of their own."""
        self._keys = keys
        self._plugin = plugin
        self._limits = limits
        self._remembered: OrderedDict[bytes, tuple[float, tuple[KeyHolder, ...]]] = OrderedDict()

    async def admit(self, access: Access, headers: Mapping[str, str], method: str = "GET", path: str = "") -> KeyHolder:
        """See `KeyRing.admit`. Raises AuthUnavailable if the plug-in fails or takes too long."""
        try:
            return self._keys.admit(access, headers)
        except Unauthorized as error:
            refusal = error
        holders = await self._holders(headers, method, path)
        if not holders:
            raise refusal
        return self._keys.admit(access, headers, holders)

    async def _holders(self, headers: Mapping[str, str], method: str, path: str) -> tuple[KeyHolder, ...]:
        """Whom the token is for, once for each kind of thing that it opens; empty if it is for nobody."""
        token = given_key(headers)
        tag = tag_of(token.encode("latin-1", "replace"))
        until, holders = self._remembered.get(tag, (0.0, ()))
        if trio.current_time() < until:
            return holders
        credentials = Credentials(token=token, headers=headers, method=method, path=path, options=self._plugin.options)
        try:
            identity = await call_plugin(self._plugin.calls, LIMIT_S, self._plugin.authenticate, credentials)
            if identity is None:
                return ()
            holders = self._holders_of(checked_identity(identity))
        except (PluginFailed, PluginMistake) as failure:
            error = failure.error if isinstance(failure, PluginFailed) else failure
            self._plugin.calls.fault(error, "the request is answered 503")
            raise AuthUnavailable("It cannot be found out at present who sends this request. Try again.") from None
        if not holders:
            raise Forbidden("This token opens nothing: it has none of the roles models, user, admin.",
                            key_name=identity.name)  # fmt: skip
        if token and identity.ttl_s > 0:
            self._remember(tag, trio.current_time() + min(identity.ttl_s, _LONGEST_TTL_S), holders)
        return holders

    def _holders_of(self, identity: Identity) -> tuple[KeyHolder, ...]:
        known_as = f"{self._plugin.name}:{identity.id or identity.name}"
        limits = KeyLimits(
            _limit(identity.max_concurrent_requests, self._limits.concurrent_requests),
            _limit(identity.tokens_per_minute, self._limits.tokens_per_minute),
        )
        holders = []
        if Role.MODELS in identity.scopes:
            holders.append(KeyHolder(identity.name, Role.MODELS, limits, known_as))
        for role in (Role.ADMIN, Role.USER):
            if role in identity.scopes:
                holders.append(KeyHolder(identity.name, role, identity=known_as))
                break
        return tuple(holders)

    def _remember(self, tag: bytes, until: float, holders: tuple[KeyHolder, ...]) -> None:
        self._remembered[tag] = (until, holders)
        self._remembered.move_to_end(tag)
        while len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)


def _limit(own: int | None, default: int | None) -> int | None:
    return default if own is None else own or None


def checked_identity(identity: Any) -> Identity:
    """Raises PluginMistake."""
    if not isinstance(identity, Identity):
        raise PluginMistake(f"it returned {type(identity).__name__}, not an Identity or None")
    for what, text in (("name", identity.name), ("id", identity.id or identity.name)):
        if not isinstance(text, str) or not text.strip() or not text.isprintable() or len(text) > _MOST_CHARS:
            raise PluginMistake(f"an identity's {what} must be 1 to {_MOST_CHARS} printable characters")
    for limit in (identity.max_concurrent_requests, identity.tokens_per_minute):
        if limit is not None and (type(limit) is not int or limit < 0):
            raise PluginMistake("an identity's limits must be whole numbers from 0, or None")
    scopes: Any = identity.scopes
    if not isinstance(identity.ttl_s, (int, float)) or not isinstance(scopes, (frozenset, set, tuple, list)):
        raise PluginMistake("an identity's ttl_s must be a number, its scopes a set of texts")
    return identity
