"""An issuer's keys: fetched in a thread from a URL, or read from a file, and looked up while tokens are verified."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt
import trio

from smg_trio.core.errors import ConfigError

logger = logging.getLogger("smg_trio.gateway")

REFRESH_S: Final = 600.0
"""Keys are fetched again after this long, whether they are missed or not."""
RETRY_S: Final = 10.0
"""At the earliest after this long, if a token names a key that is not there or the last attempt failed."""
_FETCH_LIMIT_S: Final = 5.0
_MOST_BYTES: Final = 1 << 20
_MOST_TRIED: Final = 5
"""Keys that a token without a key id is tried with."""
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "secp256k1": "ES256K"}
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "ES256K", "EdDSA",
)  # fmt: skip


class KeysUnavailable(Exception):
    """No keys have been read yet."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """One public key, and what tokens may be signed with it: never what a token says alone."""

    key_id: str | None
    key: Any
    algorithms: frozenset[str]


def fetch_json(url: str) -> Any:
    """What a URL says, as JSON. Blocks; raises OSError, ValueError."""
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{url} is not an http(s) URL")
    with urllib.request.urlopen(url, timeout=_FETCH_LIMIT_S) as response:  # noqa: S310 - looked at above
        body = response.read(_MOST_BYTES + 1)
    if len(body) > _MOST_BYTES:
        raise ValueError(f"{url} says more than {_MOST_BYTES} bytes")
    return json.loads(body)


class IssuerKeys:
    """The keys in force. `refresh` them before the first look, and whenever they may have changed.

    Args:
        uri: a URL or a file; None: what the issuer's discovery document says.
        issuer: whose they are.
        fetch: see `fetch_json`; called in a thread.
    """

    def __init__(self, uri: str | None, issuer: str, fetch: Callable[[str], Any] = fetch_json) -> None:
        self._uri = uri
        self._issuer = issuer
        self._fetch = fetch
        self._keys: list[IssuerKey] | None = None
        self._tried = float("-inf")
        self._lock = trio.Lock()
        self._limiter = trio.CapacityLimiter(1)
        remote = uri is None or uri.startswith(("https://", "http://"))
        self.file = None if remote else Path(str(uri).removeprefix("file://"))

    async def find(self, algorithm: str, key_id: str | None) -> list[IssuerKey]:
        """The keys that a token with this header may be signed with. Those of a URL are fetched again if none fits.

        Raises KeysUnavailable.
        """
        found = self._fitting(algorithm, key_id)
        if not found and self.file is None and trio.current_time() >= self._tried + RETRY_S:
            await self.refresh()
            found = self._fitting(algorithm, key_id)
        if self._keys is None:
            raise KeysUnavailable(f"the keys of {self._issuer} have not been read yet")
        return found

    def _fitting(self, algorithm: str, key_id: str | None) -> list[IssuerKey]:
        keys = self._keys or ()
        fitting = [key for key in keys if key_id in (None, key.key_id) and algorithm in key.algorithms]
        return fitting[:_MOST_TRIED]

    async def read(self) -> None:
        """Read the file. Raises ConfigError, and changes nothing then."""
        assert self.file is not None, "keys of a URL are fetched"
        try:
            text = await trio.to_thread.run_sync(self.file.read_text, "utf-8")
            self._keys = _key_set(json.loads(text))
        except OSError as error:
            raise ConfigError("--jwt-jwks-uri", f"cannot read {self.file}: {error.strerror}.") from None
        except ValueError as error:
            raise ConfigError("--jwt-jwks-uri", f"{self.file} is not a JSON Web Key Set: {error}.") from None

    async def refresh(self) -> None:
        """Fetch them; where that fails, those from before stay in force and a warning is logged. One at a time."""
        asked = trio.current_time()
        async with self._lock:
            if self._tried >= asked:
                return  # somebody else has, meanwhile
            self._tried = trio.current_time()
            try:
                with trio.fail_after(2 * _FETCH_LIMIT_S):
                    fetched = trio.to_thread.run_sync(self._fetched, abandon_on_cancel=True, limiter=self._limiter)
                    self._keys = await fetched
            except (OSError, ValueError, trio.TooSlowError) as error:
                logger.warning(
                    "keys of the issuer %s cannot be fetched: %s", self._issuer, str(error) or "no answer in time"
                )

    def _fetched(self) -> list[IssuerKey]:
        uri = self._uri
        if uri is None:
            document = self._fetch(self._issuer.rstrip("/") + "/.well-known/openid-configuration")
            uri = document.get("jwks_uri") if isinstance(document, dict) else None
            if not isinstance(uri, str):
                raise ValueError("its discovery document names no jwks_uri")
        return _key_set(self._fetch(uri))

    async def run(self) -> None:
        """Fetch them again and again, until cancelled; sooner while there are none."""
        while True:
            await trio.sleep(REFRESH_S if self._keys is not None else RETRY_S)
            if self.file is None:
                await self.refresh()


def _key_set(value: Any) -> list[IssuerKey]:
    """The keys of a set that this gateway can verify with. Raises ValueError if there is none."""
    listed = value.get("keys") if isinstance(value, dict) else None
    keys: list[IssuerKey] = []
    for one in listed if isinstance(listed, list) else []:
        algorithms = _algorithms_of(one) if isinstance(one, dict) and one.get("use", "sig") == "sig" else frozenset()
        if algorithms:
            try:
                key = jwt.PyJWK.from_dict(one, min(algorithms)).key
            except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
                logger.warning("a key of the issuer is left out: %s", error)
            else:
                keys.append(IssuerKey(one.get("kid"), key, algorithms))
    if not keys:
        raise ValueError("it holds no key that signs tokens")
    return keys


def _algorithms_of(key: dict[str, Any]) -> frozenset[str]:
    """What may be signed with a key; nothing where it is of no kind that is public."""
    kind, curve = key.get("kty"), key.get("crv")
    if kind == "RSA":
        able = {name for name in ALGORITHMS if name.startswith(("RS", "PS"))}
    elif kind == "EC":
        able = {_CURVES[curve]} if curve in _CURVES else set()
    else:
        able = {"EdDSA"} if kind == "OKP" else set()
    named = key.get("alg")
    return frozenset(able if named is None else able & {named})
