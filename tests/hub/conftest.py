"""A small hub, and an environment without anybody's token or proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from smg_trio.hub.download import Hub
from smg_trio.testing.demo import DEMO_MODEL
from tests.small_hub import SmallHub, model_files, small_hub

FILES = model_files(DEMO_MODEL)


@pytest.fixture
def server() -> Iterator[SmallHub]:
    with small_hub() as running:
        yield running


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again very soon."""
    monkeypatch.setattr("smg_trio.hub.download.PAUSES_S", (0.02,))


@pytest.fixture
def hub(server: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The server with an empty cache."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    return Hub(server.url, tmp_path / "cache")
