"""``--auth jwt``: tokens that an OpenID Connect issuer, or anyone who publishes keys, has signed.

A token is accepted if one of the issuer's public keys has signed it, and issuer, audience and times are right. It is
called as a plug-in would be, so a verified token is not verified again for a minute (`authentication`).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import jwt

from smg_trio.gateway.security.jwt_claims import ClaimNames, identity_of
from smg_trio.gateway.security.jwt_keys import ALGORITHMS, IssuerKeys
from smg_trio.settings.checks import role_mapping

if TYPE_CHECKING:
    from smg_trio.plugins.auth import Credentials, Identity
    from smg_trio.settings.settings import Settings

logger = logging.getLogger("smg_trio.gateway")

_REMEMBERED_S: Final = 60.0
"""How long a token that has been verified is not verified again."""
_MOST_CHARS: Final = 16_384


class JwtAuth:
    """Verifies tokens. `keys` are the issuer's."""

    def __init__(self, settings: Settings) -> None:
        assert settings.jwt_issuer is not None, "settings are checked"
        self._issuer = settings.jwt_issuer
        self._audience = settings.jwt_audience
        self._leeway_s = settings.jwt_leeway_secs
        self._names = ClaimNames(
            name=settings.jwt_name_claim,
            role=settings.jwt_role_claim,
            mapping=role_mapping(settings.jwt_role_mapping),
            limits=settings.jwt_limits_claim,
        )
        self.keys = IssuerKeys(settings.jwt_jwks_uri, self._issuer)

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        """Whom a token is for; None if it is no valid one. Raises KeysUnavailable."""
        token = credentials.token
        if token.count(".") != 2 or len(token) > _MOST_CHARS:
            return None
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if algorithm not in ALGORITHMS or not isinstance(key_id, (str, type(None))):
                return None
            claims = self._verified(token, algorithm, await self.keys.find(algorithm, key_id))
        except (jwt.InvalidTokenError, ValueError, TypeError) as error:
            logger.info("a token is refused: %s", error)
            return None
        ends_s = float(claims["exp"]) + self._leeway_s - time.time()
        return identity_of(claims, self._names, ttl_s=min(_REMEMBERED_S, ends_s))

    def _verified(self, token: str, algorithm: str, keys: list[Any]) -> dict[str, Any]:
        """The claims. Raises jwt.InvalidTokenError."""
        refusal: jwt.InvalidTokenError = jwt.InvalidTokenError("no key of the issuer fits it")
        for key in keys:
            try:
                return jwt.decode(
                    token,
                    key.key,
                    algorithms=[algorithm],
                    audience=self._audience,
                    issuer=self._issuer,
                    leeway=self._leeway_s,
                    options={"require": ["exp", "iss", "aud"]},
                )
            except jwt.InvalidSignatureError as error:
                refusal = error
        raise refusal
