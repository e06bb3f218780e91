"""A front's side of the state: what the keeper says the gateway is, and making it so here."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import trio

from smg_trio.core.errors import SmgError
from smg_trio.processes.values import adapter_of_value, spec_of_value

if TYPE_CHECKING:
    from smg_trio.core.workers import WorkerSpec
    from smg_trio.gateway.state import Gateway

logger = logging.getLogger("smg_trio.processes")


class GatewayState:
    """The newest state that the keeper has sent.

    Attributes:
        value: see `keeper`.
        slots: first slot on the board by worker id.
    """

    def __init__(self) -> None:
        self.value: dict[str, Any] = {"generation": -1, "workers": [], "models": {}, "adapters": []}
        self.slots: dict[str, int] = {}
        self._news = trio.Event()

    def take(self, value: dict[str, Any]) -> None:
        """A state has come; an older one than is known is ignored."""
        if value["generation"] > self.value["generation"]:
            self.value = value
            self.slots |= {one["spec"]["worker_id"]: one["slot"] for one in value["workers"]}
            self._news.set()

    async def wait_news(self) -> None:
        """Wait until there is a state that nobody has waited for yet."""
        await self._news.wait()
        self._news = trio.Event()

    @property
    def ready(self) -> list[str]:
        """Ids of workers that the keeper has engines of."""
        return [one["spec"]["worker_id"] for one in self.value["workers"] if one["ready"]]


class Reconciler:
    """Makes one front's workers and adapters those of the state."""

    def __init__(self, gateway: Gateway, state: GatewayState) -> None:
        self._gateway = gateway
        self._state = state
        self._told: dict[str, WorkerSpec] = {}

    async def run(self) -> int:
        """Do so once; the state's generation."""
        value = self._state.value
        wanted = {one["spec"]["worker_id"]: one for one in value["workers"]}
        self._remove_others({worker_id: spec_of_value(one["spec"]) for worker_id, one in wanted.items()})
        for worker_id, one in wanted.items():
            try:
                await self._have(spec_of_value(one["spec"]))
                if one["draining"]:
                    self._gateway.registry.stop_using(worker_id)
            except SmgError as error:
                logger.warning("worker %s cannot be served: %s", one["spec"]["url"], error.message)
        for model_id, labels in value["models"].items():
            try:
                await self._gateway.model_changes.follow(model_id, labels)
            except SmgError as error:
                logger.warning("model %s cannot be changed: %s", model_id, error.message)
        self._have_adapters(value["adapters"])
        return int(value["generation"])

    def _remove_others(self, wanted: dict[str, WorkerSpec]) -> None:
        registry = self._gateway.registry
        for worker_id, told in list(self._told.items()):
            spec = wanted.get(worker_id)
            if spec is None or not _same_connection(told, spec):
                del self._told[worker_id]
                if any(worker.spec.worker_id == worker_id for worker in registry.all_workers()):
                    registry.remove(worker_id)

    async def _have(self, spec: WorkerSpec) -> None:
        registry = self._gateway.registry
        told = self._told.get(spec.worker_id)
        if told == spec:
            return
        if told is not None:
            own = registry.get(spec.worker_id).spec
            await registry.replace(replace(spec, vocab_size=own.vocab_size, model_id=own.model_id))
        else:
            await registry.wait_closed(spec.url)
            await registry.add(spec if spec.over_http else await self._gateway.loads.model_of_worker(spec))
        self._told[spec.worker_id] = spec

    def _have_adapters(self, values: list[list[Any]]) -> None:
        catalog = self._gateway.catalog
        wanted = {
            adapter.name: (model_id, adapter, created) for model_id, adapter, created in map(adapter_of_value, values)
        }
        for model in catalog.adapters():
            if model.lora is not None and model.lora.name not in wanted:
                catalog.remove_adapter(model.lora.name)
        for name, (model_id, adapter, created) in wanted.items():
            known = catalog.adapted(name)
            if known is None or known.lora != adapter:
                try:
                    catalog.add_adapter(catalog.find(model_id), adapter, created)
                except SmgError as error:
                    logger.warning("adapter %r cannot be offered: %s", name, error.message)


def _same_connection(told: WorkerSpec, spec: WorkerSpec) -> bool:
    names = ("url", "protocol", "engine_count", "handshake_address", "advertise_host", "model_id")
    return all(getattr(told, name) == getattr(spec, name) for name in names)
