"""Which parser for which model."""

from __future__ import annotations

import pytest

from smg_trio.core.errors import ConfigError
from smg_trio.parsers.families import REASONING_FORMATS, TOOL_PARSERS
from smg_trio.parsers.registry import (
    choose_reasoning_parser,
    choose_tool_parser,
    make_answer_parser,
    make_reasoning_parser,
    make_tool_parser,
    prompt_opens_thought,
    reasoning_parser_names,
    tool_parser_names,
)
from tests.conftest import shared_path


@pytest.mark.parametrize(
    ("model", "tool", "reasoning"),
    [
        ("Qwen/Qwen3-8B", "qwen", "qwen3"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen_xml", "qwen3"),
        ("deepseek-ai/DeepSeek-R1", "deepseek", "deepseek_r1"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek31", "deepseek_v31"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek31", "deepseek_v31"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek32", "deepseek_v31"),
        ("moonshotai/Kimi-K2-Thinking", "kimik2", "kimi_thinking"),
        ("moonshotai/Kimi-K2.5", "kimik2", "kimi_k25"),
        ("meta-llama/Llama-3.2-3B-Instruct", "llama", None),
        ("openai/gpt-oss-20b", "harmony", "harmony"),
        ("zai-org/GLM-4.7", "glm45_moe", "glm45"),
        ("MiniMaxAI/MiniMax-M2", "minimax_m2", "minimax"),
        ("some/unknown", None, None),
    ],
)
def test_the_longest_stem_in_the_model_name_wins(model: str, tool: str | None, reasoning: str | None) -> None:
    assert choose_tool_parser(model_name=model) == tool
    assert choose_reasoning_parser(model_name=model) == reasoning


def test_the_flag_beats_a_label_and_both_beat_the_model() -> None:
    assert choose_tool_parser("hermes", "mistral", "gpt-oss") == "qwen"
    assert choose_tool_parser(None, "mistral", "gpt-oss") == "mistral"
    assert choose_tool_parser("Qwen3-Coder", None, "gpt-oss") == "qwen_xml"
    assert choose_tool_parser("passthrough", None, "gpt-oss") is None


def test_an_unknown_name_is_a_config_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="kimik2"):
        choose_tool_parser("no-such-parser")
    with pytest.raises(ConfigError, match="deepseek_r1"):
        choose_reasoning_parser("no-such-parser")


@pytest.mark.parametrize("name", [name for name in tool_parser_names() if name != "passthrough"])
def test_every_tool_parser_name_makes_a_parser(name: str) -> None:
    assert make_tool_parser(name, {}).feed("x") == make_answer_parser(None, None).feed("x")


@pytest.mark.parametrize("name", [name for name in reasoning_parser_names() if name != "passthrough"])
def test_every_reasoning_parser_name_makes_a_parser(name: str) -> None:
    assert make_reasoning_parser(name, False).feed("x") == make_answer_parser(None, None).feed("x")


@pytest.mark.parametrize(
    ("name", "prompt", "opened"),
    [
        ("qwen3", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3", "a</think>b<|im_start|>assistant\n", False),
        ("deepseek_r1", "<｜Assistant｜>", True),
        ("deepseek_r1", "old <think>x</think><｜Assistant｜></think>", False),
        ("kimi_k3", "<|open|>think<|sep|>", True),
        ("kimi_k3", "<|open|>response<|sep|>", False),
        ("passthrough", "<think>", False),
    ],
)
def test_the_end_of_the_prompt_says_whether_the_thought_is_open(name: str, prompt: str, opened: bool) -> None:
    assert prompt_opens_thought(name, prompt) is opened


@pytest.mark.parametrize(
    ("template", "tool"),
    [
        ("qwen3", "qwen"),
        ("qwen3-coder", "qwen_xml"),
        ("qwen3.5", "qwen_xml"),
        ("hermes-3-tools", "qwen"),
        ("glm-4.5", "glm45_moe"),
        ("kimi-k2", "kimik2"),
        ("deepseek-v3.1", "deepseek31"),
        ("deepseek-r1-llamacpp-tools", "deepseek"),
        ("deepseek-v3.2", "deepseek32"),
        ("deepseek-v4", "deepseek_v4"),
        ("gpt-oss", "harmony"),
        ("minimax-m2", "minimax_m2"),
        ("minimax-m1", "hunyuan_a13b"),
        ("mistral-7b-v0.3", "mistral"),
        ("granite-3.3", "granite"),
        ("granite-4.0", "qwen"),
        ("llama3.1", "llama"),
        ("llama3.2-pythonic", "pythonic"),
        ("llama4", "llama4_pythonic"),
        ("jamba", "qwen"),
        ("longcat-flash", "longcat"),
        ("seed-oss", "seed_oss"),
        ("step3", "step3"),
        ("step-3.5-flash", "qwen_xml"),
        ("nemotron-nano-v2", "nemotron_json"),
        ("nemotron-3-nano", "qwen_xml"),
        ("command-r7b-tools", "cohere"),
        ("apertus", "apertus"),
        ("gemma-4", "gemma4"),
        ("functiongemma", "functiongemma"),
        ("gigachat3", "gigachat3"),
        ("hy3", "hunyuan_xml"),
        ("laguna-xs", "glm45_moe"),
        ("mimo-v2-flash", "mimo"),
        ("minimax-m3", "minimax_m3"),
        ("phi-4-mini", None),
        ("gemma-3", None),
        ("tinyllama-zephyr", None),
    ],
)
def test_a_chat_template_tells_the_tool_format(template: str, tool: str | None) -> None:
    source = shared_path("data", "chat_templates", f"{template}.jinja").read_text(encoding="utf-8")
    assert choose_tool_parser(template_source=source) == tool


def test_every_family_can_be_chosen() -> None:
    assert all(choose_tool_parser(name) == name for name in TOOL_PARSERS)
    assert all(choose_reasoning_parser(name) == name for name in REASONING_FORMATS)
