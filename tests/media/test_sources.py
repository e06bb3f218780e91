"""Data URLs and base64 as clients write them."""

from __future__ import annotations

import base64
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.errors import SmgError
from smg_trio.core.media import MediaSource, Modality
from smg_trio.media import sources
from smg_trio.media.errors import InvalidMedia, MediaTooLarge
from smg_trio.media.sources import InlineData, check_counts, check_size, decode_base64, inline_data
from tests.media.network import source

LIMIT = 10_000


def decoded(location: str, *, bare: bool = False, limit: int = LIMIT) -> bytes:
    data = inline_data(source(location, bare=bare))
    assert data is not None
    got = decode_base64(data, limit)
    assert len(got) <= data.most_bytes
    return got


@st.composite
def written(draw: st.DrawFn) -> tuple[bytes, str]:
    """Some bytes, and their base64 as some client writes it."""
    payload = draw(st.binary(min_size=1, max_size=300))
    text = base64.b64encode(payload).decode()
    if draw(st.booleans()):
        text = text.rstrip("=")
    if draw(st.booleans()):
        text = text.replace("+", "-").replace("/", "_")
    if draw(st.booleans()):
        for char, escape in (("+", "%2B"), ("/", "%2f"), ("=", "%3D")):
            text = text.replace(char, escape)
    width = draw(st.sampled_from([0, 1, 7, 76]))
    if width and "%" not in text:
        blank = draw(st.sampled_from(["\n", "\r\n", " ", "\t\v\f"]))
        text = blank.join(text[at : at + width] for at in range(0, len(text), width))
    return payload, text + draw(st.sampled_from(["", "\n", "  ", "%0A", "\r\n"]))


@given(written(), st.sampled_from([4, 5, 7, 64, 1 << 18]))
def test_however_it_is_written_it_is_the_same(pair: tuple[bytes, str], at_once: int) -> None:
    payload, text = pair
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_AT_ONCE", at_once)
        assert decoded(f"data:image/png;base64,{text}") == payload
        assert decoded(text, bare=True) == payload


@pytest.mark.parametrize(
    "header",
    [
        "data:;base64,",
        "DATA:image/png;BASE64,",
        "data:image/png;charset=x;base64,",
        "data:text/plain; base64 ,",
        " data:;base64,",
        "\n\tdata:image/svg+xml;name=a%2Cb;base64,",
    ],
)
def test_headers_are_read_generously(header: str) -> None:
    assert decoded(header + "aGk=") == b"hi"


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("data:", "no comma"),
        ("data:image/png;base64", "no comma"),
        ("data:" + "x" * 2000 + ";base64,aGk=", "no comma"),
        ("data:,hi", "only base64 data: URLs"),
        ("data:image/svg+xml,<svg/>", "only base64 data: URLs"),
        ("data:image/svg+xml;utf8,<svg/>", "only base64 data: URLs"),
        ("data:;base64;charset=x,aGk=", "only base64 data: URLs"),
        ("data:image/png;base64,", "data is empty"),
        ("data:image/png;base64, \n", "data is empty"),
        ("data:image/png;base64,====", "data is empty"),
        ("data:image/png;base64,a", "data is not valid base64"),
        ("data:image/png;base64,aGk=aGk=", "data is not valid base64"),
        ("data:image/png;base64,aGk!", "data is not valid base64"),
        ("data:image/png;base64,aGk%", "data is not valid base64"),
        ("data:image/png;base64,aGk%2", "data is not valid base64"),
        ("data:image/png;base64,aG%6B", "data is not valid base64"),
        ("data:image/png;base64,äöü", "data is not valid base64"),
        ("data:image/png;base64,\ud800", "data is not valid base64"),
        ("data:image/png;base64,data:image/png;base64,aGk=", "data is not valid base64"),
    ],
)
def test_what_is_no_base64_is_refused(location: str, words: str) -> None:
    with pytest.raises(InvalidMedia, match=words) as raised:
        decoded(location)
    assert raised.value.message.startswith("messages[0].content[1]: ")
    assert raised.value.param == "messages[0].content[1]"


@given(st.text(max_size=60) | st.text("aB3+/=-_% \n", max_size=60), st.sampled_from([4, 64]))
def test_any_text_is_decoded_or_refused(text: str, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_AT_ONCE", at_once)
        try:
            got = decoded(text, bare=True)
        except SmgError:
            return
    # What was taken is base64 of what came out, but for bits that base64 leaves unused.
    kept = "".join(text.replace("%2B", "+").replace("%2b", "+").split())
    if "%" not in kept:
        again = base64.urlsafe_b64encode(got).decode().rstrip("=")
        kept = kept.replace("+", "-").replace("/", "_").rstrip("=")
        assert kept[:-1] == again[:-1]
        assert len(kept) == len(again)


def test_urls_are_left_to_those_that_fetch() -> None:
    for location in ("https://a.example/x.png", "", "file:///x", "aGk=", "dat:;base64,aGk="):
        assert inline_data(source(location)) is None


@given(st.integers(1, 400), written())
def test_limits_are_exact_and_seen_before_decoding(limit: int, pair: tuple[bytes, str]) -> None:
    payload, text = pair
    data = InlineData(text, 0, "m")
    if len(payload) <= limit:
        check_size(data, limit)
        assert decode_base64(data, limit) == payload
    else:
        with pytest.raises(MediaTooLarge, match=f"^m: larger than {limit} bytes"):
            decode_base64(data, limit)
    if len(payload) > limit + 80:  # however it is escaped
        with pytest.raises(MediaTooLarge):
            check_size(data, limit)


def test_too_large_is_a_413() -> None:
    with pytest.raises(MediaTooLarge) as raised:
        check_size(InlineData("A" * 20_000, 0, "m"), LIMIT)
    assert (raised.value.status, raised.value.code, raised.value.param) == (413, "media_too_large", "m")


def many(*modalities: Literal["image", "video", "audio"]) -> list[MediaSource]:
    return [MediaSource(modality, "", f"part {place}") for place, modality in enumerate(modalities)]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (many("image", "image"), None),
        (many("image", "video", "image"), None),
        (many(), None),
        (many("image", "image", "image"), "^part 2: at most 2 images per request, got 3$"),
        (many("video", "image", "video", "video"), "^part 2: at most 1 video per request, got 3$"),
        (many("image", "audio"), "^part 1: at most 0 audio per request, got 1$"),
    ],
)
def test_counts_are_checked_by_modality(parts: list[MediaSource], words: str | None) -> None:
    limits: dict[Modality, int] = {"image": 2, "video": 1, "audio": 0}
    if words is None:
        check_counts(parts, limits)
        return
    with pytest.raises(InvalidMedia, match=words):
        check_counts(parts, limits)
