from __future__ import annotations

import logging
from pathlib import Path

import pytest

from smg_trio.config import Settings
from smg_trio.core.errors import ConfigError, Unauthorized
from smg_trio.gateway.api_keys import ApiKeys, load_api_keys, read_api_keys


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer key"},
        {"authorization": "bearer key"},
        {"authorization": "Bearer  key "},
        {"x-api-key": "key"},
        {"authorization": "Basic eDp5", "x-api-key": "key"},
    ],
    ids=str,
)
def test_the_right_key_passes(headers: dict[str, str]) -> None:
    ApiKeys(["other", "key"]).check(headers)
    ApiKeys([" key "]).check(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "key"},
        {"authorization": "Bearer KEY"},
        {"authorization": "Bearer ke"},
        {"authorization": "Bearer keyy"},
        {"authorization": "Bearer key key"},
        {"authorization": "Token key"},
        {"x-api-key": ""},
        {"x-api-key": "Bearer key"},
    ],
    ids=str,
)
def test_any_other_key_does_not(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthorized):
        ApiKeys(["other", "key"]).check(headers)


def test_without_a_key_set_everybody_passes() -> None:
    ApiKeys().check({})
    ApiKeys().check({"authorization": "Bearer anything"})


def test_a_key_that_is_not_ascii_is_compared_as_the_bytes_the_client_sent() -> None:
    ApiKeys(["schlüssel"]).check({"authorization": "Bearer " + "schlüssel".encode().decode("latin-1")})
    with pytest.raises(Unauthorized):
        ApiKeys(["schlüssel"]).check({"authorization": "Bearer schlussel"})


def test_every_one_of_several_keys_passes_and_no_mixture_of_them() -> None:
    keys = ApiKeys(["first", "second", "first"])
    assert len(keys) == 2
    for key in ("first", "second"):
        keys.check({"x-api-key": key})
    for key in ("firstsecond", "first second", "first,second", "f", "s"):
        with pytest.raises(Unauthorized):
            keys.check({"x-api-key": key})


def test_the_keys_are_kept_as_hashes_only() -> None:
    keys = ApiKeys(["sesame"])
    kept = b"".join(keys._digests)
    assert b"sesame" not in kept
    assert "sesame" not in repr(keys)


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_file_has_one_key_per_line(tmp_path: Path) -> None:
    text = "# the team's\n  one  \n\ntwo#2\r\n   # gone: three\nfour words in it"
    assert read_api_keys(write(tmp_path / "keys", text)) == ["one", "two#2", "four words in it"]


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_a_file_without_a_key_does_not_let_everybody_in(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"--api-key-file: .* holds no key"):
        read_api_keys(write(tmp_path / "keys", text))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere: No such file"):
        read_api_keys(tmp_path / "nowhere")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no UTF-8"):
        read_api_keys(tmp_path / "binary")


def test_a_file_that_everybody_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "smg_trio"):
        read_api_keys(write(tmp_path / "shut", "a-key"))
        assert caplog.text == ""
        read_api_keys(write(tmp_path / "open", "a-key", 0o644))
    assert "chmod 600" in caplog.text
    assert "a-key" not in caplog.text


async def test_keys_of_the_file_come_on_top_of_those_of_the_settings(tmp_path: Path) -> None:
    file = write(tmp_path / "keys", "b\nc\n")
    keys = await load_api_keys(Settings(api_key=("a",), api_key_file=str(file)))
    assert len(keys) == 3
    for key in "abc":
        keys.check({"x-api-key": key})
    assert len(await load_api_keys(Settings())) == 0
