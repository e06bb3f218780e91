"""Media parts of any shape: what they hold, or a refusal that names the part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.api.media import is_media, read_image_data, read_part, read_source
from smg_trio.api.openai.chat.messages import parse_messages
from smg_trio.core.errors import ClientFault, UnsupportedContent
from smg_trio.core.media import MediaPart, MediaSource, media_in

Found = TypeVar("Found")
KINDS = ("image_url", "input_image", "video_url", "input_audio", "audio_url", "file", "input_file", "image_embeds")
values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "auto", "data:,", "https://x/y", "base64"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["url", "type", "data", "detail", "image_url", "source", "uuid"]), inner)
    ),
    max_leaves=6,
)
members = st.dictionaries(
    st.sampled_from(["image_url", "video_url", "detail", "file_id", "uuid", "input_audio", "source"]), values
)


def outcome(read: Callable[[], Found]) -> Found | ClientFault:
    try:
        return read()
    except ClientFault as error:
        return error


@given(st.sampled_from(KINDS), members)
def test_a_part_is_read_or_refused_by_name(kind: str, part: dict[str, Any]) -> None:
    assert is_media(kind)
    found = outcome(lambda: read_part({**part, "type": kind}, "messages[0].content[1]"))
    if isinstance(found, ClientFault):
        assert str(found.param).startswith("messages[0].content[1]")
        assert "messages[0].content[1]" in found.message
    else:
        assert isinstance(found.source.location, str)
        assert found == {"type": found.source.modality}


@given(values)
def test_so_is_an_image_block(source: Any) -> None:
    found = outcome(lambda: read_source({"type": "image", "source": source}, "p"))
    if isinstance(found, ClientFault):
        assert str(found.param).startswith("p")
    else:
        assert found.source.location


@given(values, st.integers(1, 3))
def test_and_image_data(value: Any, prompts: int) -> None:
    found = outcome(lambda: read_image_data(value, prompts))
    if isinstance(found, ClientFault):
        assert str(found.param).startswith("image_data")
    else:
        assert len(found) == prompts


@pytest.mark.parametrize("kind", ["input_audio", "audio_url", "audio_embeds"])
def test_audio_is_refused_by_that_word(kind: str) -> None:
    with pytest.raises(UnsupportedContent, match="audio is not supported"):
        read_part({"type": kind}, "p")


def test_only_media_of_a_conversation_are_changed_and_found_in_order() -> None:
    text = {"type": "text", "text": "a", "cache_control": None}
    content = [
        text,
        {"type": "image_url", "image_url": "data:1"},
        "b",
        {"type": "video_url", "video_url": {"url": "v"}},
    ]
    sent = [{"role": "user", "content": "plain"}, {"role": "user", "content": content}, {"role": "tool", "content": []}]
    messages = parse_messages(sent)
    assert messages[0] is sent[0]
    assert messages[1]["content"][0] is text
    assert content[1] == {"type": "image_url", "image_url": "data:1"}, "what the client sent is left alone"
    assert media_in(messages) == [
        MediaSource("image", "data:1", "messages[1].content[1]"),
        MediaSource("video", "v", "messages[1].content[3]"),
    ]
    assert [type(part) is MediaPart for part in messages[1]["content"]] == [False, True, False, True]
