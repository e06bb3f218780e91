"""Who is let in where, by the kinds of keys that there are."""

from __future__ import annotations

import pytest

from smg_trio.core.errors import Forbidden, Unauthorized
from smg_trio.gateway.security.key_files import plain_keys
from smg_trio.gateway.security.key_ring import Access, Key, KeyHolder, KeyLimits, KeyRing, Role, digest_of


def ring(*keys: str) -> KeyRing:
    return KeyRing(plain_keys(keys, "k", KeyLimits()))


def key(text: str, role: Role) -> Key:
    return Key(digest_of(text.encode()), KeyHolder(f"{text}-holder", role))


M, U, A = key("m", Role.MODELS), key("u", Role.USER), key("a", Role.ADMIN)


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
    assert ring("other", "key").admit(Access.MODELS, headers).name == "k-2"
    assert ring(" key ").admit(Access.MODELS, headers).name == "k-1"


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
        {"x-api-key": digest_of(b"key").hex()},
        {"x-api-key": f"sha256:{digest_of(b'key').hex()}"},
    ],
    ids=str,
)
def test_any_other_key_does_not(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthorized):
        ring("other", "key").admit(Access.MODELS, headers)


def test_without_a_key_set_everybody_passes() -> None:
    for access in Access:
        assert KeyRing().admit(access, {}).name == ""
        assert KeyRing().admit(access, {"authorization": "Bearer anything"}).name == ""


def test_a_key_that_is_not_ascii_is_compared_as_the_bytes_the_client_sent() -> None:
    keys = ring("schlüssel")
    keys.admit(Access.MODELS, {"authorization": "Bearer " + "schlüssel".encode().decode("latin-1")})
    with pytest.raises(Unauthorized):
        keys.admit(Access.MODELS, {"authorization": "Bearer schlussel"})


def test_every_one_of_several_keys_passes_and_no_mixture_of_them() -> None:
    keys = ring("first", "second", "first")
    assert len(keys.holders) == 3  # and everybody
    for good in ("first", "second"):
        keys.admit(Access.MODELS, {"x-api-key": good})
    for bad in ("firstsecond", "first second", "first,second", "f", "s"):
        with pytest.raises(Unauthorized):
            keys.admit(Access.MODELS, {"x-api-key": bad})


def test_the_keys_are_kept_as_hashes_only() -> None:
    held = ring("sesame")._held
    assert b"sesame" not in b"".join(tag + one.digest for tag, one in held.items())
    assert "sesame" not in repr(held)


OK, UNKNOWN, TOO_LITTLE = "ok", "401", "403"
TABLE = [
    # keys there are, key that comes, and what it gets: models, any key, look, admin
    ([M], "", (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)),
    ([M], "m", (OK, OK, OK, OK)),
    ([M, U, A], "", (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)),
    ([M, U, A], "other", (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)),
    ([M, U, A], "m", (OK, OK, TOO_LITTLE, TOO_LITTLE)),
    ([M, U, A], "u", (TOO_LITTLE, OK, OK, TOO_LITTLE)),
    ([M, U, A], "a", (TOO_LITTLE, OK, OK, OK)),
    ([A], "", (OK, OK, UNKNOWN, UNKNOWN)),
    ([A], "other", (OK, OK, UNKNOWN, UNKNOWN)),
    ([A], "a", (OK, OK, OK, OK)),
    ([U], "u", (OK, OK, OK, TOO_LITTLE)),
    ([U], "", (OK, OK, UNKNOWN, UNKNOWN)),
]


def outcome(keys: KeyRing, access: Access, given: str) -> str:
    try:
        keys.admit(access, {"x-api-key": given})
    except Unauthorized:
        return UNKNOWN
    except Forbidden as error:
        return TOO_LITTLE if error.key_name == f"{given}-holder" else error.key_name
    return OK


@pytest.mark.parametrize(("keys", "given", "expected"), TABLE)
def test_a_key_opens_what_its_role_opens(keys: list[Key], given: str, expected: tuple[str, ...]) -> None:
    order = (Access.MODELS, Access.ANY_KEY, Access.LOOK, Access.ADMIN)
    assert tuple(outcome(KeyRing(keys), access, given) for access in order) == expected


def test_one_key_may_be_given_for_both_planes() -> None:
    keys = KeyRing([key("x", Role.MODELS), key("x", Role.ADMIN), U])
    roles = [keys.admit(access, {"x-api-key": "x"}).role for access in (Access.MODELS, Access.LOOK, Access.ADMIN)]
    assert roles == [Role.MODELS, Role.ADMIN, Role.ADMIN]


def test_what_is_refused_is_said_by_what_is_missing() -> None:
    keys = KeyRing([M, U, A])
    for given, access, words in [
        ("u", Access.ADMIN, "Admin role required"),
        ("m", Access.ADMIN, "a control-plane key is required"),
        ("m", Access.LOOK, "a control-plane key is required"),
        ("a", Access.MODELS, "an API key is required"),
    ]:
        with pytest.raises(Forbidden, match=words):
            keys.admit(access, {"x-api-key": given})


def test_other_keys_hold_from_the_moment_they_are_put_on_the_ring() -> None:
    keys = KeyRing([M])
    keys.replace([A])
    assert keys.guards_control_plane
    assert not keys.guards_models
    with pytest.raises(Unauthorized):
        keys.admit(Access.ADMIN, {"x-api-key": "m"})
