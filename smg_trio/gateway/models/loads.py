"""Models whose files are still to be downloaded: one task each, while workers of theirs bind and engines dial in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import trio

from smg_trio.core.errors import ConfigError, InvalidRequest, ModelNotFound, SmgError
from smg_trio.gateway.models.orders import (
    Located,
    ModelOrder,
    completed,
    is_complete,
    load,
    locate,
    order_of_change,
    order_of_worker,
    parser_of,
)
from smg_trio.hub.download import Progress
from smg_trio.hub.locating import FilesAt, fetch
from smg_trio.pipeline.models import AwaitedModel, ModelCatalog, ServedModel
from smg_trio.plugins.kinds import REASONING_PARSER, TOOL_PARSER, Kind

if TYPE_CHECKING:
    from smg_trio.core.workers import WorkerSpec
    from smg_trio.gateway.plugin_set import PluginSet
    from smg_trio.parsers.registry import ParserName
    from smg_trio.routing.registry import Registry
    from smg_trio.settings.settings import Settings

logger = logging.getLogger("smg_trio.gateway")

PARSER_LABELS: Final[Mapping[str, Kind]] = {"tool_parser": TOOL_PARSER, "reasoning_parser": REASONING_PARSER}
"""Labels of workers that name parsers, and what they name."""


@dataclass(slots=True)
class _Load:
    """One model on its way. `workers`: ids of those that are refused if it cannot be had."""

    order: ModelOrder
    located: Located
    failed: Callable[[SmgError], None] | None = None
    workers: list[str] = field(default_factory=list)
    progress: Progress = field(init=False)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def __post_init__(self) -> None:
        self.progress = Progress(self.order.files.text)


class ModelLoads:
    """Run it in the app nursery. Cancelled, downloads end with it.

    Args:
        catalog: where models are awaited, and offered once they are there.
        registry: whose workers are told the vocabulary, or refused.
        settings: for what workers leave unsaid.
        plugins: which parsers may be.
    """

    def __init__(self, catalog: ModelCatalog, registry: Registry, settings: Settings, plugins: PluginSet) -> None:
        self._catalog = catalog
        self._registry = registry
        self._settings = settings
        self._plugins = plugins
        self._loads: dict[str, _Load] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the nursery open, and begin what has been asked for before."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for one in self._loads.values():
                nursery.start_soon(self._run_one, one)
            task_status.started()
            await trio.sleep_forever()

    def begin(
        self, order: ModelOrder, located: Located, failed: Callable[[SmgError], None] | None = None
    ) -> AwaitedModel:
        """Download what is missing, then offer the model; until then it is awaited.

        `failed` is told why it cannot be had, if so.
        """
        one = self._loads[order.model_id] = _Load(order, located, failed)
        awaited = AwaitedModel(order.model_id, order.aliases, lambda: str(one.progress))
        self._catalog.expect(awaited)
        if self._nursery is not None:
            self._nursery.start_soon(self._run_one, one)
        return awaited

    def cancel(self, model_id: str) -> None:
        """The model is not needed any more."""
        one = self._loads.pop(model_id, None)
        if one is not None:
            one.scope.cancel()

    async def _run_one(self, one: _Load) -> None:
        order = one.order
        with one.scope:
            try:
                located = Located(*[await self._fetched(one, index) for index in range(len(order.wanted))])
                one.progress.note = f"loading the tokenizer of {order.wanted[-1].text}"
                model = await load(order, located, self._plugins)
            except SmgError as error:
                self._give_up(one, error)
            except Exception:
                logger.exception("loading model %s failed", order.model_id)
                self._give_up(one, ConfigError(order.files.option, f"'{order.files.text}' cannot be loaded."))
            else:
                self._loads.pop(order.model_id, None)
                self._offer(model)

    async def _fetched(self, one: _Load, index: int) -> FilesAt:
        if (found := one.located[index]) is not None:
            return found
        wanted = one.order.wanted[index]
        one.progress = Progress(wanted.text)
        return await fetch(wanted, one.progress)

    def _offer(self, model: ServedModel) -> None:
        self._catalog.add(model)
        self._registry.learn_vocab_size(model.model_id, model.text.vocab_size)

    def _give_up(self, one: _Load, error: SmgError) -> None:
        logger.error("model %s: %s", one.order.model_id, error.message)
        self._loads.pop(one.order.model_id, None)
        self._catalog.remove(one.order.model_id)
        reason = _words(error)
        for worker_id in one.workers:
            self._registry.refuse(worker_id, reason)
        if one.failed is not None:
            one.failed(error)

    # ---- for workers that are added or replaced at run time -------------------------------------------

    async def model_of_worker(self, spec: WorkerSpec, *, wait: bool = False) -> WorkerSpec:
        """The spec completed by what its model says; a model that is not in the catalog is loaded.

        If files have to be downloaded first, that goes on by itself: the worker binds meanwhile, and is refused should
        the model turn out not to be available. With `wait` they are downloaded now, in one attempt.

        Raises InvalidRequest for a model that cannot be; HubUnavailable with `wait`.
        """
        awaited = self._catalog.awaited(spec.model_id)
        if awaited is None:
            try:
                return completed(spec, self._catalog.find(spec.model_id))
            except ModelNotFound:
                order = order_of_worker(spec, self._settings)
        try:
            if awaited is None:
                located = await self._located(order, wait)
                if is_complete(order, located):
                    model = await load(order, located, self._plugins)
                    self._catalog.add(model)
                    return completed(spec, model)
                # Another worker of the model may have come first meanwhile.
                awaited = self._catalog.awaited(spec.model_id) or self.begin(order, located)
        except ConfigError as error:
            raise InvalidRequest(_words(error), param=error.option) from None
        self._loads[awaited.model_id].workers.append(spec.worker_id)
        return replace(spec, model_id=awaited.model_id)

    async def reload(self, served: ServedModel, spec: WorkerSpec) -> ServedModel:
        """The model out of the files that the worker's labels name now, downloaded first where they have to be.

        Raises InvalidRequest, HubUnavailable. What is offered has not changed yet.
        """
        order = order_of_change(served, spec, self._settings)
        try:
            model = await load(order, await self._located(order, wait=True), self._plugins)
        except ConfigError as error:
            raise InvalidRequest(_words(error), param=error.option) from None
        return replace(model, tool_parser=served.tool_parser, reasoning_parser=served.reasoning_parser)

    async def parser(self, label: str, named: str | None) -> ParserName | None:
        """The parser that a worker's label (a key of `PARSER_LABELS`) names. Raises InvalidRequest."""
        try:
            return await parser_of(self._plugins, PARSER_LABELS[label], named)
        except ConfigError as error:
            raise InvalidRequest(_words(error), param=f"labels.{label}") from None

    async def _located(self, order: ModelOrder, wait: bool) -> Located:
        located = await locate(order)
        if not wait:
            return located
        wanted = zip(order.wanted, located, strict=False)
        return Located(*[at or await fetch(one, Progress(one.text), patient=False) for one, at in wanted])


def _words(error: SmgError) -> str:
    return f"{error.problem} {error.remedy}".rstrip() if isinstance(error, ConfigError) else error.message
