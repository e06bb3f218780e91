"""From the claims of a token that has been verified to an identity. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from smg_trio.plugins.auth import Identity

_ROLES = ("models", "user", "admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNames:
    """Where in a token things are; dots lead into objects.

    Attributes:
        name: whom it is for, to be shown.
        role: what it opens.
        mapping: what other values of that stand for.
        limits: an object of limits; None: tokens have none of their own.
    """

    name: str = "sub"
    role: str = "roles"
    mapping: Mapping[str, str] = field(default_factory=dict)
    limits: str | None = None


def claim(claims: Mapping[str, Any], path: str) -> Any:
    """The claim of that name or, if there is none, at that path; None if there is neither."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def identity_of(claims: Mapping[str, Any], names: ClaimNames, ttl_s: float) -> Identity | None:
    """Whom the token is for; None if it does not say. A token without the claim of roles opens models."""
    subject, name = claim(claims, "sub"), claim(claims, names.name)
    name = name if isinstance(name, str) and name.strip() else subject
    if not isinstance(name, str) or not name.strip():
        return None
    found = claim(claims, names.limits) if names.limits else None
    limits = found if isinstance(found, Mapping) else {}
    return Identity(
        name="".join(letter for letter in name if letter.isprintable())[:256],
        id=f"{claims.get('iss', '')}|{subject}"[:256] if isinstance(subject, str) else "",
        scopes=_roles(claim(claims, names.role), names.mapping),
        max_concurrent_requests=_limit(limits.get("max_concurrent_requests")),
        tokens_per_minute=_limit(limits.get("tokens_per_minute")),
        ttl_s=ttl_s,
    )


def _roles(value: Any, mapping: Mapping[str, str]) -> frozenset[str]:
    if value is None:
        return frozenset({"models"})
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    mapped = {mapping.get(word, word) for word in words if isinstance(word, str)}
    return frozenset(mapped.intersection(_ROLES))


def _limit(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
