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
from smg_trio.parsers.tool import json_block, named, pythonic, xml_block
from smg_trio.parsers.tool.harmony import HarmonyParser
from smg_trio.parsers.tool.inkling import InklingParser
from smg_trio.parsers.tool.json_block import JsonBlockFormat, JsonBlockParser
from smg_trio.parsers.tool.kimi_k3 import RESPONSE_OPEN, THINK_OPEN, KimiK3Parser
from smg_trio.parsers.tool.mistral import MistralParser
from smg_trio.parsers.tool.named import KimiK2Parser, NamedCallParser
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
    "deepseek32": partial(XmlParser, xml_block.DEEPSEEK_V32),
    "deepseek_v4": partial(XmlParser, xml_block.DEEPSEEK_V4),
    "functionary": partial(NamedCallParser, named.FUNCTIONARY),
    "glm45_moe": partial(XmlParser, xml_block.GLM),
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
    "minimax_m2": partial(XmlParser, xml_block.MINIMAX_M2),
    "mistral": MistralParser,
    "nemotron_json": _block(json_block.NEMOTRON),
    "phi4_mini_json": _block(json_block.PHI4_MINI),
    "olmo3": partial(PythonicParser, pythonic.OLMO3),
    "pythonic": partial(PythonicParser, pythonic.PYTHONIC),
    "qwen": _block(json_block.HERMES),
    "qwen_xml": partial(XmlParser, xml_block.QWEN3_CODER),
    "sarashina": _block(json_block.SARASHINA),
    "seed_oss": partial(XmlParser, xml_block.SEED_OSS),
    "step3": partial(XmlParser, xml_block.STEP3),
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
    "inkling": "inkling",
    "internlm2": "internlm",
    "jamba": "hunyuan_a13b",
    "kimi_k2": "kimik2",
    "llama3": "llama",
    "llama3_json": "llama",
    "llama4_json": "llama",
    "mistral_v11": "mistral",
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
    "<minimax:tool_call>": "minimax_m2",
    "<seed:tool_call>": "seed_oss",
    "<steptml:invoke": "step3",
    "dsml_token + 'tool_calls": "deepseek_v4",
    "｜DSML｜": "deepseek32",
    "<arg_key>": "glm45_moe",
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
    "granite": think.GRANITE,
    "harmony": ChannelFormat(partial(HarmonyParser, calls=False)),
    "hunyuan_a13b": think.HUNYUAN,
    "inkling": ChannelFormat(partial(InklingParser, calls=False), ("<|content_thinking|>",), ("<|content_text|>",)),
    "kimi": think.KIMI,
    "kimi_k25": think.THINK,
    "kimi_k3": ChannelFormat(partial(KimiK3Parser, calls=False), (THINK_OPEN,), (RESPONSE_OPEN,)),
    "kimi_thinking": think.THINK_OPENED,
    "minimax": think.THINK_OPENED,
    "mistral": think.MISTRAL,
    "nano_v3": think.THINK,
    "olmo3": think.THINK_OPENED,
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
    "holo2": "deepseek_v31",
    "kimi_k2": "kimi_thinking",
    "minimax_m2": "minimax",
    "minimax_m3": "minimax",
    "nemotron_v3": "nano_v3",
    "openai_gptoss": "harmony",
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
    "glm-4.5": "glm45",
    "glm-4.6": "glm45",
    "glm-4.7": "glm45",
    "glm-5": "glm45",
    "glm45": "glm45",
    "glm47": "glm45",
    "gpt-oss": "harmony",
    "granite-3.2": "granite",
    "hunyuan-a13b": "hunyuan_a13b",
    "inkling": "inkling",
    "kimi": "kimi",
    "kimi-k3": "kimi_k3",
    "kimi_k3": "kimi_k3",
    "kimi-k2-thinking": "kimi_thinking",
    "kimi-k2.5": "kimi_k25",
    "magistral": "mistral",
    "minimax": "minimax",
    "minimax-m1": "base",
    "mm-m2": "minimax",
    "nano-v3": "nano_v3",
    "nemotron-3": "nano_v3",
    "nemotron-nano": "nano_v3",
    "nemotron-super": "nano_v3",
    "olmo-3": "olmo3",
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
    "<|channel|>": "harmony",
    "<|content_thinking|>": "inkling",
    "<|START_THINKING|>": "cohere_cmd",
    "Here is my thought process:": "granite",
    "◁think▷": "kimi",
    "[THINK]": "mistral",
    "<seed:think>": "seed_oss",
    "<think>": "base",
}
