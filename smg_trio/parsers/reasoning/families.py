"""The reasoning tables of the registry: names, spellings, models and template markers of every family.

They are read as those of tool calls, see `parsers.families`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from smg_trio.parsers.families import PASSTHROUGH
from smg_trio.parsers.reasoning import think
from smg_trio.parsers.reasoning.think import ThinkFormat, last_marker
from smg_trio.parsers.tool.harmony import HarmonyParser
from smg_trio.parsers.tool.inkling import InklingParser
from smg_trio.parsers.tool.kimi_k3 import RESPONSE_OPEN, THINK_OPEN, KimiK3Parser
from smg_trio.parsers.tool.muse import ANSWER_OPEN as MUSE_ANSWER_OPEN
from smg_trio.parsers.tool.muse import THINK_OPEN as MUSE_THINK_OPEN
from smg_trio.parsers.tool.muse import MuseParser

if TYPE_CHECKING:
    from smg_trio.parsers.base import ToolParser


@dataclass(frozen=True, slots=True)
class ChannelFormat:
    """A family whose whole answer is framed: its parser finds the reasoning itself.

    Attributes:
        make: a parser that leaves calls alone.
        open: what opens the reasoning at the end of a prompt; none if prompts never do.
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
    "muse": ChannelFormat(partial(MuseParser, calls=False), (MUSE_THINK_OPEN,), (MUSE_ANSWER_OPEN,)),
    "nano_v3": think.THINK,
    "olmo3": think.THINK_OPENED,
    "plamo3": think.PLAMO3,
    "qwen3": think.THINK,
    "qwen3_thinking": think.THINK_OPENED,
    "seed_oss": think.SEED_OSS,
    "step3": think.THINK_OPENED,
}

REASONING_ALIASES: dict[str, str] = {
    "deepseek_v4.1": "deepseek_v4",
    "dots3": "base",
    "function_gemma": PASSTHROUGH,
    "glm": "glm45",
    "glm4": "glm45",
    "hy4": "hy_v4",
    "iquest": "base",
    "json": PASSTHROUGH,
    "lfm2.5": "base",
    "ling": "base",
    "llama_nemotron": "base",
    "minicpm5": "base",
    "mistral_v13": "mistral",
    "muse_glimmer": "muse",
    "musespark1x": "muse",
    "plain": PASSTHROUGH,
    "qwen2.5": PASSTHROUGH,
    "qwen3_tagged": "qwen3",
    "qwen3_tagged_direct": "qwen3",
    "step5": "deepseek_r1",
    "xlam": PASSTHROUGH,
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
    "muse-glimmer": "muse",
    "muse-spark": "muse",
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
    "step-5": "deepseek_r1",
    "step3": "step3",
}

REASONING_TEMPLATES: dict[str, str] = {
    "<atem:function_calls>": "muse",
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
