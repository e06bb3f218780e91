from __future__ import annotations

from hashlib import sha256

import pytest

from smg_trio.core.errors import ConfigError
from smg_trio.gateway.security.key_files import control_key, plain_keys, read_key_lines, read_key_toml
from smg_trio.gateway.security.key_ring import KeyLimits, Role, digest_of
from smg_trio.settings.checks import control_plane_key

NONE = KeyLimits()
HASH = sha256(b"secret").hexdigest()


def test_a_key_file_has_one_key_per_line() -> None:
    text = "# the team's\n  one  \n\ntwo#2\r\n   # gone: three\nfour words in it"
    keys = read_key_lines(text, "f", NONE)
    assert [key.digest for key in keys] == [digest_of(word) for word in (b"one", b"two#2", b"four words in it")]
    assert [key.holder.name for key in keys] == ["file-1", "file-2", "file-3"]


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_a_file_without_a_key_does_not_let_everybody_in(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--api-key-file: .* holds no key"):
        read_key_lines(text, "f", NONE)
    with pytest.raises(ConfigError, match=r"--api-key-file: .* holds no key"):
        read_key_toml(text, "f", NONE)


def test_a_hash_stands_for_its_key_in_every_kind_of_file() -> None:
    digest = digest_of(b"secret")
    assert read_key_lines(f"sha256:{HASH.upper()}", "f", NONE)[0].digest == digest
    assert read_key_toml(f'[keys.a]\nsha256 = "{HASH}"', "f", NONE)[0].digest == digest
    assert read_key_toml(f'[keys.a]\nkey = "sha256:{HASH}"', "f", NONE)[0].digest == digest
    assert control_key(control_plane_key(f"i:n:user:sha256:{HASH}", 1)).digest == digest
    # What only begins like one is a key as any other.
    assert read_key_lines("sha256:abc", "f", NONE)[0].digest == digest_of(b"sha256:abc")


def test_a_key_on_the_command_line_is_never_taken_for_a_hash() -> None:
    text = f"sha256:{HASH}"
    assert plain_keys([text], "k", NONE)[0].digest == digest_of(text.encode())


def test_a_holder_may_have_several_keys_and_limits() -> None:
    text = f"""
    [keys.alice]
    key = ["old", "new"]
    sha256 = "{HASH}"
    max_concurrent_requests = 2
    [keys."on call"]
    key = "x"
    role = "admin"
    """
    keys = read_key_toml(text, "f", KeyLimits(9, 9))
    alice = keys[0].holder
    assert [key.holder for key in keys[:3]] == [alice] * 3
    assert {key.digest for key in keys[:3]} == {digest_of(word) for word in (b"old", b"new", b"secret")}
    assert (alice.name, alice.role, alice.limits) == ("alice", Role.MODELS, KeyLimits(2, 9))
    assert (keys[3].holder.name, keys[3].holder.role, keys[3].holder.limits) == ("on call", Role.ADMIN, NONE)


def test_a_holder_is_known_again_by_name_and_a_line_by_its_key() -> None:
    toml = [read_key_toml(f'[keys.a]\nkey = "{word}"', "f", NONE)[0].holder.identity for word in ("x", "y")]
    assert toml[0] == toml[1]
    first, second = (read_key_lines(text, "f", NONE) for text in ("x\ny", "new\nx\ny"))
    assert [key.holder.identity for key in second][1:] == [key.holder.identity for key in first]


WRONG = [
    ("keys = 5", "unknown key 'keys'"),
    ("[key.a]\nkey = 's3cret'", "unknown key 'key'"),
    ("[keys]\na = 's3cret'", r"\[keys.a\] is not a table"),
    ("[keys.a]", "neither key nor sha256"),
    ("[keys.a]\nkey = ''", "no text, or an empty one"),
    ("[keys.a]\nkey = 5", "no text, or an empty one"),
    ("[keys.a]\nkey = ['s3cret', 5]", "no text, or an empty one"),
    ("[keys.a]\nsha256 = 's3cret'", "not 64 hexadecimal digits"),
    ("[keys.a]\nkey = 's3cret'\nrole = 'root'", "unknown role"),
    ("[keys.a]\nkey = 's3cret'\nrole = ['admin']", "unknown role"),
    ("[keys.a]\nkey = 's3cret'\nlimit = 5", "unknown field 'limit'"),
    ("[keys.a]\nkey = 's3cret'\ntokens_per_minute = -1", "no number from 0"),
    ("[keys.a]\nkey = 's3cret'\ntokens_per_minute = true", "no number from 0"),
    ("[keys.a]\nkey = 's3cret'\nmax_concurrent_requests = 1.5", "no number from 0"),
    ("[keys.a]\nkey = 's3cret'\n[keys.b]\nkey = 's3cret'", "'a' and 'b' have the same key"),
    ("[keys.a]\nkey = s3cret", r"not valid TOML \(at line 2, column 7\)"),
    ("[keys.a]\nkey = 's3cret'\n[keys.'b\tc']\nkey = 'x'", "name"),
]


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_what_is_wrong_with_a_file_is_said_without_its_keys(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read_key_toml(text, "f.toml", NONE)
    assert "f.toml" in caught.value.message
    assert "s3cret" not in caught.value.message


def test_a_file_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_key_toml(f"a = {'[' * 100_000}", "f", NONE)
