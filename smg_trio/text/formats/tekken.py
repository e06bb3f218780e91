"""``tekken.json``: Mistral's tokenizers since July 2024.

As mistral_common 1.13 reads it (``tokens/tokenizers/tekken.py``): special tokens have the first ids, those that the
file does not name are called ``<SPECIAL_n>``, and the vocabulary is cut to the size that the model was made with.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from smg_trio.text.formats.built import BuiltTokenizer, surround
from smg_trio.text.formats.byte_ranks import byte_level_tokenizer

_UNNAMED: Final = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""Special tokens of the first files, which do not list them."""
_NAMED: Final = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def load_tekken(file: Path) -> BuiltTokenizer:
    """Reads the file. Blocking, 1 s.

    Raises:
        OSError, ValueError, KeyError, TypeError: it cannot be read, or is not what it should be.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    config = content["config"]
    reserved: int = config["default_num_special_tokens"]
    size: int = config["default_vocab_size"] - reserved
    backend = byte_level_tokenizer(
        {b64decode(entry["token_bytes"]): entry["rank"] for entry in content["vocab"] if entry["rank"] < size},
        config["pattern"],
        _special_tokens(content.get("special_tokens"), reserved),
        first_id=reserved,
    )
    surround(backend, ["<s>"], [])
    return BuiltTokenizer(
        backend, {name: token for name, token in _NAMED.items() if backend.token_to_id(token) is not None}
    )


def _special_tokens(listed: list[Mapping[str, Any]] | None, reserved: int) -> dict[str, int]:
    if listed is None:
        tokens = {token: number for number, token in enumerate(_UNNAMED)}
    else:
        tokens = {entry["token_str"]: entry["rank"] for entry in listed}
    return tokens | {f"<SPECIAL_{number}>": number for number in range(len(tokens), reserved)}
