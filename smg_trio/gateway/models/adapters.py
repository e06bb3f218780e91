"""LoRA adapters: loaded into every engine of a model, or into none, and offered as models of their own.

An engine loads an adapter that it does not have when a request names it, since requests carry its path. So an engine
that comes later needs nothing, and one that is away now is no reason to refuse.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import EngineFault, InvalidRequest, NotFound, SmgError, UnsupportedFeature
from smg_trio.core.requests import LoraAdapter
from smg_trio.routing.administration import Engine, call_all, call_each, engines_of

if TYPE_CHECKING:
    from smg_trio.pipeline.models import ModelCatalog, ServedModel
    from smg_trio.routing.registry import Registry

logger = logging.getLogger("smg_trio.gateway")

LOAD_LIMIT_S = 300.0
"""Reading an adapter from a disk takes seconds, from a network file system minutes."""
_UNLOAD_LIMIT_S = 30.0
_NO_SUCH_ADAPTER = "No adapter found for"
_LORA_OFF = "LoRA is not enabled"
_MAX_ID = 2**31 - 1


class Adapters:
    """Loads and unloads, one at a time."""

    def __init__(self, catalog: ModelCatalog, registry: Registry) -> None:
        self._catalog = catalog
        self._registry = registry
        self._turn = trio.Lock()

    async def load(self, name: str, path: str, *, base_model: str = "", replace: bool = False) -> None:
        """Load an adapter and offer it under `name`.

        An adapter that is replaced gets a new id, so that engines read it anew; requests that have begun go on with
        the old one. Raises ClientFault, NoReadyWorker, EngineFault; cancelled or failed, the engines are told to
        forget the new one, and nothing has changed for clients.
        """
        async with self._turn:
            base = self._base(base_model)
            previous = self._check_free(name, replace)
            engines = engines_of(self._registry.workers(base.model_id))
            adapter = LoraAdapter(name=name, adapter_id=_new_id(), path=path)
            await _add(engines, adapter)
            self._catalog.add_adapter(base, adapter, int(time.time()))
            logger.info("loaded LoRA adapter %r from %r", name, path)
            if previous is not None and previous.lora is not None:
                await _forget(engines, previous.lora)

    async def unload(self, name: str) -> None:
        """Offer the adapter no more and have the engines forget it.

        Raises NotFound, NoReadyWorker, EngineFault; failed or cancelled, it is offered as before.
        """
        async with self._turn:
            model = self._catalog.adapted(name)
            if model is None or model.lora is None:
                raise NotFound(f"The lora adapter '{name}' cannot be found.", param="lora_name")
            engines = engines_of(self._registry.workers(model.model_id))
            self._catalog.remove_adapter(name)
            try:
                await call_all(engines, "remove_lora", model.lora.adapter_id, timeout_s=_UNLOAD_LIMIT_S)
            except BaseException:
                self._catalog.add_adapter(model, model.lora, model.created)
                raise
            logger.info("unloaded LoRA adapter %r", name)

    def _base(self, name: str) -> ServedModel:
        models = list(self._catalog)
        if not name and len(models) != 1:
            raise InvalidRequest("There are several models: 'base_model_name' is required.", param="base_model_name")
        base = self._catalog.find(name)
        if base.lora is not None:
            raise InvalidRequest(f"'{name}' is an adapter itself.", param="base_model_name")
        return base

    def _check_free(self, name: str, replace: bool) -> ServedModel | None:
        """The adapter that is to be replaced. Raises InvalidRequest if the name is taken otherwise."""
        previous = self._catalog.adapted(name)
        if previous is None and name in self._catalog.names():
            raise InvalidRequest(f"The lora adapter '{name}' conflicts with a served base model.", param="lora_name")
        if previous is not None and not replace:
            raise InvalidRequest(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                param="lora_name",
            )
        return previous


def _new_id() -> int:
    # Engines keep ids in 32 bits and outlive gateways: counting from 1 would meet an earlier gateway's adapters, and
    # an engine does not look at the path of an id that it has.
    return secrets.randbelow(_MAX_ID) + 1


async def _add(engines: list[Engine], adapter: LoraAdapter) -> None:
    fields = [adapter.name, adapter.adapter_id, adapter.path]
    try:
        await call_all(engines, "add_lora", fields, timeout_s=LOAD_LIMIT_S)
    except BaseException as error:
        await _forget(engines, adapter)
        if isinstance(error, EngineFault):
            raise _in_client_words(error, adapter) from None
        raise


def _in_client_words(error: EngineFault, adapter: LoraAdapter) -> SmgError:
    """What the client can change about it, if the engine's words (0.32) say that it can."""
    if _NO_SUCH_ADAPTER in error.message:
        text = f"Loading lora {adapter.name} failed: No adapter found for {adapter.path}"
        return NotFound(text, param="lora_path")
    if _LORA_OFF in error.message:
        return UnsupportedFeature("The engine was not started with LoRA support (--enable-lora).")
    return error


async def _forget(engines: list[Engine], adapter: LoraAdapter) -> None:
    """Tell the engines to drop an adapter, whether or not they have it; also under cancellation."""
    with trio.CancelScope(shield=True):
        for result in await call_each(engines, "remove_lora", adapter.adapter_id, timeout_s=_UNLOAD_LIMIT_S):
            if isinstance(result, SmgError):
                logger.warning("an engine may still hold LoRA adapter %r: %s", adapter.name, result.message)
