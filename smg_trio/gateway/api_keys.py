"""The keys that clients may come with. Kept as hashes; a key is compared with all of them, in constant time."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

import trio

from smg_trio.config import Settings
from smg_trio.core.errors import ConfigError, Unauthorized

logger = logging.getLogger("smg_trio.gateway")


class ApiKeys:
    """A set of keys; an empty one lets everybody in."""

    __slots__ = ("_digests",)

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key.strip().encode("utf-8", "replace")) for key in dict.fromkeys(keys)]

    def __len__(self) -> int:
        return len(self._digests)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises Unauthorized unless the request has one of the keys, if there are any.

        The key comes as ``Authorization: Bearer KEY`` or, as Anthropic's clients send it, ``x-api-key: KEY``.
        """
        if not self._digests:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = headers.get("x-api-key", "")
        # Header values are text of one byte per character; the client meant UTF-8 by them.
        digest = _digest(given.strip().encode("latin-1", "replace"))
        known = False
        for expected in self._digests:
            known |= hmac.compare_digest(digest, expected)
        if not known:
            raise Unauthorized("Incorrect API key provided." if given else "An API key is required.")


def _digest(key: bytes) -> bytes:
    # Keys are random words, not passwords: what a hash keeps them from is a look into memory, not a search.
    return sha256(key).digest()


async def load_api_keys(settings: Settings) -> ApiKeys:
    """The keys of the settings and of their file. Raises ConfigError if the file cannot be read or holds none."""
    if settings.api_key_file is None:
        return ApiKeys(settings.api_key)
    return ApiKeys([*settings.api_key, *await trio.to_thread.run_sync(read_api_keys, Path(settings.api_key_file))])


def read_api_keys(path: Path) -> list[str]:
    """The keys in a file: one per line, without empty lines and those that begin with ``#``.

    Raises ConfigError if it cannot be read or holds no key: then everybody would be let in.
    """
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(
            "--api-key-file", f"cannot read {path}: {error.strerror}.", "Name a file this user may read."
        ) from None
    except UnicodeDecodeError:
        raise ConfigError("--api-key-file", f"{path} is no UTF-8 text.", "Write one key per line.") from None
    lines = (line.strip() for line in text.splitlines())
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError("--api-key-file", f"{path} holds no key.", "Write one per line, or leave the option out.")
    if mode & 0o004:
        logger.warning("every user of this host can read the API keys in %s (chmod 600 closes it)", path)
    return keys
