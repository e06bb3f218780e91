"""A tiny model whose tokenizer has every token that a test's scripts name."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from smg_trio.testing.demo import DEMO_MODEL

EOS = "<|im_end|>"
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_ESCAPES = {"\\n": "\n", "\\r": "\r", "\\t": "\t", '\\"': '"', "\\\\": "\\"}


def _byte_characters() -> list[str]:
    """How a byte-level vocabulary writes each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


_CHARACTERS = _byte_characters()


def vocabulary_entry(text: str) -> str:
    """The vocabulary's spelling of a token named by its text; ``<0xF0>`` names a byte."""
    byte = _BYTE.fullmatch(text)
    raw = bytes([int(byte[1], 16)]) if byte else text.encode()
    return "".join(_CHARACTERS[value] for value in raw)


def tokens_named(notation: str) -> list[str]:
    """The token texts of a script in notation."""
    quoted = _QUOTED.findall(notation)
    return [re.sub(r"\\.", lambda match: _ESCAPES.get(match[0], match[0]), text) for text in quoted]


class TestModel:
    """A model directory and its vocabulary: the demo model with further tokens."""

    __test__ = False

    def __init__(
        self,
        directory: Path,
        texts: Sequence[str] = (),
        *,
        generation_config: dict[str, object] | None = None,
        config: dict[str, object] | None = None,
        special_tokens: Sequence[str] = (),
    ) -> None:
        directory.mkdir()
        self.directory = directory
        tokenizer = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
        vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
        tokenizer["added_tokens"] += [{**tokenizer["added_tokens"][0], "content": text} for text in special_tokens]
        special = [entry["content"] for entry in tokenizer["added_tokens"]]
        for text in dict.fromkeys(texts):
            if text not in special and text != "<EOS>":
                vocabulary.setdefault(vocabulary_entry(text), len(vocabulary))
        for entry in tokenizer["added_tokens"]:  # the library wants them behind all others
            entry["id"] = len(vocabulary) + special.index(entry["content"])
        self._vocabulary = vocabulary
        self._special = {entry["content"]: int(entry["id"]) for entry in tokenizer["added_tokens"]}
        self.vocab_size = len(vocabulary) + len(special)
        settings = json.loads((DEMO_MODEL / "config.json").read_text()) | (config or {})
        settings |= {"vocab_size": self.vocab_size, "eos_token_id": self.id_of("<EOS>")}
        generation = {"eos_token_id": [self.id_of("<EOS>"), self.id_of("<|endoftext|>")]} | (generation_config or {})
        (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
        (directory / "config.json").write_text(json.dumps(settings))
        (directory / "generation_config.json").write_text(json.dumps(generation))
        for name in ("tokenizer_config.json", "chat_template.jinja"):
            (directory / name).write_text((DEMO_MODEL / name).read_text())

    @property
    def markers(self) -> list[str]:
        """Texts of the tokens that are found in text before any other, special or not."""
        return list(self._special)

    def id_of(self, text: str) -> int:
        """The id of the token named by its text; ``<EOS>`` is the model's end token. Raises KeyError."""
        text = EOS if text == "<EOS>" else text
        special = self._special.get(text)
        return self._vocabulary[vocabulary_entry(text)] if special is None else special
