"""Media on their way through a template: each comes out once, in the order in which it went in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.media import MediaPart, MediaSource
from smg_trio.text.chat_template import ChatTemplate
from smg_trio.text.conversation import fit
from smg_trio.text.media_marks import MediaMarks
from smg_trio.text.template_traits import TemplateTraits

TEXTS = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", {})
PARTS = ChatTemplate(
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text if p.type == 'text' else '[' + p.type + ']' }}{% endfor %}{% endif %}"
    "{% endfor %}",
    {},
)
STRICT = TemplateTraits(
    content="openai",
    system="first_user",
    consecutive_users=False,
    results="user",
    calls="text",
    results_without_tools="user",
    calls_without_tools="text",
)
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def picture(number: int) -> MediaPart:
    return MediaPart(MediaSource("image", f"data:{number}", f"part {number}"))


def places(sources: Sequence[MediaSource]) -> list[str]:
    return [source.location for source in sources]


def rendered(template: ChatTemplate, messages: list[dict[str, Any]], *, in_parts: bool) -> tuple[str, list[str]]:
    marks = MediaMarks(in_parts=in_parts)
    fitted = template.fit(messages, marks=marks).messages
    prompt = marks.replace(template.render(fitted, add_generation_prompt=False), lambda modality: f"[{modality}]")
    return prompt, places(marks.sources_in(fitted))


CONTENT = ["a", picture(0), "b", picture(1)]


def test_a_template_of_parts_is_given_parts() -> None:
    assert rendered(PARTS, [{"role": "user", "content": CONTENT}], in_parts=True) == (
        "<user>a[image]b[image]",
        ["data:0", "data:1"],
    )


@pytest.mark.parametrize("template", [TEXTS, PARTS])
def test_all_others_are_given_texts_with_placeholders_on_lines_of_their_own(template: ChatTemplate) -> None:
    prompt, seen = rendered(template, [{"role": "user", "content": CONTENT}], in_parts=False)
    assert prompt.replace("\n", "") == "<user>a[image]b[image]"
    assert seen == ["data:0", "data:1"]
    if template is TEXTS:
        assert prompt == "<user>a\n[image]\nb\n[image]"


def test_content_without_text_is_not_empty() -> None:
    for in_parts in (True, False):
        assert rendered(PARTS, [{"role": "user", "content": [picture(0)]}], in_parts=in_parts)[0] == "<user>[image]"


@pytest.mark.parametrize("in_parts", [True, False])
def test_where_turns_are_joined_pictures_move_with_their_texts(in_parts: bool) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": ["one", picture(1)]},
        {"role": "user", "content": [picture(2), "two"]},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c", "content": ["seen", picture(3)]},
        {"role": "system", "content": [picture(0), "first"]},
    ]
    marks = MediaMarks(in_parts=in_parts)
    fitted = fit(messages, STRICT, marks=marks).messages
    assert places(marks.sources_in(fitted)) == ["data:0", "data:1", "data:2", "data:3"]
    prompt = marks.replace(PARTS.render(fitted, add_generation_prompt=False), lambda modality: f"[{modality}]")
    assert prompt.count("[image]") == 4
    assert prompt.index("first") < prompt.index("one") < prompt.index("two") < prompt.index("<tool_response>")
    assert prompt.index("seen") < prompt.rindex("[image]") < prompt.index("</tool_response>")


parts = st.lists(st.sampled_from(["x", "yy", "", None]), max_size=6)


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "tool"]), parts), min_size=1, max_size=5))
def test_no_picture_is_lost_doubled_or_moved_past_another_of_its_turn(
    turns: list[tuple[str, list[str | None]]],
) -> None:
    count = iter(range(100))
    messages: list[dict[str, Any]] = [
        {"role": role, "content": [picture(next(count)) if part is None else part for part in content]}
        for role, content in turns
    ]
    sent = [places([part.source for part in message["content"] if isinstance(part, MediaPart)]) for message in messages]
    for traits in (TemplateTraits(), TemplateTraits(content="openai"), STRICT):
        for in_parts in (True, False):
            marks = MediaMarks(in_parts=in_parts)
            seen = places(marks.sources_in(fit(messages, traits, marks=marks).messages))
            assert sorted(seen) == sorted(location for own in sent for location in own)
            for own in sent:
                assert [location for location in seen if location in own] == own


def test_a_mark_cannot_be_written_by_a_client() -> None:
    first, second = MediaMarks(in_parts=False), MediaMarks(in_parts=False)
    mark = first.mark(picture(0).source)
    assert second.replace(mark, lambda modality: "") == mark
    assert second.sources_in([{"content": mark}]) == []
