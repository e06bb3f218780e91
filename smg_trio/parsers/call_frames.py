"""How each family's calls look to a grammar: the text around the arguments, for structural tags.

A frame says the same as the family's parser, seen from the other side: what the grammar lets through, the parser
reads. Families without a frame write their arguments in a form that no grammar library knows (Python literals) or
have no markers; their forced calls are plain JSON (see `constraints`).

The words of the tags are xgrammar's (``xgrammar.structural_tag``, 0.1.26 to 0.2.8), which is what vLLM compiles a
``structural_tag`` constraint with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from smg_trio.parsers.json_reader import escape

Format = dict[str, Any]
"""One node of a structural tag."""


@dataclass(frozen=True, slots=True)
class CallFrame:
    """One family's calls.

    Attributes:
        begin: text in front of the arguments; ``{name}`` stands for the tool's name.
        end: text behind them.
        style: how arguments are written, in xgrammar's words.
        numbered: `begin` ends in front of the call's number; this text stands between number and arguments.
        open, close: around all calls.
        separator: between calls.
    """

    begin: str
    end: str
    style: str = "json"
    numbered: str = ""
    open: str = ""
    close: str = ""
    separator: str = ""

    def call(self, name: str, schema: Any) -> Format:
        """The tag of a call of `name` whose arguments are held to `schema`."""
        begin = self.begin.replace("{name}", escape(name))
        arguments: Format = {"type": "json_schema", "json_schema": schema}
        if self.style != "json":
            arguments["style"] = self.style
        if self.numbered:
            return tag(begin, sequence(regex("[0-9]+"), const(self.numbered), arguments), self.end)
        return tag(begin, arguments, self.end)

    def calls(self, tools: Mapping[str, Any], single: bool) -> Format:
        """One call or more (exactly one if `single`) of `tools`, which maps names to schemas."""
        tags = [self.call(name, schema) for name, schema in tools.items()]
        listed = several(tags, self.separator, single)
        return sequence(*(const(self.open),) * bool(self.open), listed, *(const(self.close),) * bool(self.close))

    def triggered(self, tools: Mapping[str, Any], single: bool) -> Format:
        """Any text, with calls of `tools` and of nothing else in it."""
        tags = [self.call(name, schema) for name, schema in tools.items()]
        if self.open:
            tags = [tag(self.open, several(tags, self.separator, single), self.close)]
        trigger = self.open or self.begin.partition("{name}")[0]
        return {"type": "triggered_tags", "triggers": [trigger], "tags": tags, "stop_after_first": single}


def const(text: str) -> Format:
    """Exactly `text`."""
    return {"type": "const_string", "value": text}


def regex(pattern: str) -> Format:
    """Text that `pattern` matches."""
    return {"type": "regex", "pattern": pattern}


def any_text(*excludes: str) -> Format:
    """Any text without `excludes`."""
    return {"type": "any_text", "excludes": list(excludes)}


def tag(begin: str, content: Format, end: str | Sequence[str]) -> Format:
    """`content` between two texts; any of the texts if `end` is a list."""
    return {"type": "tag", "begin": begin, "content": content, "end": end if isinstance(end, str) else list(end)}


def sequence(*elements: Format) -> Format:
    """One behind the other."""
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": list(elements)}


def either(*elements: Format) -> Format:
    """Any one of them."""
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def optional(content: Format) -> Format:
    """`content` or nothing."""
    return {"type": "optional", "content": content}


def several(tags: Sequence[Format], separator: str, single: bool) -> Format:
    """At least one of `tags`; exactly one if `single`."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": single,
    }


def _json_call(arguments_key: str = "arguments", name_key: str = "name") -> str:
    return '{"' + name_key + '": "{name}", "' + arguments_key + '": '


def _tagged(marker: str) -> CallFrame:
    return CallFrame(f"<{marker}>\n{_json_call()}", f"}}\n</{marker}>", separator="\n")


def _listed(opening: str, closing: str, call: str = _json_call()) -> CallFrame:
    return CallFrame(call, "}", open=opening, close=closing, separator=", ")


def _dsml(block: str) -> CallFrame:
    return CallFrame(
        '<｜DSML｜invoke name="{name}">\n',
        "</｜DSML｜invoke>\n",
        style="deepseek_xml",
        open=f"<｜DSML｜{block}>\n",
        close=f"</｜DSML｜{block}>",
    )


MISTRAL_LIST: Final = _listed("[TOOL_CALLS][", "]")
"""Mistral before tokenizer v11."""

FRAMES: Final[dict[str, CallFrame]] = {
    "apertus": CallFrame('{"{name}": ', "}", open="<|tools_prefix|>[", close="]<|tools_suffix|>", separator=", "),
    "cohere": _listed("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>", _json_call("parameters", "tool_name")),
    "deepseek": CallFrame(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
        "\n```<｜tool▁call▁end｜>",
        open="<｜tool▁calls▁begin｜>",
        close="<｜tool▁calls▁end｜>",
        separator="\n",
    ),
    "deepseek31": CallFrame(
        "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        open="<｜tool▁calls▁begin｜>",
        close="<｜tool▁calls▁end｜>",
    ),
    "deepseek32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "functionary": CallFrame("<function={name}>", "</function>"),
    "gigachat3": CallFrame(f"<|function_call|>{_json_call()}", "}"),
    "glm45_moe": CallFrame("<tool_call>{name}\n", "\n</tool_call>", style="glm_xml", separator="\n"),
    "granite_20b_fc": CallFrame(f"<function_call> {_json_call()}", "}", separator=" "),
    "granite": _listed("<|tool_call|>[", "]"),
    "hunyuan_a13b": _listed("<tool_calls>[", "]</tool_calls>"),
    "inkling": CallFrame(
        '<|message_model|>{name}<|content_invoke_tool_json|>{"name": "{name}", "args": ', "}<|end_message|>"
    ),
    "internlm": CallFrame(f"<|action_start|><|plugin|>\n{_json_call('parameters')}", "}<|action_end|>\n"),
    "kimik2": CallFrame(
        "<|tool_call_begin|>functions.{name}:",
        "<|tool_call_end|>",
        numbered="<|tool_call_argument_begin|>",
        open="<|tool_calls_section_begin|>",
        close="<|tool_calls_section_end|>",
    ),
    "llama": CallFrame(_json_call("parameters"), "}", separator="; "),
    "longcat": _tagged("longcat_tool_call"),
    "minimax_m2": CallFrame(
        '<invoke name="{name}">\n',
        "</invoke>\n",
        style="minimax_xml",
        open="<minimax:tool_call>\n",
        close="</minimax:tool_call>",
    ),
    "minimax_m3": CallFrame(
        ']<]minimax[>[<invoke name="{name}">',
        "]<]minimax[>[</invoke>\n",
        style="minimax_m3_xml",
        open="]<]minimax[>[<tool_call>\n",
        close="]<]minimax[>[</tool_call>",
    ),
    "mistral": CallFrame("[TOOL_CALLS]{name}[ARGS]", ""),
    "nemotron_json": _listed("<TOOLCALL>[", "]</TOOLCALL>"),
    "phi4_mini_json": _listed("functools[", "]"),
    "plamo3": CallFrame(
        "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
        "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
        open="<|plamo:begin_tool_requests:plamo|>",
        close="<|plamo:end_tool_requests:plamo|>",
    ),
    "qwen": _tagged("tool_call"),
    "qwen_xml": CallFrame(
        "<tool_call>\n<function={name}>\n", "\n</function>\n</tool_call>", style="qwen_xml", separator="\n"
    ),
    "seed_oss": CallFrame(
        "<seed:tool_call>\n<function={name}>\n", "\n</function>\n</seed:tool_call>", style="qwen_xml", separator="\n"
    ),
}
"""By the name of the tool-call parser."""

_K3_CALLS: Final = CallFrame(
    '<|open|>call tool="{name}" index="',
    "<|close|>call<|sep|>",
    style="kimi_k3_xml",
    numbered='"<|sep|>',
    open="<|open|>tools<|sep|>",
    close="<|close|>tools<|sep|>",
)
_K3_END: Final = optional(const("<|close|>message<|sep|>"))
_HARMONY_ENDS: Final = ("<|end|>", "")
# The tokens that end a Harmony message also end the generation, and a grammar never lets stop tokens through as
# text: an empty end stands for them.


def _k3_response(content: Format) -> list[Format]:
    return [optional(const("<|open|>response<|sep|>")), tag("", content, "<|close|>response<|sep|>")]


def _harmony_preamble(channel: str) -> Format:
    message = tag(f"<|channel|>{channel}<|message|>", any_text(), "<|end|>")
    return optional(sequence(message, const("<|start|>assistant")))


def _harmony_calls(tools: Mapping[str, Any], single: bool) -> Format:
    del single  # the end of a call ends the generation
    tags = [
        tag(begin + constrain + "<|message|>", {"type": "json_schema", "json_schema": schema}, _HARMONY_ENDS)
        for name, schema in tools.items()
        for begin in (f"<|channel|>commentary to=functions.{name}", f" to=functions.{name}<|channel|>commentary")
        for constrain in (" <|constrain|>json", " json")
    ]
    return sequence(_harmony_preamble("analysis"), _harmony_preamble("commentary"), either(*tags))


def _harmony_answer(content: Format) -> Format:
    heads = ("<|channel|>final <|constrain|>json<|message|>", "<|channel|>final<|message|>")
    return sequence(_harmony_preamble("analysis"), either(*(tag(head, content, _HARMONY_ENDS) for head in heads)))


def _k3_required(tools: Mapping[str, Any], single: bool) -> Format:
    return sequence(*_k3_response(any_text("<|open|>", "<|close|>")), _K3_CALLS.calls(tools, single), _K3_END)


def _k3_answer(content: Format) -> Format:
    return sequence(*_k3_response(content), _K3_END)


def _inkling_answer(content: Format) -> Format:
    return sequence(optional(const("<|message_model|>")), tag("<|content_text|>", content, "<|end_message|>"))


CHANNEL_CALLS: Final[dict[str, Callable[[Mapping[str, Any], bool], Format]]] = {
    "harmony": _harmony_calls,
    "kimi_k3": _k3_required,
}
"""Forced calls of families whose whole answer is framed, by the name of the tool-call parser."""

CHANNEL_ANSWERS: Final[dict[str, Callable[[Format], Format]]] = {
    "harmony": _harmony_answer,
    "inkling": _inkling_answer,
    "kimi_k3": _k3_answer,
}
"""The visible text of such an answer held to a format, by the name of the reasoning parser."""
