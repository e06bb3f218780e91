"""Tokenizers for the tests of this room: the bundled one, and real ones where the reference material is."""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

from smg_trio.text.model_files import ModelText, load_model_text
from tests.conftest import DEMO_MODEL, shared_path

CORPUS = Path(__file__).parent / "corpus"
"""Texts and ids with what real tokenizers make of them, token by token."""

LoadModel = Callable[[str], ModelText]


@lru_cache(maxsize=1)
def load_demo() -> ModelText:
    return load_model_text(DEMO_MODEL)


@pytest.fixture(scope="session")
def demo() -> ModelText:
    return load_demo()


@pytest.fixture(scope="session")
def real_model(tmp_path_factory: pytest.TempPathFactory) -> LoadModel:
    """Loads one of the real models by name; each only once per session."""
    loaded: dict[str, ModelText] = {}

    def load(name: str) -> ModelText:
        if name not in loaded:
            source = shared_path("data", "tokenizers", name)
            loaded[name] = load_model_text(_unpacked(source, tmp_path_factory.mktemp(name)))
        return loaded[name]

    return load


def _unpacked(source: Path, target: Path) -> Path:
    for file in source.iterdir():
        if file.suffix == ".xz":
            (target / file.stem).write_bytes(lzma.decompress(file.read_bytes()))
        else:
            shutil.copyfile(file, target / file.name)
    return target
