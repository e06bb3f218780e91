"""Makes a small vision model's directory for tests: the demo model's tokenizer, and files as Qwen2-VL has them.

It has no weights: the fake engine serves it (`smg_trio.testing.vision`). A picture takes a token for each 28x28 pixels,
between 4 and 64 of them.

    python scripts/make_vision_model.py OUTPUT_DIR
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

DEMO_MODEL = Path(__file__).resolve().parents[1] / "smg_trio" / "testing" / "demo_model"

SPECIAL_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CONFIG = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "vision_config": {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2},
}
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": 4 * 28 * 28,
    "max_pixels": 64 * 28 * 28,
}
CHAT_TEMPLATE = """\
{%- for tool in tools or [] -%}
    {{- ('<|im_start|>system\\n' if loop.first else '') + tool | tojson + ('<|im_end|>\\n' if loop.last else '\\n') -}}
{%- endfor -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.content is string -%}
        {{- message.content -}}
    {%- elif message.content -%}
        {%- for part in message.content -%}
            {%- if part.type == 'image' -%}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
            {%- elif part.type == 'video' -%}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
            {%- else -%}
                {{- part.text -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {%- for call in message.tool_calls or [] -%}
        {{- '\\n<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def files() -> dict[str, str]:
    """The files that a directory has beside a text model's, by name."""
    return {"preprocessor_config.json": json.dumps(PREPROCESSOR, indent=2), "chat_template.jinja": CHAT_TEMPLATE}


def main(output: Path) -> None:
    """Write the directory."""
    output.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((DEMO_MODEL / "tokenizer.json").read_text("utf-8"))
    added = tokenizer["added_tokens"]
    first = max(entry["id"] for entry in added) + 1
    added += [{**added[0], "id": first + place, "content": text} for place, text in enumerate(SPECIAL_TOKENS)]
    config = json.loads((DEMO_MODEL / "config.json").read_text("utf-8")) | CONFIG
    config["vocab_size"] = first + len(SPECIAL_TOKENS)
    made = {"tokenizer.json": json.dumps(tokenizer), "config.json": json.dumps(config, indent=2), **files()}
    for name in ("generation_config.json", "tokenizer_config.json"):
        made[name] = (DEMO_MODEL / name).read_text("utf-8")
    for name, text in made.items():
        (output / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
