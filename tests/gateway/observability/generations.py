"""A generation as observers see it, for tests that have no engines."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from smg_trio.gateway.observability.observer import Phase


def _answer() -> Any:
    return SimpleNamespace(
        model_id="m",
        request_id="id",
        pooled=False,
        sampling=None,
        choices=1,
        finish_reasons=["stop"],
        prompt_tokens=10,
        usage_known=True,
        worker_urls=set(),
        engines=set(),
    )


@dataclass
class ObservedGeneration:
    """See `Generation`."""

    request_id: str = "r"
    endpoint: str = "chat"
    streaming: bool = False
    phase: Phase = "generating"
    answer: Any = field(default_factory=_answer)
