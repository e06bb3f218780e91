"""The questions that are put to the gateway and to vLLM's own API server alike.

Everything is deterministic: temperature 0 unless a seed is given, and one question at a time. The model has
random weights, so the texts are garbage, but the same garbage on both sides. Where a case is about an ending (a
stop string, a stop token), `finish` says which one the reference must give: a case that no longer exercises what
its name says fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MODEL = "tiny-llama"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EOS = 2
"""Token id of `</s>`."""
WORD = 7369
"""Token id the model repeats after its first one for the prompt `BRIEF`; its text is `itet`."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One question.

    Attributes:
        name: unique, used as test id.
        body: the request's JSON object, or raw bytes.
        finish: finish reason that the reference's first choice must have; None when the case is not about it.
        path: the endpoint.
        headers: the request's headers.
        streams: whether the reference answers it as a stream, too.
    """

    name: str
    body: Json | bytes
    finish: str | None = None
    path: str = CHAT
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    streams: bool = True

    @property
    def only_streams(self) -> bool:
        """Whether it is a question for a stream to begin with."""
        return isinstance(self.body, dict) and bool(self.body.get("stream"))

    def streamed(self) -> Case:
        """The same question, answered as a stream that ends with the usage."""
        assert isinstance(self.body, dict)
        options = {"include_usage": True} | self.body.get("stream_options", {})
        body = self.body | {"stream": True, "stream_options": options}
        return Case(self.name, body, self.finish, self.path, self.headers)


def say(*turns: tuple[str, Any]) -> list[Json]:
    """Messages from (role, content) pairs."""
    return [{"role": role, "content": content} for role, content in turns]


BRIEF = say(("user", "3.14159 1,000,000 0x1F 1e-9 ½ ² ٣"))
"""Answered with ` діitetitetitetitetitet roy roy roy` and so on."""


def chat(name: str, messages: Any, finish: str | None = None, *, streams: bool = True, **fields: Any) -> Case:
    """A greedy chat question; `fields` add to and override the body."""
    body = {"model": MODEL, "messages": messages, "max_tokens": 16, "temperature": 0} | fields
    return Case(name, body, finish, streams=streams)


def brief(name: str, finish: str | None = None, *, streams: bool = True, **fields: Any) -> Case:
    """A question about a field: the same short prompt each time."""
    return chat(name, BRIEF, finish, streams=streams, **fields)


TOOL: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city, “now” or later",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_CALL: Json = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'},
        }
    ],
}
LONG = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all. "
# `▁` + bytes of two emoji and one CJK character, a whole word and a lone continuation byte.
_BYTE_TOKENS = [243, 162, 155, 131, 231, 188, 148, 29871]

PROMPT_CASES = [
    chat("one_word", say(("user", "Hi"))),
    chat("a_question", say(("user", "What is the capital of France?"))),
    chat("a_system_message", say(("system", "Be brief."), ("user", "Hello there"))),
    chat("a_system_message_with_line_breaks", say(("system", "One.\n\n\tTwo.\n"), ("user", "Go"))),
    chat("a_system_message_of_parts", say(("system", [{"type": "text", "text": "Be kind."}]), ("user", "Go"))),
    chat(
        "several_turns",
        say(("user", "2+2?"), ("assistant", "4"), ("user", "times 3?"), ("assistant", "12"), ("user", "why")),
    ),
    chat("two_user_messages_in_a_row", say(("user", "first"), ("user", "second"))),
    chat("a_developer_message", say(("developer", "Answer in verse."), ("user", "Rain"))),
    chat(
        "a_developer_message_after_a_system_message",
        say(("system", "Rule one."), ("developer", "Rule two."), ("user", "Rain"), ("system", "Rule three.")),
    ),
    chat("a_role_of_its_own", say(("narrator", "Once upon a time"), ("user", "Go on"))),
    chat("a_name_and_no_content", [{"role": "user", "name": "ann", "content": "Hi"}, {"role": "assistant"}]),
    chat("german_and_french", say(("user", "Grüße aus Köln — ça va très bien, œuvre n° 5"))),
    chat("chinese_and_japanese", say(("user", "你好,世界。今日はいい天気ですね。"))),
    chat("arabic_hebrew_and_hindi", say(("user", "مرحبا بالعالم שלום עולם नमस्ते दुनिया"))),
    chat("emoji_with_joiners", say(("user", "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 family, flag and thumb"))),
    chat("combining_marks", say(("user", "e\u0301 a\u0308 o\u0302\u0323 Z\u0351\u036b"))),
    chat("rare_code_points", say(("user", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \u200b\u2028\ufeff\x7f"))),
    chat("source_code", say(("user", "def f(x):\n\tif x > 1:\n\t\treturn x*f(x-1)\n\treturn 1\n\n# why?"))),
    chat("json_and_quotes", say(("user", '{"a": [1, 2.5, null], "b": "\\"quoted\\" \\\\ back"}'))),
    chat("spaces_and_tabs", say(("user", "  leading,   many    inside\t\ttabs and trailing   "))),
    chat("an_empty_message", say(("user", ""))),
    chat("numbers", BRIEF),
    chat("special_tokens_written_out", say(("user", "<s>[INST] </s> <unk> <0x41>"))),
    chat("template_words_written_out", say(("user", "[/USER]\n[ASSISTANT]\n{{ bos_token }} {% raw %}"))),
    chat(
        "text_parts",
        say(("user", [{"type": "text", "text": "part one, "}, {"type": "text", "text": "part two"}])),
    ),
    chat("a_hundred_words", say(("user", LONG * 6))),
    chat("a_long_prompt", say(("user", LONG * 60))),
    chat(
        "a_tool_call_in_the_past",
        [*say(("user", "Weather?")), _CALL, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}],
    ),
    brief("tools_offered_but_not_chosen", tools=[TOOL], tool_choice="none"),
]
"""Plain greedy answers to prompts of every kind."""

FIELD_CASES = [
    brief("one_token", "length", max_tokens=1),
    brief("max_completion_tokens_wins", "length", max_tokens=3, max_completion_tokens=5),
    chat("max_tokens_defaults_to_the_rest", say(("user", LONG * 92)), "length", max_tokens=None),
    brief("a_stop_string", "stop", stop="itet"),
    brief("a_stop_string_over_token_borders", "stop", stop=["tetit"]),
    brief("a_stop_string_over_three_tokens", "stop", stop=["titetit"]),
    brief("a_stop_string_kept", "stop", stop=["tetit"], include_stop_str_in_output=True),
    brief("the_stop_string_that_comes_first_wins", "stop", stop=["roy", "tetit", "itetitet"]),
    brief("two_stop_strings_in_one_token", "stop", stop=["it", "et"]),
    brief("two_stop_strings_one_inside_the_other", "stop", stop=["ite", "t"]),
    brief("a_stop_string_in_the_first_token", "stop", stop=["і"]),
    brief("a_stop_string_that_only_begins", "length", stop=["itetitetX"], max_tokens=6),
    brief("a_stop_string_after_min_tokens", "stop", stop=["tet"], min_tokens=4),
    brief("a_stop_token", "stop", stop_token_ids=[WORD]),
    brief("a_stop_token_after_min_tokens", stop_token_ids=[WORD], min_tokens=10),
    brief("a_stop_token_kept", "stop", stop_token_ids=[WORD], include_stop_str_in_output=True),
    brief("eos_forced", "stop", logit_bias={str(EOS): 100}),
    brief("eos_forced_and_shown", "stop", logit_bias={str(EOS): 100}, skip_special_tokens=False),
    brief(
        "eos_forced_and_kept",
        "stop",
        logit_bias={str(EOS): 100},
        skip_special_tokens=False,
        include_stop_str_in_output=True,
    ),
    brief("eos_ignored", "length", logit_bias={str(EOS): 100}, ignore_eos=True, max_tokens=4),
    brief(
        "eos_ignored_and_shown",
        "length",
        logit_bias={str(EOS): 100},
        ignore_eos=True,
        skip_special_tokens=False,
        max_tokens=4,
    ),
    brief("eos_after_min_tokens", "stop", logit_bias={str(EOS): 100}, min_tokens=5),
    brief("special_tokens_shown", skip_special_tokens=False),
    brief("special_tokens_shown_without_spaces", skip_special_tokens=False, spaces_between_special_tokens=False),
    brief("a_token_banned", "length", logit_bias={str(WORD): -100}),
    brief("a_token_forced", "length", logit_bias={"1234": 100, "5": -3.5}),
    brief("words_banned", bad_words=["itet"]),
    brief("only_some_tokens_allowed", "length", allowed_token_ids=[1234, 5678, 29871, 13]),
    brief("characters_made_of_bytes", "stop", structured_outputs={"choice": ["👩‍👧 𝔘 🙃é"]}, max_tokens=40),
    brief("repetition_penalty", "length", repetition_penalty=1.8, max_tokens=40),
    brief("presence_and_frequency_penalty", "length", presence_penalty=1.5, frequency_penalty=0.7, max_tokens=40),
    brief("logprobs_alone", logprobs=True, max_tokens=6),
    brief("top_logprobs", logprobs=True, top_logprobs=5, repetition_penalty=1.4),
    brief("top_logprobs_at_the_limit", logprobs=True, top_logprobs=20, max_tokens=3),
    brief("logprobs_with_a_stop_string", "stop", logprobs=True, top_logprobs=1, stop=["tetit"]),
    brief("logprobs_of_a_forced_eos", "stop", logprobs=True, top_logprobs=2, logit_bias={str(EOS): 100}),
    brief("logprobs_of_named_tokens", logprobs=True, logprob_token_ids=[300, 301, 302], max_tokens=4),
    brief("one_named_token_and_more_best", logprobs=True, top_logprobs=5, logprob_token_ids=[300], max_tokens=4),
    brief("many_named_tokens", logprobs=True, top_logprobs=1, logprob_token_ids=[*range(300, 420)], max_tokens=3),
    brief("prompt_logprobs", prompt_logprobs=2, max_tokens=2, streams=False),
    brief("token_ids_returned", return_token_ids=True, max_tokens=6),
    brief("seeded_sampling", temperature=0.9, seed=42, top_p=0.95, top_k=50, min_p=0.01),
    brief("two_choices_with_a_seed", n=2, temperature=1.0, seed=11, logprobs=True, top_logprobs=1),
    brief("the_models_own_sampling_defaults", temperature=None, seed=7),
    brief("vllm_defaults_overridden", temperature=1.0, top_p=1.0, seed=7),
    chat(
        "a_generation_prompt_left_out",
        say(("user", "Count."), ("assistant", "One, two,")),
        add_generation_prompt=False,
    ),
    chat(
        "the_final_message_continued",
        say(("user", "Count."), ("assistant", "One, two,")),
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    chat(
        "the_final_message_continued_after_spaces",
        say(("user", "Count."), ("assistant", "One, two, ")),
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    brief("special_tokens_added", add_special_tokens=True),
    brief("template_arguments", chat_template_kwargs={"hint": "Prime numbers first.", "no_such_name": 1}),
    brief("a_choice_of_words", structured_outputs={"choice": ["positive", 'neg"ative', "neutral"]}),
    brief("a_regular_expression", structured_outputs={"regex": r"\d{3}-[a-f]{2}"}),
    brief("a_grammar", "length", structured_outputs={"grammar": 'root ::= ("yes" | "no") " " [0-9]+ "."'}),
    brief(
        "a_json_schema",
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "answer",
                "schema": {
                    "type": "object",
                    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
                    "required": ["ok", "kind"],
                    "additionalProperties": False,
                },
            },
        },
    ),
    brief(
        "a_json_schema_without_white_space",
        structured_outputs={
            "json": {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"]},
            "disable_any_whitespace": True,
        },
    ),
    brief("a_json_object", response_format={"type": "json_object"}),
    brief("unknown_fields", nonsense=1, metadata={"a": "b"}, user="me", store=False, service_tier="auto"),
    brief(
        "continuous_usage",
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        stream=True,
    ),
]
"""Every sampling field, greedy or seeded."""

BYTE_CASES = [
    brief("bytes_of_characters_that_never_fit", allowed_token_ids=_BYTE_TOKENS, presence_penalty=2),
    brief("bytes_of_half_a_character", "length", logit_bias={"243": 60, "162": 59}, max_tokens=7),
    brief("logprobs_of_bytes", logprobs=True, top_logprobs=2, logit_bias={"243": 60, "162": 59}, max_tokens=5),
    brief(
        "logprobs_of_characters_made_of_bytes",
        "stop",
        structured_outputs={"choice": ["a🙃b"]},
        logprobs=True,
        top_logprobs=3,
    ),
]
"""Tokens that are single bytes. vLLM's server drops bytes at the end of a text that form no character, and gives all
bytes of a character to the token that completes it; the gateway shows U+FFFD, and each token's own bytes."""


def _complete(name: str, prompt: Any, finish: str | None = None, **fields: Any) -> Case:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 12, "temperature": 0} | fields
    return Case(f"completion_{name}", body, finish, COMPLETIONS)


COMPLETION_CASES = [
    _complete("of_a_text", "Once upon a time", "length"),
    _complete("of_unicode", "Übung macht den 师傅 🙂", "length"),
    _complete("of_token_ids", [1, 15043, 727], "length"),
    _complete("of_several_prompts", ["One", "Two words", "3"]),
    _complete("of_several_lists_of_ids", [[1, 15043], [1, 500, 600]]),
    _complete("of_a_default_length", "Once", "length", max_tokens=None),
    _complete("without_special_tokens", "Once upon", add_special_tokens=False),
    _complete("with_special_tokens_in_the_text", "<s>Once</s>"),
    _complete("with_a_stop_string", "Hello there", "stop", stop=["pher Ch"]),
    _complete("with_logprobs", "Hello there", logprobs=3, max_tokens=4),
    _complete("with_the_chosen_logprobs", "Hello there", logprobs=0, max_tokens=4),
    _complete("with_echo", "Hello there", echo=True),
    _complete("with_logprobs_of_named_tokens", "Hello there", logprobs=1, logprob_token_ids=[300, 301], max_tokens=4),
    _complete("with_echo_and_logprobs", "Hello there", echo=True, logprobs=2, max_tokens=3),
    _complete("with_two_choices", "Hello there", n=2, temperature=1, seed=3),
    _complete("of_two_prompts_with_two_choices", ["Hello there", "Go"], n=2, temperature=1, seed=3),
    _complete("with_token_ids", "Hello there", return_token_ids=True, max_tokens=3),
    _complete("with_eos", "Hello there", "stop", logit_bias={str(EOS): 100}),
]
"""Plain completions."""
