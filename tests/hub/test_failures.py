"""What exceptions of the library and the system mean; those that the hub's answers cause are in `test_download`."""

from __future__ import annotations

import errno
import os
import ssl
from pathlib import Path

import pytest

from smg_trio.core.errors import ConfigError, SmgError
from smg_trio.hub.failures import HubUnavailable, explain, no_tokenizer, not_a_model
from smg_trio.hub.names import HubName

NAME = HubName("org/model")
CACHE = Path("/cache")


def meaning(error: Exception) -> SmgError:
    return explain(error, NAME, option="--model-path", endpoint="https://hub", cache=CACHE)


def caused_by(cause: Exception) -> Exception:
    try:
        raise RuntimeError("the library's own words") from cause
    except RuntimeError as error:
        return error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_may_be_emptied(number: int) -> None:
    for error in (OSError(number, os.strerror(number)), caused_by(OSError(number, "x", "/cache/blobs/1"))):
        seen = meaning(error)
        assert isinstance(seen, HubUnavailable)
        assert f"({os.strerror(number)}): free some space there, or set HF_HOME" in seen.message
        assert "/cache" in seen.message


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_cache_that_may_not_be_written_is_the_operator_s_matter(number: int) -> None:
    seen = meaning(OSError(number, os.strerror(number), "/cache/blobs"))
    assert isinstance(seen, ConfigError)
    assert seen.remedy == "Let this user write there, or set HF_HOME to another directory."


def test_a_socket_that_is_refused_is_the_network(tmp_path: Path) -> None:
    seen = meaning(caused_by(PermissionError(errno.EACCES, "Permission denied")))
    assert isinstance(seen, HubUnavailable)
    assert "cannot be fetched from https://hub (PermissionError: [Errno 13] Permission denied)." in seen.message


def test_certificates_are_named() -> None:
    error = ssl.SSLCertVerificationError("[SSL: CERTIFICATE_VERIFY_FAILED] unable to get local issuer")
    assert meaning(caused_by(error)).message.endswith("SSL_CERT_FILE names the certificates that are trusted.")


def test_what_nobody_foresaw_is_tried_again_and_named() -> None:
    seen = meaning(KeyError("x\ny"))
    assert isinstance(seen, HubUnavailable)
    assert "(KeyError: 'x\\ny')" in seen.message
    assert "(RuntimeError)" in meaning(RuntimeError()).message


def test_remedies_are_in_the_words_of_who_asked() -> None:
    assert "--tokenizer-path" in no_tokenizer(NAME, [], "--model-path").remedy
    assert "label tokenizer_path" in no_tokenizer(NAME, ["x.gguf"], "labels.model_path").remedy


def test_a_client_s_words_are_short_and_in_one_line() -> None:
    assert not_a_model("a\nb", "x").problem == "'a\\nb' is neither a directory nor a model's name."
    assert len(not_a_model("a" * 10_000, "x").problem) < 300
