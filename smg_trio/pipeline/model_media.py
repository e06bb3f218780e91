"""Finds out how a model takes media, from the files of its directory. Blocking file IO, of small files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smg_trio.core.errors import UnsupportedFeature
from smg_trio.media.families import Family, find_family
from smg_trio.text.model_directory import read_json

if TYPE_CHECKING:
    from smg_trio.text.tokenizer import Tokenizer

logger = logging.getLogger("smg_trio.pipeline")


def load_family(directory: Path, tokenizer: Tokenizer) -> Family | None:
    """The family of the model in `directory`; None if it takes no media, or not in a way that is known here.

    Args:
        directory: with ``config.json``, and ``preprocessor_config.json`` or (transformers 5) ``processor_config.json``.
        tokenizer: the model's.

    Raises:
        ConfigError: a file cannot be read.
    """
    config = read_json(directory / "config.json")
    preprocessor = read_json(directory / "preprocessor_config.json") or _image_processor(directory)

    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text))

    try:
        return find_family(config, preprocessor, encode)
    except UnsupportedFeature as error:
        logger.warning("%s: images are refused for this model: %s", directory, error.message)
        return None


def _image_processor(directory: Path) -> dict[str, Any]:
    found = read_json(directory / "processor_config.json")
    nested = found.get("image_processor")
    return nested if isinstance(nested, dict) else found
