"""Which parser for which model."""

from __future__ import annotations

import pytest

from smg_trio.core.errors import ConfigError
from smg_trio.core.events import ContentDelta
from smg_trio.parsers.families import TOOL_PARSERS
from smg_trio.parsers.reasoning.families import REASONING_FORMATS
from smg_trio.parsers.registry import (
    choose_reasoning_parser,
    choose_tool_parser,
    make_answer_parser,
    reasoning_parser_names,
    tool_parser_names,
)
from tests.conftest import shared_path

# What the reference gateway (1.11 and 1.13) and vLLM (0.32 and 0.33) accept as parsers.
REFERENCE_TOOL = """
    cohere deepseek deepseek31 deepseek32 deepseek_v4 deepseek_v4.1 deepseek_v41 dots3 function_gemma gemma4 glm
    glm4 glm45_moe glm47_moe hf hy4 hy_v4 inkling iquest json k2_horizon kimi_k3 kimik2 lfm2.5 ling llama
    llama_nemotron minicpm5 minimax_m2 minimax_m3 mistral mistral_v13 nemotron olmo3 passthrough plain pythonic qwen
    qwen2.5 qwen3 qwen3_tagged qwen3_tagged_direct qwen_coder qwen_xml sarashina seed_oss step3 xlam
"""
REFERENCE_REASONING = """
    base cohere_cmd deepseek_r1 deepseek_v31 deepseek_v4 deepseek_v4.1 deepseek_v41 dots3 function_gemma gemma4 glm
    glm4 glm45 hf hy4 hy_v4 inkling iquest json k2_horizon kimi kimi_k25 kimi_k3 kimi_thinking lfm2.5 ling
    llama_nemotron minicpm5 minimax minimax_m2 minimax_m3 mistral_v13 nano_v3 olmo3 passthrough plain qwen2.5 qwen3
    qwen3_tagged qwen3_tagged_direct qwen3_thinking seed_oss step3 xlam
"""
VLLM_TOOL = """
    apertus beam cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 dots
    ernie45 functiongemma gemma4 gigachat3 glm45 glm47 granite granite-20b-fc granite4 hermes hf hunyuan_a13b hy_v3
    hy_v4 inkling internlm jamba k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama3_json llama4_json llama4_pythonic
    longcat mimo minicpm5 minimax_m2 minimax_m3 mistral muse muse_glimmer musespark1x olmo3 openai phi4_mini_json
    plamo3 poolside_v1 pythonic qwen3_coder qwen3_json qwen3_xml seed_oss step3 step3p5 step5 xlam
"""
VLLM_REASONING = """
    beam cohere_command3 cohere_command4 deepseek_r1 deepseek_v3 deepseek_v4 deepseek_v41 ernie45 gemma4 glm45 glm47
    granite granite_thinking_parser hf holo2 hunyuan_a13b hy_v3 hy_v4 inkling k2_horizon kimi_k2 kimi_k3 ling3 mimo
    minicpmv minimax_m2 minimax_m2_append_think minimax_m3 mistral muse muse_glimmer musespark1x nemotron_v3 olmo3
    openai_gptoss plamo3 poolside_v1 qwen3 seed_oss step3 step3p5 step5
"""


@pytest.mark.parametrize(
    ("model", "tool", "reasoning"),
    [
        ("Muse-Spark-1.2", "muse", "muse"),
        ("step-5", "step5", "deepseek_r1"),
        ("IQuest-Q1", "iquest", None),
        ("DeepSeek-V4.1-Flash", "deepseek_v41", "deepseek_v4"),
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


@pytest.mark.parametrize("name", tool_parser_names())
def test_every_tool_parser_name_makes_a_parser(name: str) -> None:
    parser = make_answer_parser(None, choose_tool_parser(name))
    assert parser.feed("x") + parser.finish() == [ContentDelta("x")]


@pytest.mark.parametrize("name", reasoning_parser_names())
def test_every_reasoning_parser_name_makes_a_parser(name: str) -> None:
    parser = make_answer_parser(choose_reasoning_parser(name), None, starts_in_reasoning=False)
    assert parser.feed("x") + parser.finish() == [ContentDelta("x")]


def test_a_name_may_leave_the_choice_to_the_model() -> None:
    for name in ("hf", "beam"):
        assert choose_tool_parser(name, None, "qwen3-coder") == "qwen_xml"
        assert choose_tool_parser(name, "mistral", "qwen3-coder") == "mistral"
        assert choose_reasoning_parser(name, None, "deepseek-r1") == "deepseek_r1"


@pytest.mark.parametrize(
    ("tool", "reasoning"),
    [(REFERENCE_TOOL, REFERENCE_REASONING), (VLLM_TOOL, VLLM_REASONING)],
    ids=["the reference gateway", "vLLM"],
)
def test_the_names_that_others_accept_are_accepted(tool: str, reasoning: str) -> None:
    assert set(tool.replace("-", "_").split()) <= set(tool_parser_names())
    assert set(reasoning.split()) <= set(reasoning_parser_names())


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("plain", None),
        ("dots3", "dots"),
        ("qwen3_tagged", "qwen_xml"),
        ("qwen3_tagged_direct", "mimo"),
        ("lfm2.5", "lfm2"),
        ("mistral_v13", "mistral"),
        ("llama_nemotron", "nemotron_json"),
        ("deepseek_v4.1", "deepseek_v41"),
        ("ling", "glm45_moe"),
        ("musespark1x", "muse"),
    ],
)
def test_a_name_of_others_means_the_same_format(alias: str, name: str | None) -> None:
    assert choose_tool_parser(alias) == name


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
    ],
)
def test_the_end_of_the_prompt_says_whether_the_thought_is_open(name: str, prompt: str, opened: bool) -> None:
    assert REASONING_FORMATS[name].opened_by(prompt) is opened


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
