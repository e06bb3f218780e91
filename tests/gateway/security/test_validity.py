"""The validity read here is the one that a library for certificates reads."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

import pytest
import trustme
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.gateway.security.validity import soonest_end

CA = trustme.CA()


def pem_until(year: int) -> str:
    issued = CA.issue_cert("a.test", not_before=datetime(1951, 2, 3, 4, 5, 6), not_after=datetime(year, 12, 31))
    return issued.cert_chain_pems[0].bytes().decode()


@pytest.mark.parametrize("year", [1960, 1999, 2000, 2049, 2050, 2069, 9999])
def test_dates_are_a_library_s(year: int) -> None:
    pem = pem_until(year)
    certificate = x509.load_pem_x509_certificate(pem.encode())
    found = soonest_end(pem)
    assert found == (certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp())


def test_of_a_chain_the_one_that_ends_first_counts() -> None:
    found = soonest_end(f"some words\n{pem_until(2040)}{pem_until(2030)}\n{pem_until(2050)}")
    assert found is not None
    assert found.ends == datetime(2030, 12, 31, tzinfo=UTC).timestamp()
    assert soonest_end("") is None
    broken = pem_until(2030).replace("MII", "AAA", 1)
    assert soonest_end(broken) is None
    assert soonest_end(broken + pem_until(2040)) == soonest_end(pem_until(2040))


DER = ssl.PEM_cert_to_DER_cert(pem_until(2030))


@given(st.lists(st.tuples(st.integers(0, len(DER) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(DER)))
def test_what_is_no_certificate_is_none_and_never_an_error(changes: list[tuple[int, int]], length: int) -> None:
    der = bytearray(DER)
    for index, byte in changes:
        der[index] = byte
    found = soonest_end(ssl.DER_cert_to_PEM_cert(bytes(der[:length])))
    assert found is None or found.ends > -1e12
