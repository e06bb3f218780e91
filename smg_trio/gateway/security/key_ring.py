"""Who a request's key belongs to, and what that lets it do. Pure.

Keys are kept as SHA-256 hashes only. There are two kinds: those for using models, and those of the control plane, for
workers and engines. As long as there is none of the latter, the former open everything.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b, sha256
from secrets import token_bytes
from types import MappingProxyType
from typing import Final

from smg_trio.core.conversations import SHARED
from smg_trio.core.errors import Forbidden, Unauthorized


class Role(StrEnum):
    """What a key is for. USER and ADMIN are the control plane's: looking only, and everything."""

    MODELS = "models"
    USER = "user"
    ADMIN = "admin"


class Access(StrEnum):
    """The access a route needs: to models, any key, to look at workers, to change workers."""

    MODELS = "models"
    ANY_KEY = "any key"
    LOOK = "look"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """How much one key holder may use; None for no limit.

    Attributes:
        concurrent_requests: in flight at once.
        tokens_per_minute: read and written.
    """

    concurrent_requests: int | None = None
    tokens_per_minute: int | None = None

    def __bool__(self) -> bool:
        return self.concurrent_requests is not None or self.tokens_per_minute is not None


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Whom one key, or several, were given to.

    Attributes:
        name: for the log; "" for all clients where no key is needed.
        identity: by which the holder is known again when keys are read anew.
    """

    name: str
    role: Role = Role.MODELS
    limits: KeyLimits = KeyLimits()
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """A key's hash and its holder."""

    digest: bytes
    holder: KeyHolder


_SALT: Final = token_bytes(32)
EVERYBODY: Final = KeyHolder("")
_CONTROL: Final = frozenset({Role.USER, Role.ADMIN})
_REFUSALS: Final = {
    Access.MODELS: "A control-plane key does not open models: an API key is required.",
    Access.LOOK: "An API key for models does not open the control plane: a control-plane key is required.",
    Access.ADMIN: "Admin role required for this control plane operation.",
}


def digest_of(key: bytes) -> bytes:
    """What is kept of a key. Keys are random words, not passwords, so there is nothing that a slow hash would win."""
    return sha256(key).digest()


class KeyRing:
    """The keys in force; without any, every request may do everything."""

    __slots__ = ("_by_token", "_everybody", "_guarded", "_held", "_opens")

    def __init__(
        self, keys: Iterable[Key] = (), everybody: KeyHolder = EVERYBODY, by_token: Collection[Role] = ()
    ) -> None:
        """`by_token`: roles that those may have who come with a token instead of a key."""
        self._by_token = frozenset(by_token)
        self.replace(keys, everybody)

    def replace(self, keys: Iterable[Key], everybody: KeyHolder = EVERYBODY) -> None:
        """Other keys from now on. `everybody`: whom requests without a needed key count for.

        A key may be given for models and for the control plane; of two holders for the same the later one has it.
        """
        self._everybody = everybody
        self._held: dict[bytes, _Held] = {}
        for key in keys:
            held = self._held.setdefault(tag_of(key.digest), _Held(key.digest))
            others = (holder for holder in held.holders if _controls(holder) is not _controls(key.holder))
            held.holders = (*others, key.holder)
        self._opens = _opens({holder.role for held in self._held.values() for holder in held.holders} | self._by_token)
        self._guarded = bool(self._held or self._by_token)

    @property
    def guards_models(self) -> bool:
        """Whether using models needs a key."""
        return self._opens[Access.MODELS] is not None

    @property
    def guards_control_plane(self) -> bool:
        """Whether the control plane has keys of its own."""
        return Role.ADMIN in (self._opens[Access.LOOK] or ())

    @property
    def holders(self) -> set[KeyHolder]:
        """All of them."""
        return {self._everybody, *(holder for held in self._held.values() for holder in held.holders)}

    def owner(self, holder: KeyHolder) -> str:
        """Under whose name the history keeps what `holder` stores; the shared name where models need no key."""
        return holder.identity if self.guards_models else SHARED

    def admit(self, access: Access, headers: Mapping[str, str], by_token: tuple[KeyHolder, ...] = ()) -> KeyHolder:
        """Whose request it is. Raises Unauthorized without a known key, Forbidden if its role does not suffice.

        The key comes as ``Authorization: Bearer KEY`` or, as Anthropic's clients send it, ``x-api-key: KEY``.
        `by_token`: whom it is of by a token that is no key.
        """
        if not self._guarded:
            return self._everybody
        opens = self._opens[access]
        given = given_key(headers)
        found = by_token or self._find(given)
        for holder in found:
            if opens is None or holder.role in opens:
                return holder
        if opens is None:
            return self._everybody
        if not found:
            raise Unauthorized("Incorrect API key provided." if given else "An API key is required.")
        raise Forbidden(_refusal(access, found), key_name=found[0].name)

    def _find(self, given: str) -> tuple[KeyHolder, ...]:
        # Header values are text of one byte per character; the client meant UTF-8 by them.
        digest = digest_of(given.encode("latin-1", "replace"))
        held = self._held.get(tag_of(digest))
        return held.holders if held is not None and hmac.compare_digest(held.digest, digest) else ()


class _Held:
    """One key, and who holds it: one holder for models, one for the control plane, or both."""

    __slots__ = ("digest", "holders")

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.holders: tuple[KeyHolder, ...] = ()


def tag_of(digest: bytes) -> bytes:
    """What a key is looked up by: clients cannot compute it, so the time of a look-up reveals nothing."""
    return blake2b(digest, digest_size=16, key=_SALT).digest()


def _controls(holder: KeyHolder) -> bool:
    return holder.role in _CONTROL


def given_key(headers: Mapping[str, str]) -> str:
    """The key that a request came with; empty if it has none."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = headers.get("x-api-key", "")
    return given.strip()


def _opens(roles: set[Role]) -> Mapping[Access, frozenset[Role] | None]:
    """Which roles open what, if keys of these roles exist; None: no key is needed."""
    models = frozenset({Role.MODELS}) if Role.MODELS in roles else None
    controlled = bool(roles & _CONTROL)
    return MappingProxyType(
        {
            Access.MODELS: models,
            Access.ANY_KEY: None if models is None else frozenset(Role),
            Access.LOOK: _CONTROL if controlled else models,
            Access.ADMIN: frozenset({Role.ADMIN}) if controlled else models,
        }
    )


def _refusal(access: Access, found: tuple[KeyHolder, ...]) -> str:
    if access is Access.ADMIN and not any(map(_controls, found)):
        return _REFUSALS[Access.LOOK]
    return _REFUSALS[access]
