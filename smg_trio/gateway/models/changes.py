"""Labels of living workers that change the model they serve: where its files are, how its answers are parsed.

A model is shared by its workers, so what is changed at one of them holds for all, and the last change counts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from smg_trio.core.workers import WorkerSpec
from smg_trio.parsers.registry import parser_name

if TYPE_CHECKING:
    from smg_trio.gateway.models.loads import ModelLoads
    from smg_trio.parsers.registry import ParserName
    from smg_trio.pipeline.models import ModelCatalog, ServedModel
    from smg_trio.routing.registry import Registry
    from smg_trio.settings.settings import Settings

logger = logging.getLogger("smg_trio.gateway")

_FILES = ("model_path", "tokenizer_path")
Labels = Mapping[str, str]


class ModelChanges:
    """Changes models, one at a time.

    Attributes:
        in_force: model id → labels that say how the model differs from what it was loaded as; of parsers an empty one
            means that of the settings.
    """

    def __init__(self, catalog: ModelCatalog, registry: Registry, loads: ModelLoads, settings: Settings) -> None:
        self.in_force: dict[str, dict[str, str]] = {}
        self._catalog = catalog
        self._registry = registry
        self._loads = loads
        self._defaults = {"tool_parser": settings.tool_call_parser, "reasoning_parser": settings.reasoning_parser}
        self._turn = trio.Lock()

    async def apply(self, worker_id: str, labels: Labels, *, merge: bool) -> bool:
        """Have the worker's model follow its new labels; False if they say nothing new of it.

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
            said = self._news(spec.labels, {**spec.labels, **labels} if merge else labels)
            if not said:
                return False
            model = await self._changed(self._catalog.find(spec.model_id), said)
            self._registry.get(worker_id)
            self._offer(model, said)
            logger.info(
                "model %s: changed by worker %s (files %s, tool parser %s, reasoning parser %s)",
                model.model_id, spec.url, model.root, parser_name(model.tool_parser) or "auto",
                parser_name(model.reasoning_parser) or "auto",
            )  # fmt: skip
            return True

    async def follow(self, model_id: str, labels: Labels) -> None:
        """Have a model differ as it does in another process of this gateway, see `in_force`. Raises as `apply` does."""
        async with self._turn:
            known = self.in_force.get(model_id, {})
            said = {label: text for label, text in labels.items() if known.get(label) != text}
            if said:
                self._offer(await self._changed(self._catalog.find(model_id), said), said)

    def forget(self, model_id: str) -> None:
        """The model is served no more."""
        self.in_force.pop(model_id, None)

    def _news(self, before: Labels, after: Labels) -> dict[str, str]:
        """What the labels after say otherwise than those before."""
        said = {name: after[name] for name in _FILES if after.get(name) not in (None, "", before.get(name))}
        for name, default in self._defaults.items():
            if (after.get(name) or default) != (before.get(name) or default):
                said[name] = after.get(name, "")
        return said

    async def _changed(self, served: ServedModel, said: Labels) -> ServedModel:
        model = served
        if any(name in said for name in _FILES):
            labels = {"model_path": served.root} | self.in_force.get(served.model_id, {}) | dict(said)
            files = {name: labels[name] for name in _FILES if name in labels}
            spec = WorkerSpec(worker_id="", url="", model_id=served.model_id, labels=files)
            model = await self._loads.reload(served, spec)
        if "tool_parser" in said:
            model = replace(model, tool_parser=await self._parser("tool_parser", said))
        if "reasoning_parser" in said:
            model = replace(model, reasoning_parser=await self._parser("reasoning_parser", said))
        return model

    async def _parser(self, label: str, said: Labels) -> ParserName | None:
        return await self._loads.parser(label, said[label] or self._defaults[label])

    def _offer(self, model: ServedModel, said: Labels) -> None:
        self._catalog.revise(model)
        self._registry.learn_vocab_size(model.model_id, model.text.vocab_size)
        self.in_force.setdefault(model.model_id, {}).update(said)
