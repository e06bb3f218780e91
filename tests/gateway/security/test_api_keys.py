"""Which keys a gateway has by its settings and its key file, and what happens when the file changes."""

from __future__ import annotations

import logging
from hashlib import sha256
from pathlib import Path

import pytest

from smg_trio.core.errors import ConfigError, Unauthorized
from smg_trio.gateway.security.api_keys import ApiKeys, read_key_file
from smg_trio.gateway.security.key_ring import Access, KeyLimits, Role
from smg_trio.settings.settings import Settings

NONE = KeyLimits()


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere: No such file"):
        read_key_file(tmp_path / "nowhere", NONE)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_key_file(tmp_path / "binary", NONE)


def test_a_file_that_everybody_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "smg_trio"):
        read_key_file(write(tmp_path / "shut", "a-key"), NONE)
        assert caplog.text == ""
        read_key_file(write(tmp_path / "open", "a-key", 0o644), NONE)
    assert "chmod 600" in caplog.text
    assert "a-key" not in caplog.text


async def test_keys_of_the_file_come_on_top_of_those_of_the_settings(tmp_path: Path) -> None:
    file = write(tmp_path / "keys", "b\nc\n")
    keys = ApiKeys(Settings(api_key=("a",), api_key_file=str(file)))
    await keys.read()
    names = [keys.ring.admit(Access.MODELS, {"x-api-key": key}).name for key in "abc"]
    assert names == ["api-key-1", "file-1", "file-2"]
    none = ApiKeys(Settings())
    await none.read()
    assert none.ring.admit(Access.ADMIN, {}).name == ""


async def test_a_toml_file_and_the_flag_give_control_plane_keys(tmp_path: Path) -> None:
    hashed = sha256(b"root").hexdigest()
    file = write(tmp_path / "keys.toml", f'[keys.ops]\nsha256 = "{hashed}"\nrole = "admin"\n')
    settings = Settings(api_key_file=str(file), control_plane_api_keys=("watch:Wall screen:user:see:me",))
    keys = ApiKeys(settings)
    await keys.read()
    assert keys.ring.admit(Access.ADMIN, {"x-api-key": "root"}).name == "ops"
    watcher = keys.ring.admit(Access.LOOK, {"authorization": "Bearer see:me"})
    assert (watcher.name, watcher.role) == ("watch", Role.USER)
    assert not keys.ring.guards_models


async def test_limits_of_the_settings_hold_where_a_key_has_none_of_its_own(tmp_path: Path) -> None:
    text = '[keys.a]\nkey = "a"\n[keys.b]\nkey = "b"\nmax_concurrent_requests = 0\ntokens_per_minute = 5\n'
    file = write(tmp_path / "keys.toml", text)
    settings = Settings(
        api_key=("c",), api_key_file=str(file), key_max_concurrent_requests=3, key_tokens_per_minute=100
    )
    keys = ApiKeys(settings)
    await keys.read()
    limits = [keys.ring.admit(Access.MODELS, {"x-api-key": key}).limits for key in "abc"]
    assert limits == [KeyLimits(3, 100), KeyLimits(None, 5), KeyLimits(3, 100)]
    alone = ApiKeys(Settings(key_tokens_per_minute=7))
    await alone.read()
    assert alone.ring.admit(Access.MODELS, {}).limits == KeyLimits(None, 7)


async def test_reading_anew_replaces_the_keys_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    file = write(tmp_path / "keys", "old\n")
    keys = ApiKeys(Settings(api_key=("told",), api_key_file=str(file)))
    await keys.read()
    ring = keys.ring
    file.write_text("new\n")
    await keys.read()
    for key in ("told", "new"):
        ring.admit(Access.MODELS, {"x-api-key": key})
    with pytest.raises(Unauthorized):
        ring.admit(Access.MODELS, {"x-api-key": "old"})
    file.write_text("# nobody\n")
    with pytest.raises(ConfigError, match="holds no key"):
        await keys.read()
    ring.admit(Access.MODELS, {"x-api-key": "new"})
