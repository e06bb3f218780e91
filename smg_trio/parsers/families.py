"""The tables of the registry: names, spellings, models and template markers of every family.

Keys of the ``_MODELS`` tables are stems: substrings of a lower-cased model name, the longest wins. The
``_TEMPLATES`` tables are read in order: the first marker found in the chat template's source wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from smg_trio.parsers.base import ToolParser, ToolSchemas
from smg_trio.parsers.reasoning import think
from smg_trio.parsers.reasoning.think import ThinkFormat, last_marker
from smg_trio.parsers.tool import delimited, json_block, named, pythonic, xml_formats
from smg_trio.parsers.tool.delimited import DelimitedParser
from smg_trio.parsers.tool.harmony import HarmonyParser
from smg_trio.parsers.tool.inkling import InklingParser
from smg_trio.parsers.tool.json_block import JsonBlockFormat, JsonBlockParser
from smg_trio.parsers.tool.kimi_k3 import RESPONSE_OPEN, THINK_OPEN, KimiK3Parser
from smg_trio.parsers.tool.mistral import MistralParser
from smg_trio.parsers.tool.named import KimiK2Parser, NamedCallParser
from smg_trio.parsers.tool.nested_xml import NestedXmlParser
from smg_trio.parsers.tool.pythonic import PythonicParser
from smg_trio.parsers.tool.xml_block import XmlParser

ToolFactory = Callable[[ToolSchemas], ToolParser]


def _block(style: JsonBlockFormat) -> ToolFactory:
    return partial(JsonBlockParser, style)


TOOL_PARSERS: dict[str, ToolFactory] = {
    "apertus": _block(json_block.APERTUS),
    "cohere": _block(json_block.COHERE),
    "deepseek": partial(NamedCallParser, named.DEEPSEEK_V3),
    "deepseek31": partial(NamedCallParser, named.DEEPSEEK_V31),
    "deepseek32": partial(XmlParser, xml_formats.DEEPSEEK_V32),
    "deepseek_v4": partial(XmlParser, xml_formats.DEEPSEEK_V4),
    "dots": partial(XmlParser, xml_formats.DOTS),
    "functiongemma": partial(DelimitedParser, delimited.FUNCTIONGEMMA),
    "gemma4": partial(DelimitedParser, delimited.GEMMA4),
    "gigachat3": _block(json_block.GIGACHAT3),
    "granite_20b_fc": _block(json_block.GRANITE_20B),
    "hunyuan_xml": xml_formats.HunyuanXmlParser,
    "k2_horizon": partial(XmlParser, xml_formats.K2_HORIZON),
    "mimo": partial(XmlParser, xml_formats.MIMO),
    "minicpm5": partial(XmlParser, xml_formats.MINICPM5),
    "minimax_m3": NestedXmlParser,
    "plamo3": partial(NamedCallParser, named.PLAMO3),
    "xlam": _block(json_block.XLAM),
    "functionary": partial(NamedCallParser, named.FUNCTIONARY),
    "glm45_moe": partial(XmlParser, xml_formats.GLM),
    "granite": _block(json_block.GRANITE),
    "harmony": HarmonyParser,
    "hunyuan_a13b": _block(json_block.HUNYUAN),
    "inkling": InklingParser,
    "internlm": _block(json_block.INTERNLM),
    "json": _block(json_block.JSON),
    "kimi_k3": KimiK3Parser,
    "kimik2": partial(KimiK2Parser, named.KIMI_K2),
    "lfm2": partial(PythonicParser, pythonic.LFM2),
    "llama": _block(json_block.LLAMA3),
    "longcat": _block(json_block.LONGCAT),
    "llama4_pythonic": partial(PythonicParser, pythonic.LLAMA4),
    "minimax_m2": partial(XmlParser, xml_formats.MINIMAX_M2),
    "mistral": MistralParser,
    "nemotron_json": _block(json_block.NEMOTRON),
    "phi4_mini_json": _block(json_block.PHI4_MINI),
    "olmo3": partial(PythonicParser, pythonic.OLMO3),
    "pythonic": partial(PythonicParser, pythonic.PYTHONIC),
    "qwen": _block(json_block.HERMES),
    "qwen_xml": partial(XmlParser, xml_formats.QWEN3_CODER),
    "sarashina": _block(json_block.SARASHINA),
    "seed_oss": partial(XmlParser, xml_formats.SEED_OSS),
    "step3": partial(XmlParser, xml_formats.STEP3),
}

TOOL_ALIASES: dict[str, str] = {
    "cohere_command": "cohere",
    "cohere_command3": "cohere",
    "deepseek_v3": "deepseek",
    "deepseek_v31": "deepseek31",
    "deepseek_v32": "deepseek32",
    "deepseek_v41": "deepseek_v4",
    "deepseekv3": "deepseek",
    "deepseekv31": "deepseek31",
    "ernie45": "qwen",
    "functionary_v31": "functionary",
    "glm45": "glm45_moe",
    "glm47": "glm45_moe",
    "glm47_moe": "glm45_moe",
    "gpt_oss": "harmony",
    "gpt_oss_harmony": "harmony",
    "granite4": "qwen",
    "hermes": "qwen",
    "hy_v3": "hunyuan_xml",
    "hy_v4": "hunyuan_xml",
    "internlm2": "internlm",
    "jamba": "hunyuan_a13b",
    "kimi_k2": "kimik2",
    "llama3": "llama",
    "llama3_json": "llama",
    "llama4_json": "llama",
    "ling3": "glm45_moe",
    "mistral_v11": "mistral",
    "poolside_v1": "glm45_moe",
    "minimax_m1": "hunyuan_a13b",
    "nemotron": "qwen_xml",
    "openai": "harmony",
    "phi4_mini": "phi4_mini_json",
    "qwen25": "qwen",
    "qwen3_coder": "qwen_xml",
    "qwen3_json": "qwen",
    "qwen3_xml": "qwen_xml",
    "qwen_coder": "qwen_xml",
    "step3p5": "qwen_xml",
}

TOOL_MODELS: dict[str, str] = {
    "apertus": "apertus",
    "dots.": "dots",
    "functiongemma": "functiongemma",
    "gemma-4": "gemma4",
    "gigachat3": "gigachat3",
    "granite-20b-functioncalling": "granite_20b_fc",
    "hunyuan-3": "hunyuan_xml",
    "hy3": "hunyuan_xml",
    "k2-horizon": "k2_horizon",
    "laguna": "glm45_moe",
    "ling-3": "glm45_moe",
    "mimo": "mimo",
    "minicpm5": "minicpm5",
    "minimax-m3": "minimax_m3",
    "plamo-3": "plamo3",
    "xlam": "xlam",
    "c4ai-command": "cohere",
    "claude-": "json",
    "cohere": "cohere",
    "command-a": "cohere",
    "command-r": "cohere",
    "deepseek-": "pythonic",
    "deepseek-r1": "deepseek",
    "deepseek-v3": "deepseek",
    "deepseek-v3.1": "deepseek31",
    "deepseek-v3.2-exp": "deepseek31",
    "deepseek-v3.2": "deepseek32",
    "deepseek-v4": "deepseek_v4",
    "devstral": "mistral",
    "ernie-4.5": "qwen",
    "functionary": "functionary",
    "gemini-": "json",
    "gemma-": "json",
    "glm-": "json",
    "glm-4.5": "glm45_moe",
    "glm-4.6": "glm45_moe",
    "glm-4.7": "glm45_moe",
    "glm-5": "glm45_moe",
    "gpt-3.5": "json",
    "gpt-4": "json",
    "gpt-oss": "harmony",
    "granite-3": "granite",
    "granite-4": "qwen",
    "hermes-2": "qwen",
    "hermes-3": "qwen",
    "hermes-4": "qwen",
    "hunyuan-a13b": "hunyuan_a13b",
    "inkling": "inkling",
    "internlm2": "internlm",
    "jamba": "hunyuan_a13b",
    "kimi-k2": "kimik2",
    "kimi-k3": "kimi_k3",
    "kimi_k3": "kimi_k3",
    "lfm2": "lfm2",
    "llama-": "json",
    "llama-3.1": "llama",
    "llama-3.2": "llama",
    "llama-3.3": "llama",
    "llama-4": "llama4_pythonic",
    "longcat": "longcat",
    "magistral": "mistral",
    "ministral": "mistral",
    "mistral": "mistral",
    "mixtral": "mistral",
    "olmo-3": "olmo3",
    "minimax": "minimax_m2",
    "minimax-m1": "hunyuan_a13b",
    "nemotron-3": "qwen_xml",
    "nemotron-nano-9b-v2": "nemotron_json",
    "llama-3.3-nemotron": "nemotron_json",
    "palm-": "json",
    "phi-4-mini": "phi4_mini_json",
    "qwen": "qwen",
    "qwen3-coder": "qwen_xml",
    "qwen3.5": "qwen_xml",
    "qwen3.6": "qwen_xml",
    "qwen3.8": "qwen_xml",
    "seed-oss": "seed_oss",
    "step-3": "step3",
    "step-3.5": "qwen_xml",
    "step3": "step3",
    "sarashina": "sarashina",
}

TOOL_TEMPLATES: dict[str, str] = {
    "<|channel|>": "harmony",
    "<|content_invoke_tool_json|>": "inkling",
    "<|tools_prefix|>": "apertus",
    "]<]minimax[>[": "minimax_m3",
    "<|tool_call>call:": "gemma4",
    "<start_function_call>call:": "functiongemma",
    "<dots_function_call>": "dots",
    "<ifm|tool_call": "k2_horizon",
    "plamo:begin_tool_request": "plamo3",
    "'role': 'function call'": "gigachat3",
    "<tool_sep": "hunyuan_xml",
    "<minimax:tool_call>": "minimax_m2",
    "<seed:tool_call>": "seed_oss",
    "<steptml:invoke": "step3",
    "dsml_token + 'tool_calls": "deepseek_v4",
    "｜DSML｜": "deepseek32",
    "<arg_key>": "glm45_moe",
    "<parameter=example_parameter_1>value_1": "mimo",
    "<function=example": "qwen_xml",
    "<longcat_tool_call>": "longcat",
    "function<｜tool▁sep｜>": "deepseek",
    "['type'] + '<｜tool▁sep｜>'": "deepseek",
    "<｜tool▁calls▁begin｜>": "deepseek31",
    "<|tool_calls_section_begin|>": "kimik2",
    "<|tool_call_start|>": "lfm2",
    "<|python_start|>": "llama4_pythonic",
    "[func_name1(": "pythonic",
    "[TOOL_CALLS]": "mistral",
    "<TOOLCALL>": "nemotron_json",
    "<|START_ACTION|>": "cohere",
    "<|action_start|>": "internlm",
    "functools[": "phi4_mini_json",
    "<tool_calls>": "hunyuan_a13b",
    "<|tool_call|>": "granite",
    "<|python_tag|>": "llama",
    "<tool_call>": "qwen",
}


@dataclass(frozen=True, slots=True)
class ChannelFormat:
    """A family whose whole answer is framed: its parser finds the thought itself.

    Attributes:
        make: a parser that leaves calls alone.
        open: what opens the thought at the end of a prompt; none if prompts never do.
        close: what opens the visible text there.
    """

    make: Callable[[], ToolParser]
    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()

    def state(self, prompt: str, continued: str = "") -> bool | None:
        """See `ThinkFormat.state`."""
        if not self.open:
            return None
        return last_marker(continued or prompt[-200:], self.open, self.close, anywhere=bool(continued))

    def opened_by(self, prompt: str) -> bool:
        """See `ThinkFormat.opened_by`."""
        return bool(self.state(prompt))


REASONING_FORMATS: dict[str, ThinkFormat | ChannelFormat] = {
    "base": think.THINK,
    "cohere_cmd": think.COHERE,
    "deepseek_r1": think.THINK_OPENED,
    "deepseek_v31": think.THINK,
    "deepseek_v4": think.THINK,
    "ernie45": think.THINK_OPENED,
    "glm45": think.THINK,
    "gemma4": think.GEMMA4,
    "granite": think.GRANITE,
    "granite_thinking": think.THINK_OPENED,
    "harmony": ChannelFormat(partial(HarmonyParser, calls=False)),
    "hunyuan_a13b": think.HUNYUAN,
    "hy_v3": think.THINK,
    "hy_v4": think.HUNYUAN_SUFFIXED,
    "inkling": ChannelFormat(partial(InklingParser, calls=False), ("<|content_thinking|>",), ("<|content_text|>",)),
    "k2_horizon": think.K2_HORIZON,
    "kimi": think.KIMI,
    "kimi_k25": think.THINK,
    "kimi_k3": ChannelFormat(partial(KimiK3Parser, calls=False), (THINK_OPEN,), (RESPONSE_OPEN,)),
    "kimi_thinking": think.THINK_OPENED,
    "ling3": think.THINK_OPENED,
    "minimax": think.THINK_OPENED,
    "minimax_m3": think.MINIMAX_M3,
    "mistral": think.MISTRAL,
    "nano_v3": think.THINK,
    "olmo3": think.THINK_OPENED,
    "plamo3": think.PLAMO3,
    "qwen3": think.THINK,
    "qwen3_thinking": think.THINK_OPENED,
    "seed_oss": think.SEED_OSS,
    "step3": think.THINK_OPENED,
}

REASONING_ALIASES: dict[str, str] = {
    "cohere_command3": "cohere_cmd",
    "cohere_command4": "cohere_cmd",
    "deepseek_v3": "deepseek_v31",
    "deepseek_v32": "deepseek_v31",
    "deepseek_v41": "deepseek_v4",
    "glm47": "glm45",
    "gpt_oss": "harmony",
    "granite_thinking_parser": "granite_thinking",
    "holo2": "deepseek_v31",
    "kimi_k2": "kimi_thinking",
    "minimax_m2": "minimax",
    "mimo": "qwen3",
    "minicpmv": "qwen3",
    "minimax_m2_append_think": "minimax",
    "nemotron_v3": "nano_v3",
    "openai_gptoss": "harmony",
    "poolside_v1": "deepseek_v31",
    "step3p5": "step3",
}

REASONING_MODELS: dict[str, str] = {
    "c4ai-command": "cohere_cmd",
    "cohere": "cohere_cmd",
    "command-a": "cohere_cmd",
    "command-r": "cohere_cmd",
    "deepseek-r1": "deepseek_r1",
    "deepseek-v3-1": "deepseek_v31",
    "deepseek-v3.1": "deepseek_v31",
    "deepseek-v3.2": "deepseek_v31",
    "deepseek-v4": "deepseek_v4",
    "deepseek_v4": "deepseek_v4",
    "ernie-4.5": "ernie45",
    "gemma-4": "gemma4",
    "glm-4.5": "glm45",
    "glm-4.6": "glm45",
    "glm-4.7": "glm45",
    "glm-5": "glm45",
    "glm45": "glm45",
    "glm47": "glm45",
    "gpt-oss": "harmony",
    "granite-3.2": "granite",
    "granite-4.2": "granite_thinking",
    "hunyuan-3": "hy_v3",
    "hy3": "hy_v3",
    "hunyuan-a13b": "hunyuan_a13b",
    "inkling": "inkling",
    "kimi": "kimi",
    "kimi-k3": "kimi_k3",
    "kimi_k3": "kimi_k3",
    "kimi-k2-thinking": "kimi_thinking",
    "kimi-k2.5": "kimi_k25",
    "magistral": "mistral",
    "k2-horizon": "k2_horizon",
    "laguna": "deepseek_v31",
    "ling-3": "ling3",
    "mimo": "qwen3",
    "minicpm-v": "qwen3",
    "minimax": "minimax",
    "minimax-m3": "minimax_m3",
    "minimax-m1": "base",
    "mm-m2": "minimax",
    "nano-v3": "nano_v3",
    "nemotron-3": "nano_v3",
    "nemotron-nano": "nano_v3",
    "nemotron-super": "nano_v3",
    "olmo-3": "olmo3",
    "plamo-3": "plamo3",
    "qwen": "qwen3",
    "qwen-thinking": "qwen3_thinking",
    "qwen3": "qwen3",
    "qwen3-thinking": "qwen3_thinking",
    "qwq": "qwen3_thinking",
    "seed-oss": "seed_oss",
    "step-3": "step3",
    "step3": "step3",
}

REASONING_TEMPLATES: dict[str, str] = {
    "<mm:think>": "minimax_m3",
    "<|channel>thought": "gemma4",
    "<ifm|think>": "k2_horizon",
    "plamo:begin_think": "plamo3",
    "<|channel|>": "harmony",
    "<|content_thinking|>": "inkling",
    "<|START_THINKING|>": "cohere_cmd",
    "Here is my thought process:": "granite",
    "◁think▷": "kimi",
    "[THINK]": "mistral",
    "<seed:think>": "seed_oss",
    "<think>": "base",
}
