"""Makes the bundled demo model: a small byte-level BPE tokenizer, a chat template and config files.

The demo model has no weights: it is what `smg-trio demo` and the tests serve with the fake engine. The
tokenizer is trained on ``scripts/demo_corpus.txt`` alone, so the outcome is the same on every run.

    python scripts/make_demo_model.py [OUTPUT_DIR]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "scripts" / "demo_corpus.txt"
OUTPUT = ROOT / "smg_trio" / "testing" / "demo_model"

LEARNT_TOKENS = 1_400
CONTEXT_LENGTH = 8_192
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Never part of an answer's text; skipped when text is decoded."""
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""One token each, but text: the reasoning and tool-call parsers have to see them."""

CHAT_TEMPLATE = """\
{#- Chat format of the demo model: one block per message, tools announced in the first block. -#}
{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' -%}
{%- set turns = messages[1:] if messages and messages[0].role == 'system' else messages -%}
{%- set last = namespace(user=-1) -%}
{%- for message in turns -%}
    {%- if message.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if system or tools -%}
    {{- '<|im_start|>system\\n' + system -}}
    {%- if tools -%}
        {{- '\\n\\n' if system -}}
        {{- 'These functions can be called:\\n' -}}
        {%- for tool in tools -%}
            {{- (tool.function if tool.function is defined else tool) | tojson + '\\n' -}}
        {%- endfor -%}
        {{- 'Write each call as JSON with "name" and "arguments" between <tool_call> and </tool_call>.' -}}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in turns -%}
    {%- if message.role == 'assistant' -%}
        {{- '<|im_start|>assistant\\n' -}}
        {%- if message.reasoning_content and loop.index0 > last.user -%}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' -}}
        {%- endif -%}
        {{- message.content or '' -}}
        {%- for call in message.tool_calls or [] -%}
            {{- '\\n' if message.content or not loop.first -}}
            {{- '<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' -}}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson -}}
            {{- '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\\n' -}}
    {%- elif message.role in ('user', 'system', 'tool') -%}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}
    {%- else -%}
        {{- raise_exception('The demo model does not know the role ' + message.role + '.') -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if enable_thinking is defined and not enable_thinking -%}
        {{- '<think>\\n\\n</think>\\n\\n' -}}
    {%- endif -%}
{%- endif -%}
"""


def train_tokenizer(text: str) -> Tokenizer:
    """A byte-level BPE tokenizer: ids 0..255 are the single bytes, the added tokens come last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=LEARNT_TOKENS,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in MARKERS])
    return tokenizer


def model_files(tokenizer: Tokenizer) -> dict[str, str]:
    """The model directory's files by name."""
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL}
    config = {
        "architectures": ["DemoForCausalLM"],
        "model_type": "demo",
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": CONTEXT_LENGTH,
        "eos_token_id": ids["<|im_end|>"],
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_LENGTH,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
    }
    return {
        "tokenizer.json": tokenizer.to_str(pretty=False),
        "tokenizer_config.json": _json(tokenizer_config),
        "chat_template.jinja": CHAT_TEMPLATE,
        "config.json": _json(config),
        "generation_config.json": _json({"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]]}),
    }


def _json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"


def main(output: Path = OUTPUT) -> None:
    """Writes the demo model into `output`."""
    output.mkdir(parents=True, exist_ok=True)
    files = model_files(train_tokenizer(CORPUS.read_text(encoding="utf-8")))
    for name, content in files.items():
        (output / name).write_text(content, encoding="utf-8")
    print(f"{output}: {sum(len(content.encode()) for content in files.values())} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
