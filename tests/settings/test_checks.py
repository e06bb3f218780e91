"""What settings of the door are refused; a complaint never repeats a key."""

from __future__ import annotations

from typing import Any

import pytest

from smg_trio.core.errors import ConfigError
from smg_trio.settings.checks import ControlPlaneKey, check_settings, control_plane_key
from smg_trio.settings.flags import flags_of
from smg_trio.settings.settings import Settings, options

TLS = {"tls_cert_path": "c", "tls_key_path": "k"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tls_cert_path": "c"}, "--tls-key-path: is required with --tls-cert-path"),
    ({"tls_key_path": "k"}, "--tls-cert-path: is required with --tls-key-path"),
    ({"tls_client_ca_path": "a"}, "--tls-client-ca-path: needs TLS"),
    (TLS | {"tls_cert_path": ""}, "--tls-cert-path: must not be empty"),
    (TLS | {"tls_client_ca_path": ""}, "--tls-client-ca-path: must not be empty"),
    ({"api_key_file": ""}, "--api-key-file: must not be empty"),
    ({"allowed_hosts": ("https://gw.example",)}, "--allowed-hosts: 'https://gw.example' is not a host name"),
    ({"allowed_hosts": ("",)}, "--allowed-hosts: '' is not a host name"),
    ({"key_max_concurrent_requests": -1}, "--key-max-concurrent-requests: must not be negative, got -1"),
    ({"key_tokens_per_minute": -5}, "--key-tokens-per-minute: must not be negative"),
    ({"rate_limit_tokens_per_second": float("nan")}, "--rate-limit-tokens-per-second: must not be negative"),
    ({"rate_limit_tokens_per_second": float("inf")}, "--rate-limit-tokens-per-second: must not be negative"),
    ({"control_plane_api_keys": ("s3cret",)}, "entry 1 is not of the form id:name:role:key"),
    ({"control_plane_api_keys": ("a:b:admin:k", "")}, "entry 2 is not of the form id:name:role:key"),
    ({"control_plane_api_keys": ("a:b:admin: ",)}, "entry 1 is not of the form id:name:role:key"),
    ({"control_plane_api_keys": ("a::admin:s3cret",)}, "entry 1 is not of the form id:name:role:key"),
    ({"mcp_allow": ("*",)}, r"--mcp-allow: '\*' is not a host. Name each host"),
    ({"mcp_private": True}, "--mcp-private: has a meaning beside --mcp-allow only"),
    ({"mcp_max_tool_calls": 0}, "must be greater than 0"),
    ({"mm_fetch": "allowlist"}, "--mm-fetch-allow: is missing beside --mm-fetch allowlist"),
    ({"mm_fetch": "public", "mm_fetch_private": True}, "--mm-fetch-private: cannot go with --mm-fetch public"),
    ({"mm_fetch": "any"}, "--mm-fetch: 'any' is not among its values. Use off, allowlist or public"),
    ({"mm_fetch_allow": ("a.example", "*")}, r"--mm-fetch-allow: '\*' is not a host. Use --mm-fetch public"),
    ({"mm_fetch_allow": ("https://a.example",)}, "'https://a.example' is not a host"),
    ({"mm_fetch_allow": ("a.example:0",)}, "'a.example:0' is not a host"),
    ({"mm_fetch_allow": ("a.example:70000",)}, "'a.example:70000' is not a host"),
    ({"mm_fetch_allow": ("*.10.0.0.1",)}, r"'\*.10.0.0.1' is not a host"),
    ({"mm_fetch_allow": ("10.0.0.256",)}, "'10.0.0.256' is not a host"),
    ({"mm_fetch_allow": ("[::1",)}, r"'\[::1' is not a host"),
    ({"limit_mm": ("image",)}, "--limit-mm: 'image' does not say how many of which modality"),
    ({"limit_mm": ("image=2,pictures=1",)}, "'pictures=1' does not say how many"),
    ({"limit_mm": ("image=-1",)}, "'image=-1' does not say how many"),
    ({"mm_max_pixels": 0}, "--mm-max-pixels: must be greater than 0, got 0"),
    ({"mm_max_item_bytes": 0}, "--mm-max-item-bytes: must be greater than 0"),
    ({"mm_max_inflight_bytes": -1}, "--mm-max-inflight-bytes: must be greater than 0"),
    ({"mm_cache_bytes": -1}, "--mm-cache-bytes: must not be negative"),
    ({"mm_resize": "slow"}, "--mm-resize: 'slow' is not among its values"),
    ({"mm_pixels": "float"}, "--mm-pixels: 'float' is not among its values"),
    # As the order may be mistaken, what stands where the role should may be the key.
    ({"control_plane_api_keys": ("a:b:s3cret:admin",)}, r"entry 1 \(a\) has an unknown role. Use admin or user"),
    ({"control_plane_api_keys": "a:b:admin:s3cret"}, "--control-plane-api-keys: must be a tuple"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED, ids=str)
def test_what_cannot_work_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        check_settings(Settings(**settings))
    assert "s3cret" not in caught.value.message


def test_what_can_work_passes() -> None:
    check_settings(Settings(**TLS))
    check_settings(Settings(**TLS, tls_client_ca_path="a", control_plane_api_keys=("a:b:user:c", "d:e:admin:f")))


def test_a_key_may_hold_colons_and_names_spaces() -> None:
    assert control_plane_key(" ops : On call:admin: a:b:c ", 1) == ControlPlaneKey("ops", "On call", "admin", "a:b:c")


@pytest.mark.parametrize("entry", ["", "key", ":key", "tenant:", " : "])
def test_a_tenants_key_has_a_tenant(entry: str) -> None:
    with pytest.raises(ConfigError, match="entry 2") as raised:
        check_settings(Settings(tenant_api_key=("a:b", entry)))
    assert "key" not in str(raised.value).replace("--tenant-api-key", "").replace("tenant:key", "").replace("KEY", "")


# ---- the database of the history -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgres:///smg",
        "postgresql://smg@db/smg",
        "postgresql://smg:p%40ss:word@db.internal:5432/smg?sslmode=require",
        "postgresql://smg@%2Fvar%2Frun/smg?options=-c%20search_path%3Dsmg",
        "postgresql://a:b@h1:1,h2,[::1]:3/smg?target_session_attrs=read-write",
    ],
)
def test_urls_of_a_database(url: str) -> None:
    check_settings(Settings(history_backend="postgres", history_url=url))


@pytest.mark.parametrize(
    "url",
    [
        "TOPSECRET",
        "mysql://smg:TOPSECRET@db/smg",
        "postgresql://smg:TOP@SECRET@db/smg",
        "postgresql://smg:TOP/SECRET@db/smg",
        "postgresql://smg:TOP?SECRET@db/smg",
        "postgresql://smg:TOP#SECRET@db/smg",
        "postgresql://smg:TOP SECRET@db/smg",
        "postgresql://smg:TOP%SECRET@db/smg",
        "postgresql://smg:TOPSECRET",
        "host=db user=smg password=TOPSECRET",
    ],
)
def test_what_is_not_such_a_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--history-url: is not a PostgreSQL URL") as refused:
        check_settings(Settings(history_backend="postgres", history_url=url))
    assert "SECRET" not in str(refused.value)
    assert "TOP" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"history_backend": "postgres"}, "--history-url"),
        ({"history_url": "postgresql://db/smg"}, "--history-url"),
        ({"history_backend": "postgresql://smg:TOPSECRET@db/smg"}, "--history-backend"),
        ({"history_pool_max": 0}, "--history-pool-max"),
        ({"history_timeout_secs": 0.0}, "--history-timeout-secs"),
        ({"history_retention_secs": -1.0}, "--history-retention-secs"),
    ],
)
def test_settings_of_the_history_that_cannot_work(settings: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_settings(Settings(**settings))
    assert refused.value.option == option
    assert "SECRET" not in str(refused.value)


def test_the_references_flags_of_the_history_are_ours() -> None:
    flags = {flag: option.name for option in options() for flag in flags_of(option)}
    assert flags["--postgres-db-url"] == "history_url"
    assert flags["--postgres-pool-max"] == "history_pool_max"
    assert flags["--postgres-op-timeout-secs"] == "history_timeout_secs"
    assert flags["--history-memory-retention-secs"] == "history_retention_secs"
