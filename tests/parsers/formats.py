"""Every tool-call format as a model writes it: one call or several, with each frame that is seen around them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Arguments = Mapping[str, Any]
Call = tuple[str, Arguments]


def number(value: Any) -> str:
    """A value as JSON; a text of digits and signs that stands for a number comes out bare."""
    return value.text if isinstance(value, Raw) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Raw:
    """A number that Python cannot hold, as it is written."""

    text: str


def json_object(arguments: Arguments) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {number(value)}" for key, value in arguments.items()) + "}"


def plain(value: Any) -> str:
    """A value as formats of plain text write it: strings without quotes."""
    return value if isinstance(value, str) else number(value)


@dataclass(frozen=True)
class Frame:
    """What stands in front of the first call, between two, and behind the last."""

    open: str = ""
    close: str = ""
    between: str = ""


@dataclass(frozen=True)
class Format:
    """How one family writes.

    Attributes:
        call: one call.
        frames: around calls; the first is the usual one.
    """

    call: Callable[[str, Arguments], str]
    frames: Sequence[Frame] = (Frame(),)


def named(head: str, tail: str, arguments_key: str = "arguments", name_key: str = "name") -> Callable[..., str]:
    """A JSON object with name and arguments, between two texts."""

    def call(name: str, arguments: Arguments) -> str:
        return f'{head}{{"{name_key}": "{name}", "{arguments_key}": {json_object(arguments)}}}{tail}'

    return call


def tagged(
    head: str, tail: str, parameter: str, close: str, key: Callable[[str, Any], str] = lambda name, value: name
) -> Callable[..., str]:
    """Markup with an element per parameter; ``{}`` in `head` stands for the name, in `parameter` for the key."""

    def call(name: str, arguments: Arguments) -> str:
        inner = "".join(parameter.replace("{}", key(k, v)) + plain(v) + close for k, v in arguments.items())
        return head.replace("{}", name) + inner + tail

    return call


def around(head: str, tail: str) -> Callable[..., str]:
    """The arguments as a JSON object between two texts; ``{}`` in `head` stands for the name."""

    def call(name: str, arguments: Arguments) -> str:
        return head.replace("{}", name) + json_object(arguments) + tail

    return call


def pythonic(name: str, arguments: Arguments) -> str:
    return f"{name}({', '.join(f'{key}={number(value)}' for key, value in arguments.items())})"


def gemma(head: str, tail: str, quote: str) -> Callable[..., str]:
    def value(item: Any) -> str:
        return f"{quote}{item}{quote}" if isinstance(item, str) else number(item)

    def call(name: str, arguments: Arguments) -> str:
        return f"{head}call:{name}{{{','.join(f'{k}:{value(v)}' for k, v in arguments.items())}}}{tail}"

    return call


def kimi_k3(name: str, arguments: Arguments) -> str:
    kinds = {key: "string" if isinstance(value, str) else "number" for key, value in arguments.items()}
    inner = "".join(
        f'<|open|>argument key="{key}" type="{kinds[key]}"<|sep|>{plain(value)}<|close|>argument<|sep|>'
        for key, value in arguments.items()
    )
    return f'<|open|>call tool="{name}" index="0"<|sep|>{inner}<|close|>call<|sep|>'


def dsml(space: str) -> Callable[..., str]:
    tag = f"｜DSML｜{space}"

    def call(name: str, arguments: Arguments) -> str:
        inner = "".join(
            f'<{tag}parameter name="{k}" string="{str(isinstance(v, str)).lower()}">{plain(v)}</{tag}parameter>\n'
            for k, v in arguments.items()
        )
        return f'<{tag}invoke name="{name}">\n{inner}</{tag}invoke>'

    return call


def framed_dsml(block: str) -> Frame:
    return Frame(f"<｜DSML｜{block}>\n", f"\n</｜DSML｜{block}>", "\n")


GLM = ("<arg_key>{}</arg_key><arg_value>", "</arg_value>")
GLM_LINES = ("<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n")
LIST = Frame("[", "]", ", ")
LINES = Frame(between="\n")
DEEPSEEK = (Frame("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "\n"), LINES)
XML_FUNCTION = ("<function={}>\n", "</function>", "<parameter={}>\n", "\n</parameter>\n")
FUNCTION_BLOCK = Frame("<tool_call>\n", "\n</tool_call>", "\n</tool_call>\n<tool_call>\n")
INVOKE = ('<invoke name="{}">', "</invoke>", '<parameter name="{}">', "</parameter>")
MUSE_CALL = tagged('<atem:invoke name="{}">\n', "</atem:invoke>", '<atem:parameter name="{}">', "</atem:parameter>\n")

FORMATS: dict[str, Format] = {
    "apertus": Format(
        lambda name, arguments: f'{{"{name}": {json_object(arguments)}}}',
        [Frame("<|tools_prefix|>[", "]<|tools_suffix|>", ", ")],
    ),
    "cohere": Format(
        named("", "", "parameters", "tool_name"),
        [
            Frame("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>", ",\n    "),
            Frame("<|START_ACTION|>", "<|END_ACTION|>", "\n"),
        ],
    ),
    "deepseek": Format(
        around("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n", "\n```<｜tool▁call▁end｜>"), DEEPSEEK
    ),
    "deepseek31": Format(around("<｜tool▁call▁begin｜>{}<｜tool▁sep｜>", "<｜tool▁call▁end｜>"), DEEPSEEK),
    "deepseek32": Format(dsml(""), [framed_dsml("function_calls"), Frame()]),
    "deepseek_v4": Format(dsml(""), [framed_dsml("tool_calls"), Frame()]),
    "deepseek_v41": Format(dsml(" "), [framed_dsml(" calls"), Frame()]),
    "dots": Format(tagged(*INVOKE), [Frame("<dots_function_call>", "</dots_function_call>"), Frame()]),
    "functionary": Format(around("<function={}>", "</function>"), [Frame(), LINES]),
    "functiongemma": Format(gemma("<start_function_call>", "<end_function_call>", "<escape>"), [Frame(), LINES]),
    "gemma4": Format(gemma("<|tool_call>", "<tool_call|>", '<|"|>'), [Frame(), LINES]),
    "gigachat3": Format(named("<|function_call|>", ""), [Frame(), Frame("", "<|message_sep|>")]),
    "glm45_moe": Format(tagged("<tool_call>{}\n", "</tool_call>", *GLM_LINES), [LINES, Frame()]),
    "granite": Format(
        named("", ""), [Frame("<|tool_call|>[", "]", ", "), Frame("<tool_call>[", "]</tool_call>", ", ")]
    ),
    "granite_20b_fc": Format(named("<function_call> ", ""), [Frame(), LINES]),
    "harmony": Format(
        around("<|start|>assistant<|channel|>commentary to=functions.{} <|constrain|>json<|message|>", "<|call|>")
    ),
    "hunyuan_a13b": Format(named("", ""), [Frame("<tool_calls>[", "]</tool_calls>", ", ")]),
    "hunyuan_xml": Format(
        tagged("<tool_call>{}<tool_sep>\n", "</tool_call>", *GLM_LINES),
        [Frame("<tool_calls>\n", "\n</tool_calls>", "\n"), Frame(), LINES],
    ),
    "inkling": Format(
        lambda name, arguments: (
            f"<|message_model|>{name}<|content_invoke_tool_json|>"
            f'{{"name": "{name}", "args": {json_object(arguments)}}}<|end_message|>'
        )
    ),
    "internlm": Format(named("<|action_start|><|plugin|>\n", "<|action_end|>", "parameters"), [LINES, Frame()]),
    "iquest": Format(tagged("<iquest_tool_call>{}", "</iquest_tool_call>", *GLM), [LINES, Frame()]),
    "json": Format(
        named("", ""),
        [LIST, Frame(between="\n"), Frame("<tool_call>\n", "\n</tool_call>", "\n</tool_call>\n<tool_call>\n")],
    ),
    "k2_horizon": Format(
        tagged(
            "<ifm|tool_call>{}\n",
            "</ifm|tool_call>",
            "<ifm|arg_key>{}</ifm|arg_key>\n<ifm|arg_value>",
            "</ifm|arg_value>\n",
        ),
        [Frame("<ifm|tool_calls>\n", "\n</ifm|tool_calls>", "\n"), Frame(), LINES],
    ),
    "kimi_k3": Format(kimi_k3, [Frame("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"), Frame()]),
    "kimik2": Format(
        around("<|tool_call_begin|>functions.{}:0<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        [Frame("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"), Frame(), LINES],
    ),
    "lfm2": Format(pythonic, [Frame("<|tool_call_start|>[", "]<|tool_call_end|>", ", ")]),
    "llama": Format(named("", "", "parameters"), [Frame("<|python_tag|>", "", "; "), Frame(between="; ")]),
    "llama4_pythonic": Format(pythonic, [Frame("<|python_start|>[", "]<|python_end|>", ", "), LIST]),
    "longcat": Format(named("<longcat_tool_call>\n", "\n</longcat_tool_call>"), [LINES, Frame()]),
    "mimo": Format(
        tagged("<function={}>\n", "</function>", "<parameter={}>", "</parameter>\n"), [FUNCTION_BLOCK, LINES, Frame()]
    ),
    "minicpm5": Format(
        tagged('<function name="{}">', "</function>", '<param name="{}">', "</param>"), [Frame(), LINES]
    ),
    "minimax_m2": Format(
        tagged('<invoke name="{}">\n', "</invoke>", '<parameter name="{}">', "</parameter>\n"),
        [Frame("<minimax:tool_call>\n", "\n</minimax:tool_call>", "\n"), Frame()],
    ),
    "minimax_m3": Format(
        lambda name, arguments: (
            f']<]minimax[>[<invoke name="{name}">'
            + "".join(f"]<]minimax[>[<{k}>{plain(v)}]<]minimax[>[</{k}>" for k, v in arguments.items())
            + "]<]minimax[>[</invoke>"
        ),
        [Frame("]<]minimax[>[<tool_call>\n", "\n]<]minimax[>[</tool_call>", "\n"), Frame()],
    ),
    "mistral": Format(named("", ""), [Frame("[TOOL_CALLS] [", "]", ", "), Frame("[TOOL_CALLS]", "", "[TOOL_CALLS]")]),
    "muse": Format(
        MUSE_CALL,
        [
            Frame(
                "<|start|>assistant to=tools.x<|message|><atem:function_calls>\n",
                "\n</atem:function_calls><|eom|>",
                "\n",
            ),
            Frame("<atem:function_calls>\n", "\n</atem:function_calls>", "\n"),
        ],
    ),
    "nemotron_json": Format(named("", ""), [Frame("<TOOLCALL>[", "]</TOOLCALL>", ", ")]),
    "olmo3": Format(pythonic, [Frame("<function_calls>\n", "\n</function_calls>", "\n")]),
    "phi4_mini_json": Format(named("", ""), [Frame("functools[", "]", ", ")]),
    "plamo3": Format(
        around(
            "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{}<|plamo:end_tool_name:plamo|>"
            "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",
            "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
        ),
        [Frame("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|><|plamo:tag|>"), Frame()],
    ),
    "pythonic": Format(pythonic, [LIST, Frame("<|python_start|>[", "]<|python_end|>", ", ")]),
    "qwen": Format(named("<tool_call>\n", "\n</tool_call>"), [LINES, Frame()]),
    "qwen_xml": Format(tagged(*XML_FUNCTION), [FUNCTION_BLOCK, LINES, Frame()]),
    "sarashina": Format(named("", ""), [Frame("<|tool_calls|>[", "]", ", "), LIST]),
    "seed_oss": Format(
        tagged(*XML_FUNCTION),
        [Frame("<seed:tool_call>\n", "\n</seed:tool_call>", "\n</seed:tool_call>\n<seed:tool_call>\n"), LINES, Frame()],
    ),
    "step3": Format(
        tagged(
            "<｜tool_call_begin｜>function<｜tool_sep｜>" + '<steptml:invoke name="{}">',
            "</steptml:invoke><｜tool_call_end｜>",
            '<steptml:parameter name="{}">',
            "</steptml:parameter>",
        ),
        [
            Frame("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
            Frame("<｜tool_calls_begin｜>\n", "\n<｜tool_calls_end｜>", "\n"),
        ],
    ),
    "step5": Format(tagged(*XML_FUNCTION), [FUNCTION_BLOCK, LINES, Frame()]),
    "xlam": Format(
        named("", ""),
        [
            LIST,
            Frame("```json\n[", "]\n```", ", "),
            Frame("[TOOL_CALLS][", "]", ", "),
            Frame("<tool_call>[", "]</tool_call>", ", "),
        ],
    ),
}
"""By the name of the tool-call parser."""

NAMED_MISTRAL = Format(around("[TOOL_CALLS]{}[ARGS]", ""))


def written(form: Format, frame: Frame, calls: Sequence[Call]) -> str:
    """Calls in one frame."""
    return frame.open + frame.between.join(form.call(*call) for call in calls) + frame.close


def variants() -> list[tuple[str, Format, Frame]]:
    """Every parser with every way in which its calls may be framed."""
    found = [(name, form, frame) for name, form in FORMATS.items() for frame in form.frames]
    return [*found, ("mistral", NAMED_MISTRAL, Frame())]
