"""Labels of living workers that change the model they serve: where its files are, how its answers are parsed.

A model is shared by its workers, so what is changed at one of them holds for all, and the last change counts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from smg_trio.parsers.registry import parser_name

if TYPE_CHECKING:
    from smg_trio.core.workers import WorkerSpec
    from smg_trio.gateway.models.loads import ModelLoads
    from smg_trio.pipeline.models import ModelCatalog, ServedModel
    from smg_trio.routing.registry import Registry
    from smg_trio.settings.settings import Settings

logger = logging.getLogger("smg_trio.gateway")

_FILES = ("model_path", "tokenizer_path")


class ModelChanges:
    """Changes models, one at a time."""

    def __init__(self, catalog: ModelCatalog, registry: Registry, loads: ModelLoads, settings: Settings) -> None:
        self._catalog = catalog
        self._registry = registry
        self._loads = loads
        self._settings = settings
        self._turn = trio.Lock()

    async def apply(self, worker_id: str, labels: Mapping[str, str], *, merge: bool) -> None:
        """Have the worker's model follow its new labels; nothing happens if they say nothing new of it.

        Files that are not on this disk are downloaded first, in one attempt. No other task runs between the change and
        the return, so that the labels can be noted together with it.

        Args:
            worker_id: of a living worker.
            labels: its labels from now on.
            merge: those that are not named stay; otherwise a parser that is not named is the gateway's again. Files
                stay as they are either way.

        Raises NotFound, InvalidRequest, TokenizerNotRegistered, HubUnavailable; nothing has changed then, nor when
        cancelled.
        """
        async with self._turn:
            spec = self._registry.get(worker_id).spec
            after = replace(spec, labels={**spec.labels, **labels} if merge else labels)
            moved = any(after.labels.get(name) not in (None, "", spec.labels.get(name)) for name in _FILES)
            if not moved and self._parsers(spec) == self._parsers(after):
                return
            served = self._catalog.find(spec.model_id)
            model = await self._with_parsers(served, self._parsers(spec), self._parsers(after))
            if moved:
                model = await self._loads.reload(model, after)
                self._registry.get(worker_id)
            self._catalog.revise(model)
            self._registry.learn_vocab_size(model.model_id, model.text.vocab_size)
            logger.info(
                "model %s: changed by worker %s (files %s, tool parser %s, reasoning parser %s)",
                model.model_id, spec.url, model.root, parser_name(model.tool_parser) or "auto",
                parser_name(model.reasoning_parser) or "auto",
            )  # fmt: skip

    def _parsers(self, spec: WorkerSpec) -> dict[str, str | None]:
        labels, settings = spec.labels, self._settings
        return {
            "tool_parser": labels.get("tool_parser") or settings.tool_call_parser,
            "reasoning_parser": labels.get("reasoning_parser") or settings.reasoning_parser,
        }

    async def _with_parsers(
        self, served: ServedModel, before: Mapping[str, str | None], after: Mapping[str, str | None]
    ) -> ServedModel:
        if (tool := after["tool_parser"]) != before["tool_parser"]:
            served = replace(served, tool_parser=await self._loads.parser("tool_parser", tool))
        if (reasoning := after["reasoning_parser"]) != before["reasoning_parser"]:
            served = replace(served, reasoning_parser=await self._loads.parser("reasoning_parser", reasoning))
        return served
