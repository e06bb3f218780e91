from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from smg_trio.core.errors import ConfigError
from smg_trio.gateway.security.certificates import (
    Certificate,
    CertificateFiles,
    certificate_files,
    load_context,
    metrics_certificate_files,
    watch_expiry,
)
from smg_trio.gateway.security.validity import Validity
from smg_trio.settings.settings import Settings
from tests.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def files_of(authority: Authority, client_ca: Path | None = None) -> CertificateFiles:
    return CertificateFiles(authority.cert, authority.key, client_ca)


def test_settings_name_the_files_or_none(authority: Authority) -> None:
    assert certificate_files(Settings()) is None
    settings = Settings(**authority.settings, tls_client_ca_path=str(authority.ca))
    files = certificate_files(settings)
    assert files is not None
    assert files.paths == [authority.cert, authority.key, authority.ca]
    assert metrics_certificate_files(settings) is None
    metrics = metrics_certificate_files(Settings(**authority.metrics_settings))
    assert metrics is not None
    assert metrics.paths == [authority.cert, authority.key]
    assert metrics.flags == "--prometheus-tls-"


def test_old_versions_of_tls_are_not_spoken(authority: Authority) -> None:
    context = load_context(files_of(authority))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE
    assert load_context(files_of(authority, authority.ca)).verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("name", ["cert", "key", "ca"])
@pytest.mark.parametrize("damage", ["missing", "empty", "text", "directory"])
def test_a_file_that_cannot_be_used_is_named(authority: Authority, name: str, damage: str) -> None:
    path: Path = getattr(authority, name)
    path.unlink()
    if damage == "directory":
        path.mkdir()
    elif damage != "missing":
        path.write_text("" if damage == "empty" else "no certificate\n" * 100)
    with pytest.raises(ConfigError, match=str(path)) as caught:
        load_context(files_of(authority, authority.ca))
    assert caught.value.option.startswith("--tls-")


def test_a_key_of_another_certificate_is_told_from_a_broken_one(authority: Authority) -> None:
    cert = authority.cert.read_bytes()
    authority.issue()
    authority.cert.write_bytes(cert)
    with pytest.raises(ConfigError, match="is not the key of the certificate"):
        load_context(files_of(authority))


def test_an_encrypted_key_is_refused_and_no_password_asked_for(authority: Authority) -> None:
    command = ["openssl", "pkey", "-in", str(authority.key), "-aes256", "-passout", "pass:x"]
    try:
        encrypted = subprocess.run(command, check=True, capture_output=True).stdout
    except FileNotFoundError:
        pytest.skip("the openssl command, which encrypts the test's key, is not installed")
    authority.key.write_bytes(encrypted)
    with pytest.raises(ConfigError, match="is encrypted"):
        load_context(files_of(authority))


async def test_what_cannot_be_read_leaves_the_context_in_force(authority: Authority) -> None:
    certificate = Certificate(files_of(authority))
    await certificate.read()
    first = certificate.context()
    authority.cert.write_text("broken")
    with pytest.raises(ConfigError):
        await certificate.read()
    assert certificate.context() is first
    authority.issue()
    await certificate.read()
    assert certificate.context() is not first


YEAR = Validity(0.0, 365 * 86400.0)
WEEK = Validity(0.0, 7 * 86400.0)


@pytest.mark.parametrize(
    ("validity", "days_left", "words"),
    [
        (YEAR, 15, None),
        (YEAR, 13.9, "expires in 14 days (1971-01-01 00:00 UTC)"),
        (YEAR, 1.5, "expires in 36 hours"),
        (YEAR, -0.1, "has expired (1971-01-01 00:00 UTC): clients refuse it"),
        (WEEK, 6.9, None),
        (WEEK, 1.7, "expires in 41 hours"),
    ],
)
def test_the_log_says_what_is_about_to_expire(
    authority: Authority, caplog: pytest.LogCaptureFixture, validity: Validity, days_left: float, words: str | None
) -> None:
    certificate = Certificate(files_of(authority), lambda: validity.ends - days_left * 86400)
    certificate.validity = validity
    certificate.warn_of_expiry()
    assert [record.getMessage() for record in caplog.records] == ([] if words is None else [caplog.messages[0]])
    assert words is None or words in caplog.text


async def test_it_is_said_again_once_a_day(
    authority: Authority, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    await watch_expiry([])
    certificate = Certificate(files_of(authority), lambda: WEEK.ends - 3600)
    certificate.validity = WEEK
    with trio.move_on_after(3.5 * 86400):
        await watch_expiry([certificate])
    assert len(caplog.records) == 4
