"""Content format detection: loops over content, however they are written."""

from __future__ import annotations

import jinja2
import pytest

from smg_trio.text.content_format import detect_content_format

MACRO = "{% macro show(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}"
ALIASES = "{% set a = messages[1:] %}{% set b = a %}{% for m in b %}{% for p in m.content %}{% endfor %}{% endfor %}"


def each_message(body: str) -> str:
    return "{% for message in messages %}" + body + "{% endfor %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0]['content'] }}", "string"),
        (each_message("{{ '<' + message.content + '>' }}"), "string"),
        (each_message("{% for part in message.content %}{{ part.text }}{% endfor %}"), "openai"),
        (each_message("{% for part in message['content'] | list %}{{ part.text }}{% endfor %}"), "openai"),
        (each_message("{% for part in message.content[1:] %}{{ part.text }}{% endfor %}"), "openai"),
        (each_message("{% for call in message.tool_calls %}{{ call }}{% endfor %}"), "string"),
        (each_message("{% set content = message.content %}{% for x in content %}{% endfor %}"), "openai"),
        (ALIASES, "openai"),
        (MACRO + each_message("{{ show(message.content) }}"), "openai"),
        (MACRO + each_message("{{ show(c=message.content) }}"), "openai"),
        (MACRO + each_message("{{ show(tools) }}{{ message.content }}"), "string"),
        ("{% macro show(content) %}{% for p in content %}{{ p }}{% endfor %}{% endmacro %}{{ show(tools) }}", "string"),
    ],
)
def test_a_loop_over_message_content_means_parts(source: str, expected: str) -> None:
    assert detect_content_format(jinja2.Environment().parse(source)) == expected
