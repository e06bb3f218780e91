from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from smg_trio.core.errors import ConfigError
from smg_trio.gateway.security.certificates import Certificate, CertificateFiles, certificate_files, load_context
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
