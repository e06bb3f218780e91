"""Key files: text → keys. Pure.

A plain file has one key per line. A TOML file has a table per key holder::

    [keys.alice]
    key = "sk-..."                    # or sha256 = "9f86d0...", or a list of either
    max_concurrent_requests = 8       # 0: no limit; left out: --key-max-concurrent-requests
    tokens_per_minute = 60000         # 0: no limit; left out: --key-tokens-per-minute

    [keys.on-call]
    sha256 = "2c26b4..."
    role = "admin"                    # models (the default), user or admin

In both, ``sha256:`` and 64 hexadecimal digits stand for the key with that hash.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from smg_trio.core.errors import ConfigError
from smg_trio.gateway.security.key_ring import Key, KeyHolder, KeyLimits, Role, digest_of

if TYPE_CHECKING:
    from smg_trio.settings.checks import ControlPlaneKey, TenantKey

_OPTION: Final = "--api-key-file"
_HASHED: Final = re.compile(r"sha256:([0-9a-fA-F]{64})")
_HASH: Final = re.compile(r"[0-9a-fA-F]{64}")
_FIELDS: Final = frozenset({"key", "sha256", "role", "max_concurrent_requests", "tokens_per_minute"})


def plain_keys(texts: Iterable[str], prefix: str, limits: KeyLimits) -> list[Key]:
    """Keys for models whose holders are named ``prefix-1`` and so on; of one that comes twice the first counts."""
    keys: dict[bytes, Key] = {}
    for number, text in enumerate(texts, 1):
        digest = digest_of(text.strip().encode("utf-8", "replace"))
        holder = KeyHolder(f"{prefix}-{number}", limits=limits, identity=digest.hex())
        keys.setdefault(digest, Key(digest, holder))
    return list(keys.values())


def read_key_lines(text: str, file: str, limits: KeyLimits) -> list[Key]:
    """The keys of a plain file: one per line, without empty lines and those that begin with ``#``.

    `file` is its name for messages. Raises ConfigError if it holds none: then every request would be let in.
    """
    lines = (line.strip() for line in text.splitlines())
    words = [line for line in lines if line and not line.startswith("#")]
    if not words:
        raise ConfigError(_OPTION, f"{file} holds no key.", "Write one per line, or leave the option out.")
    keys: dict[bytes, Key] = {}
    for number, word in enumerate(words, 1):
        digest = _digest_of_text(word)
        keys.setdefault(digest, Key(digest, KeyHolder(f"file-{number}", limits=limits, identity=digest.hex())))
    return list(keys.values())


def control_key(entry: ControlPlaneKey) -> Key:
    """The key of an entry of --control-plane-api-keys, which may be a hash too; its holder is named as its id."""
    return Key(_digest_of_text(entry.key), KeyHolder(entry.id, Role(entry.role), identity=f"control:{entry.id}"))


def tenants_key(entry: TenantKey, limits: KeyLimits) -> Key:
    """The key of an entry of --tenant-api-key, which may be a hash too; its holder is the tenant."""
    return Key(_digest_of_text(entry.key), KeyHolder(entry.tenant, limits=limits, identity=f"tenant:{entry.tenant}"))


def read_key_toml(text: str, file: str, limits: KeyLimits) -> list[Key]:
    """The keys of a TOML file; `limits` hold where a holder has none of its own.

    `file` is its name for messages, which never repeat a key. Raises ConfigError.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # The parser's own words may quote the line at fault, hence only where it is.
        where = re.search(r"\(at .*\)$", str(error))
        raise ConfigError(
            _OPTION, f"{file} is not valid TOML {where.group() if where else ''}".rstrip() + "."
        ) from None
    except RecursionError:
        raise ConfigError(_OPTION, f"{file} is nested too deeply.", "Write a table [keys.NAME] per holder.") from None
    tables = document.pop("keys", {})
    if document or not isinstance(tables, dict):
        found = next(iter(document), "keys")
        raise ConfigError(_OPTION, f"{file} has the unknown key {found!r}.", "Write a table [keys.NAME] per holder.")
    keys: dict[bytes, Key] = {}
    for name, table in tables.items():
        for key in _Table(file, name, table).keys(limits):
            other = keys.setdefault(key.digest, key).holder.name
            if other != name:
                raise ConfigError(_OPTION, f"{file}: {other!r} and {name!r} have the same key.", "Give each its own.")
    if not keys:
        raise ConfigError(_OPTION, f"{file} holds no key.", "Write a table [keys.NAME], or leave the option out.")
    return list(keys.values())


@dataclass(frozen=True, slots=True)
class _Table:
    """One ``[keys.NAME]``, for what may be wrong with it."""

    file: str
    name: str
    table: Any

    def keys(self, limits: KeyLimits) -> list[Key]:
        if not self.name.strip() or not self.name.isprintable():
            raise self._wrong("has a name that no line of the log can show.", "Use letters and digits.")
        if not isinstance(self.table, dict):
            raise self._wrong("is not a table.", f"Write [keys.{_shown(self.name)}], and key = ... below it.")
        unknown = next((field for field in self.table if field not in _FIELDS), None)
        if unknown is not None:
            raise self._wrong(f"has the unknown field {unknown!r}.", f"There are {', '.join(sorted(_FIELDS))}.")
        digests = [_digest_of_text(key) for key in self._texts("key")]
        for hashed in self._texts("sha256"):
            if not _HASH.fullmatch(hashed):
                raise self._wrong("has a sha256 that is not 64 hexadecimal digits.", "printf %s KEY | sha256sum")
            digests.append(bytes.fromhex(hashed))
        if not digests:
            raise self._wrong("has neither key nor sha256.", "Give it one of them.")
        holder = self._holder(limits)
        return [Key(digest, holder) for digest in digests]

    def _holder(self, limits: KeyLimits) -> KeyHolder:
        role = self.table.get("role", Role.MODELS.value)
        if role not in tuple(Role):
            raise self._wrong("has an unknown role.", f"Use {', '.join(Role)}.")
        if role != Role.MODELS:
            limits = KeyLimits()
        concurrent, tokens = self._limit("max_concurrent_requests"), self._limit("tokens_per_minute")
        if concurrent is not None:
            limits = replace(limits, concurrent_requests=concurrent or None)
        if tokens is not None:
            limits = replace(limits, tokens_per_minute=tokens or None)
        return KeyHolder(self.name, Role(role), limits, identity=f"named:{self.name}")

    def _texts(self, field: str) -> list[str]:
        value = self.table.get(field, [])
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
            raise self._wrong(f"has a {field} that is no text, or an empty one.", "Give a text, or a list of texts.")
        return [text.strip() for text in texts]

    def _limit(self, field: str) -> int | None:
        value = self.table.get(field)
        if value is None:
            return None
        if type(value) is not int or value < 0:
            raise self._wrong(f"has a {field} that is no number from 0.", "0 means no limit.")
        return value

    def _wrong(self, problem: str, remedy: str) -> ConfigError:
        return ConfigError(_OPTION, f"{self.file}: [keys.{_shown(self.name)}] {problem}", remedy)


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _digest_of_text(text: str) -> bytes:
    hashed = _HASHED.fullmatch(text)
    return bytes.fromhex(hashed.group(1)) if hashed else digest_of(text.encode("utf-8", "replace"))
