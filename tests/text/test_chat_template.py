"""Chat templates: byte-exact on the recorded renderings, the sandbox, continuing, the thinking switch."""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from smg_trio.core.errors import ConfigError, InvalidRequest, UnsupportedFeature
from smg_trio.text import chat_template
from smg_trio.text.chat_template import EFFORTS, ChatTemplate, ThinkingToggle
from smg_trio.text.conversation import fit
from smg_trio.text.model_files import ModelText
from smg_trio.text.template_traits import TemplateTraits
from tests.conftest import REFERENCE, shared_path

RECORDED = sorted(path.stem for path in (REFERENCE / "data" / "chat_templates").glob("*.jinja")) or ["absent"]
USER = [{"role": "user", "content": "Hi"}]
OWN_ARGUMENTS = ("add_generation_prompt", "continue_final_message", "documents")


@lru_cache(maxsize=128)
def load(name: str) -> tuple[ChatTemplate, dict[str, Any]]:
    source = shared_path("data", "chat_templates", f"{name}.jinja").read_bytes().decode("utf-8")
    record = json.loads(shared_path("data", "chat_templates", "expected", f"{name}.json").read_text("utf-8"))
    now = datetime.fromisoformat(record["now"])
    return ChatTemplate(source, record["special_tokens"], clock=lambda: now), record


def render(template: ChatTemplate, case: dict[str, Any]) -> str:
    arguments = {"add_generation_prompt": False} | case["kwargs"]
    own = {name: arguments.pop(name) for name in OWN_ARGUMENTS if name in arguments}
    return template.render(case["messages"], tools=case["tools"], kwargs=arguments, **own)


@pytest.mark.parametrize("name", RECORDED)
def test_a_real_template_renders_every_recorded_conversation_byte_for_byte(name: str) -> None:
    template, record = load(name)
    for label, case in record["cases"].items():
        if "rendered" in case:
            assert render(template, case) == case["rendered"], label


def _is_taken_here(error: str) -> bool:
    """What our sandbox lets a template do: change lists of its own, and print what ``map`` gives as JSON."""
    return "of 'list' object is unsafe" in error or "type generator is not JSON" in error


@pytest.mark.parametrize("name", RECORDED)
def test_a_conversation_a_real_template_cannot_take_is_an_invalid_request(name: str) -> None:
    template, record = load(name)
    for label, case in record["cases"].items():
        if "error" not in case or label == "tool_round_trip_string_arguments" or _is_taken_here(case["error"]):
            continue
        with pytest.raises(InvalidRequest) as caught:
            render(template, case)
        assert caught.value.param in ("messages", "continue_final_message"), label
        kind, _, reason = case["error"].partition(": ")
        if kind == "TemplateError":
            assert caught.value.message == reason, label


def prompt_of(template: ChatTemplate, case: dict[str, Any]) -> str | None:
    """The prompt of a conversation as a client sends it, or None where it is refused."""
    try:
        fitted = template.fit(case["messages"], has_tools=bool(case["tools"]))
        return render(template, case | {"messages": fitted.messages, "tools": template.fit_tools(case["tools"] or [])})
    except (InvalidRequest, UnsupportedFeature):
        return None


@pytest.mark.parametrize("name", RECORDED)
def test_arguments_as_json_text_give_the_prompt_of_arguments_as_mappings(name: str) -> None:
    template, record = load(name)
    as_text, as_mapping = (record["cases"][f"tool_round_trip{end}"] for end in ("_string_arguments", ""))
    assert prompt_of(template, as_text) == prompt_of(template, as_mapping)
    assert prompt_of(template, as_text) is not None or "error" in as_mapping


@pytest.mark.parametrize("name", RECORDED)
def test_no_prepared_conversation_shows_pythons_notation_of_parts(name: str) -> None:
    template, record = load(name)
    prompts = {label: prompt_of(template, case) for label, case in record["cases"].items()}
    if "rendered" in record["cases"]["user_only"]:
        assert prompts["user_only"] is not None
        assert prompts["content_parts_user"] is not None
    assert [label for label, prompt in prompts.items() if prompt is not None and "[{'type': 'text'" in prompt] == []


@pytest.mark.parametrize("name", RECORDED)
def test_content_format_and_variables_are_found_as_recorded(name: str) -> None:
    index = json.loads(shared_path("data", "chat_templates", "INDEX.json").read_text("utf-8"))[name]
    template, _ = load(name)
    assert template.traits.content == index["vllm_content_format"]
    assert template.referenced_variables <= set(index["template_variables"]) | {"strftime_now", "raise_exception"}
    if index["supports"]["enable_thinking_changes_output"]:
        assert template.thinking_toggle is not None
        assert template.thinking_toggle.key == "enable_thinking"


def test_absent_special_tokens_are_undefined() -> None:
    source = "{% if bos_token is defined %}B{% endif %}{% if pad_token is defined %}P{% endif %}"
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(USER) == "B"
    assert ChatTemplate(source, {"pad_token": None}).render(USER) == ""  # type: ignore[dict-item]


def test_absent_special_tokens_are_no_text_where_a_template_adds_them() -> None:
    template = ChatTemplate("{{ bos_token + messages[0].content + eos_token }}{{ sep_token }}", {})
    assert template.render(USER) == "Hi"
    with pytest.raises(InvalidRequest, match="'other' is undefined"):
        ChatTemplate("{{ other + 'x' }}", {}).render(USER)


def test_special_tokens_reach_the_template_once() -> None:
    template = ChatTemplate("{{ bos_token + messages[0]['content'] }}", {"bos_token": "<s>"})
    assert template.render(USER) == "<s>Hi"


def test_raise_exception_carries_the_templates_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('Roles must alternate.') }}", {})
    with pytest.raises(InvalidRequest) as caught:
        template.render(USER)
    assert (caught.value.message, caught.value.param) == ("Roles must alternate.", "messages")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% for i in range(1000000) %}x{% endfor %}",
        "{{ messages[0].content.nothing.at_all }}",
        "{{ 1 / 0 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_whatever_goes_wrong_in_a_template_is_an_invalid_request(source: str) -> None:
    template = ChatTemplate(source, {})
    try:
        assert template.render(USER).strip() == ""  # the sandbox may answer with nothing instead
    except InvalidRequest as error:
        assert "Traceback" not in error.message  # noqa: PT017


def test_message_text_is_data_and_never_a_template() -> None:
    text = "{{ raise_exception('x') }}{% raw %}"
    template = ChatTemplate("{{ messages[0].content }}", {})
    assert template.render([{"role": "user", "content": text}]) == text


def test_the_outcome_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_RENDERED_CHARS", 100)
    template = ChatTemplate("{% for i in range(n) %}{{ '0123456789' }}{% endfor %}", {})
    assert len(template.render(USER, kwargs={"n": 10})) == 100
    with pytest.raises(InvalidRequest, match="longer than 100 characters"):
        template.render(USER, kwargs={"n": 11})


def test_a_template_that_does_not_compile_is_a_config_error_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"--chat-template: .*line 2") as caught:
        ChatTemplate("ok\n{% if %}", {})
    assert caught.value.remedy


def test_tojson_keeps_html_and_unicode_and_takes_options() -> None:
    template = ChatTemplate("{{ tools | tojson }}|{{ {'b': 1, 'a': [1]} | tojson(indent=1, sort_keys=true) }}", {})
    assert template.render(USER, tools=[{"x": "<é>&'"}]) == '[{"x": "<é>&\'"}]|{\n "a": [\n  1\n ],\n "b": 1\n}'


def test_generation_blocks_and_loop_controls_render_as_plain_text() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    assert ChatTemplate(source, {}).render([*USER, *USER]) == "Hi"


def test_the_clock_is_the_callers() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, clock=lambda: datetime(2025, 2, 3))
    assert template.render(USER) == "03 Feb 2025"


def test_own_names_win_over_template_arguments() -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ add_generation_prompt }}{{ extra }}", {})
    kwargs = {"messages": [], "add_generation_prompt": False, "extra": "!"}
    assert template.render(USER, kwargs=kwargs) == "HiTrue!"


@pytest.mark.parametrize("name", ["chat_template", "tokenize"])
def test_arguments_that_would_replace_the_template_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate("x", {}).render(USER, kwargs={name: "y"})
    assert caught.value.param == f"chat_template_kwargs.{name}"


class TestContinuing:
    """``continue_final_message``: the prompt ends inside the last message."""

    plain = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}", {})
    trimming = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}", {})

    def continued(self, template: ChatTemplate, text: Any) -> str:
        messages = [*USER, {"role": "assistant", "content": text}]
        return template.render(messages, add_generation_prompt=False, continue_final_message=True)

    def test_the_prompt_ends_with_the_last_messages_text(self) -> None:
        assert self.continued(self.plain, "1, 2,") == "[user]Hi[end][assistant]1, 2,"

    def test_trailing_space_is_kept_by_templates_that_keep_it(self) -> None:
        assert self.continued(self.plain, "a ") == "[user]Hi[end][assistant]a "
        assert self.continued(self.trimming, "a ") == "[user]Hi[end][assistant]a"

    def test_the_last_text_part_is_continued(self) -> None:
        source = "{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}"
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        messages = [{"role": "assistant", "content": parts}]
        template = ChatTemplate(source, {})
        prompt = template.render(messages, add_generation_prompt=False, continue_final_message=True)
        assert prompt == "a;b"
        assert parts[1]["text"] == "b"

    def test_opening_a_new_turn_as_well_is_refused(self) -> None:
        with pytest.raises(InvalidRequest) as caught:
            self.plain.render(USER, continue_final_message=True)
        assert caught.value.param == "continue_final_message"

    @pytest.mark.parametrize("messages", [[], [{"role": "assistant"}], [{"role": "assistant", "content": []}]])
    def test_nothing_to_continue_is_refused(self, messages: list[dict[str, Any]]) -> None:
        with pytest.raises(InvalidRequest) as caught:
            self.plain.render(messages, add_generation_prompt=False, continue_final_message=True)
        assert caught.value.param == "continue_final_message"

    def test_a_template_that_drops_the_message_is_reported(self) -> None:
        with pytest.raises(InvalidRequest, match="cannot be continued"):
            self.continued(ChatTemplate("{{ messages[0].content }}", {}), "x")


ON, OFF = ThinkingToggle("enable_thinking", True), ThinkingToggle("enable_thinking", False)
SET_OFF = "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{% if thinking %}x{% endif %}"


@pytest.mark.parametrize(
    ("source", "toggle"),
    [
        ("{{ messages[0].content }}", None),
        ("{% if enable_thinking is defined and not enable_thinking %}x{% endif %}", ON),
        ("{% if enable_thinking %}x{% endif %}", OFF),
        ("{% if messages[5] and enable_thinking %}x{% endif %}", ON),
        (SET_OFF, ThinkingToggle("thinking", False)),
        ("I was thinking of you", None),
    ],
)
def test_the_thinking_switch_and_its_default_are_found_by_trying(source: str, toggle: ThinkingToggle | None) -> None:
    assert ChatTemplate(source, {}).thinking_toggle == toggle


def test_textual_arguments_that_a_template_cannot_iterate_are_given_as_an_empty_mapping() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{% for k, v in c.function.arguments.items() %}({{ k }}={{ v }}){% endfor %}{% endfor %}{% endfor %}"
    )
    calls = [
        {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in [("a", '{"x": 1}'), ("b", '{"x": '), ("c", "[1]"), ("d", ""), ("e", None)]
    ]
    template = ChatTemplate(source, {})
    said = [{"role": "assistant", "content": None, "tool_calls": calls}]
    fitted = fit(said, TemplateTraits(raw_arguments=False))
    assert template.render(fitted.messages) == 'a(x=1)b(arguments={"x": )c(arguments=[1])de'


LIMITED = (
    "{% if reasoning_effort is defined and reasoning_effort not in ['no_think', 'low', 'high'] %}"
    "{{ raise_exception('unknown effort') }}{% endif %}{{ messages[0].content }}"
)


def test_efforts_are_the_nearest_that_a_template_takes() -> None:
    assert ChatTemplate(LIMITED, {}).efforts == {
        "none": "no_think",
        "minimal": "low",
        "low": "low",
        "medium": "low",
        "high": "high",
        "xhigh": "high",
        "max": "high",
    }
    every = ChatTemplate("{{ messages[0].content }}{{ reasoning_effort }}", {}).efforts
    assert every == {effort: effort for effort in EFFORTS}
    no_rest = ChatTemplate(LIMITED.replace("'no_think', 'low', ", ""), {}).efforts
    assert (no_rest["none"], no_rest["low"]) == (None, "high")


def test_a_template_may_change_lists_of_its_own_and_no_others() -> None:
    source = (
        "{% set seen = [] %}{% for m in messages %}{% set _ = seen.append(m.content) %}{% endfor %}{{ seen.pop(0) }}"
    )
    assert ChatTemplate(source, {}).render(USER) == "Hi"
    for given in ("messages", "tools"):
        with pytest.raises(InvalidRequest, match="unsafe"):
            ChatTemplate(f"{{{{ {given}.append(1) }}}}", {}).render(USER, tools=[{}])


def test_what_map_gives_can_be_printed_as_json() -> None:
    template = ChatTemplate("{{ messages | map(attribute='content') | tojson }}", {})
    assert template.render(USER) == '["Hi"]'


def test_the_demo_models_template_knows_tools_thinking_and_history(demo: ModelText) -> None:
    template = demo.chat_template
    assert template is not None
    assert template.thinking_toggle == ThinkingToggle("enable_thinking", True)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    history = [
        *USER,
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "4"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    prompt = template.render(template.fit(history).messages, tools=tools, kwargs={"enable_thinking": False})
    assert '{"name": "f", "parameters": {}}\n' in prompt
    assert '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' in prompt
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    with pytest.raises(InvalidRequest, match="does not know the role"):
        template.render([{"role": "narrator", "content": "x"}])


def test_recorded_templates_are_all_covered() -> None:
    shared_path("data", "chat_templates")
    expected = {path.stem for path in Path(shared_path("data", "chat_templates", "expected")).glob("*.json")}
    assert expected == set(RECORDED)


def test_names_that_dicts_have_themselves_keep_meaning_the_dicts_own() -> None:
    source = "{% for m in messages %}{{ m.role }}:{{ m.items is callable }}:{{ m.missing is defined }}{% endfor %}"
    template = ChatTemplate(source, {})
    assert template.render([{"role": "user", "content": "", "items": "x"}]) == "user:True:False"


def test_the_methods_of_texts_work_and_those_that_format_stay_in_the_sandbox() -> None:
    source = "{{ ' Ab c '.strip().lower() }}|{{ 'a-b'.split('-') }}|{{ 'ab'.startswith('a') }}|{{ '{}'.format(7) }}"
    assert ChatTemplate(source, {}).render([]) == "ab c|['a', 'b']|True|7"
    assert ChatTemplate("{{ '{0.__class__}'.format(messages) }}", {}).render([]) == ""
    with pytest.raises(InvalidRequest):
        ChatTemplate("{{ 'a'.__class__.__mro__ }}", {}).render([])


def test_one_rendering_leaves_no_names_behind_for_the_next() -> None:
    template = ChatTemplate(
        "{{ a }}{{ bos_token }}{% set bos_token = 'changed' %}{{ bos_token }}", {"bos_token": "<s>"}
    )
    assert template.render([], kwargs={"a": "1"}) == "1<s>changed"
    assert template.render([]) == "<s>changed"


@pytest.mark.parametrize("expression", ["'x' * n", "n * 'xy'", "[1] * n", "2 ** n", "n ** n", "range(n) | list"])
def test_a_number_of_the_request_makes_no_huge_value(expression: str) -> None:
    template = ChatTemplate(f"{{{{ {expression} }}}}", {})
    with pytest.raises(InvalidRequest):
        template.render([], kwargs={"n": 10**10})
    assert template.render([], kwargs={"n": 3})
