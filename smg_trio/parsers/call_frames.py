"""How each family's calls look to a grammar: the text around the arguments, for structural tags.

A frame says the same as the family's parser, seen from the other side: what the grammar lets through, the parser
reads. Families without a frame write their arguments in a form that no grammar library of today's engines knows (Python
literals, Gemma's quotes) or have no markers; their forced calls are plain JSON (see `constraints`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from smg_trio.parsers.element_frames import Elements
from smg_trio.parsers.json_reader import escape
from smg_trio.parsers.tag_formats import (
    Format,
    any_text,
    const,
    either,
    json_schema,
    optional,
    regex,
    sequence,
    several,
    tag,
)


@dataclass(frozen=True, slots=True)
class CallFrame:
    """One family's calls.

    Attributes:
        begin: text in front of the arguments; ``{name}`` stands for the tool's name.
        end: text behind them.
        style: how arguments are written, in xgrammar's words.
        elements: how they are written, where xgrammar has no word for it.
        numbered: `begin` ends in front of the call's number; this text stands between number and arguments.
        open, close: around all calls.
        separator: between calls.
        marked: the beginning is a marker, which text does not have by chance. Otherwise calls in text cannot be held.
    """

    begin: str
    end: str
    style: str = "json"
    elements: Elements | None = None
    numbered: str = ""
    open: str = ""
    close: str = ""
    separator: str = ""
    marked: bool = True

    def call(self, name: str, schema: Any) -> Format:
        """The tag of a call of `name` whose arguments are held to `schema`."""
        begin = self.begin.replace("{name}", escape(name))
        arguments = json_schema(schema, self.style) if self.elements is None else self.elements.arguments(schema)
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


def hunyuan_frame(template_source: str = "") -> CallFrame:
    """Hunyuan 3's calls, or Hunyuan 4's, whose template has no ``<tool_sep>``; with its suffix in all tags."""
    found = _SUFFIX.search(template_source)
    suffix = (found[1] or found[2] or "") if found else ""
    parted = "<tool_sep" in template_source or not template_source
    name_end, line = (f"<tool_sep{suffix}>\n", "\n") if parted else ("", "")
    return CallFrame(
        f"<tool_call{suffix}>{{name}}{name_end}",
        f"</tool_call{suffix}>{line}",
        elements=Elements(
            f"<arg_key{suffix}>{{key}}</arg_key{suffix}>{line}<arg_value{suffix}>", f"</arg_value{suffix}>", line
        ),
        open=f"<tool_calls{suffix}>{line}",
        close=f"</tool_calls{suffix}>",
    )


_SUFFIX: Final = re.compile(r"<tool_calls(:\w{1,32})>|HYTK\s*=\s*['\"](:\w{1,32})['\"]")
"""Where a template of Hunyuan's says it: in the tag, or in the variable that its tags are formatted with."""
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
    "deepseek_v41": CallFrame(
        '<｜DSML｜ invoke name="{name}">\n',
        "</｜DSML｜ invoke>\n",
        style="deepseek_v4_1_xml",
        open="<｜DSML｜ calls>\n",
        close="</｜DSML｜ calls>",
    ),
    "dots": CallFrame(
        '<invoke name="{name}">\n',
        "</invoke>\n",
        style="minimax_xml",
        open="<dots_function_call>\n",
        close="</dots_function_call>",
    ),
    "functionary": CallFrame("<function={name}>", "</function>"),
    "gigachat3": CallFrame(f"<|function_call|>{_json_call()}", "}"),
    "glm45_moe": CallFrame("<tool_call>{name}\n", "\n</tool_call>", style="glm_xml", separator="\n"),
    "granite_20b_fc": CallFrame(f"<function_call> {_json_call()}", "}", separator=" "),
    "granite": _listed("<|tool_call|>[", "]"),
    "hunyuan_a13b": _listed("<tool_calls>[", "]</tool_calls>"),
    "hunyuan_xml": hunyuan_frame(),
    "inkling": CallFrame(
        '<|message_model|>{name}<|content_invoke_tool_json|>{"name": "{name}", "args": ', "}<|end_message|>"
    ),
    "internlm": CallFrame(f"<|action_start|><|plugin|>\n{_json_call('parameters')}", "}<|action_end|>\n"),
    "iquest": CallFrame("<iquest_tool_call>{name}", "</iquest_tool_call>", style="glm_xml", separator="\n"),
    "k2_horizon": CallFrame(
        "<ifm|tool_call>{name}\n",
        "</ifm|tool_call>\n",
        elements=Elements("<ifm|arg_key>{key}</ifm|arg_key>\n<ifm|arg_value>", "</ifm|arg_value>", "\n"),
        open="<ifm|tool_calls>\n",
        close="</ifm|tool_calls>",
    ),
    "kimik2": CallFrame(
        "<|tool_call_begin|>functions.{name}:",
        "<|tool_call_end|>",
        numbered="<|tool_call_argument_begin|>",
        open="<|tool_calls_section_begin|>",
        close="<|tool_calls_section_end|>",
    ),
    "llama": CallFrame(_json_call("parameters"), "}", separator="; "),
    "longcat": _tagged("longcat_tool_call"),
    "mimo": CallFrame(
        "<tool_call>\n<function={name}>\n",
        "</function>\n</tool_call>",
        elements=Elements("<parameter={key}>", "</parameter>", "\n"),
        separator="\n",
    ),
    "minicpm5": CallFrame(
        '<function name="{name}">', "</function>", elements=Elements('<param name="{key}">', "</param>"), separator="\n"
    ),
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
    "sarashina": _listed("<|tool_calls|>[", "]"),
    "seed_oss": CallFrame(
        "<seed:tool_call>\n<function={name}>\n", "\n</function>\n</seed:tool_call>", style="qwen_xml", separator="\n"
    ),
    "step3": CallFrame(
        '<｜tool_call_begin｜>\nfunction<｜tool_sep｜><steptml:invoke name="{name}">',
        "</steptml:invoke><｜tool_call_end｜>\n",
        elements=Elements('<steptml:parameter name="{key}">', "</steptml:parameter>"),
        open="<｜tool_calls_begin｜>\n",
        close="<｜tool_calls_end｜>",
    ),
    "step5": CallFrame(
        "<tool_call>\n<function={name}>\n", "\n</function>\n</tool_call>", style="qwen_xml", separator="\n"
    ),
    "xlam": CallFrame(_json_call(), "}", open="[", close="]", separator=", ", marked=False),
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
        tag(begin + constrain + "<|message|>", json_schema(schema), _HARMONY_ENDS)
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
