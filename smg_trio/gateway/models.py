"""Loads models: the one that the settings name, and those that workers added at run time bring with them."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from smg_trio.core.errors import ModelNotFound
from smg_trio.core.workers import WorkerSpec
from smg_trio.gateway.state import Gateway
from smg_trio.pipeline.models import ModelCatalog, ServedModel
from smg_trio.pipeline.planning import check_parsers
from smg_trio.settings.settings import Settings
from smg_trio.text.model_files import ModelText, load_model_text


async def load_catalog(settings: Settings) -> ModelCatalog:
    """The models that the settings name: one, or none without ``--model-path``. Raises ConfigError."""
    catalog = ModelCatalog()
    if settings.model_path is None:
        return catalog
    path = settings.model_path
    text = await _load(
        path,
        tokenizer_path=settings.tokenizer_path,
        chat_template_path=settings.chat_template,
        generation_config=settings.generation_config,
    )
    names = settings.served_model_name or (path,)
    aliases = [alias for alias, _, name in (entry.partition("=") for entry in settings.model_alias) if name in names]
    model = ServedModel(
        model_id=names[0],
        aliases=(*names[1:], *aliases),
        text=text,
        root=path,
        created=int(time.time()),
        tool_parser=settings.tool_call_parser,
        reasoning_parser=settings.reasoning_parser,
    )
    check_parsers(model)
    catalog.add(model)
    return catalog


async def _load(
    path: str, *, tokenizer_path: str | None, chat_template_path: str | None, generation_config: str
) -> ModelText:
    load = partial(
        load_model_text,
        path,
        tokenizer_path=tokenizer_path,
        chat_template_path=chat_template_path,
        generation_config=generation_config,
    )
    return await trio.to_thread.run_sync(load, abandon_on_cancel=True)


async def model_of_worker(gateway: Gateway, spec: WorkerSpec) -> WorkerSpec:
    """Make sure that the worker's model is in the catalog, and complete the spec by what the model says.

    A model that is not there is loaded from the worker's labels (`model_path`, `tokenizer_path`), or from its id if
    that is a directory. Raises ConfigError if it cannot be.
    """
    try:
        model = gateway.catalog.find(spec.model_id)
    except ModelNotFound:
        model = await _load_for_worker(gateway, spec)
    return replace(spec, model_id=model.model_id, vocab_size=model.text.vocab_size)


async def _load_for_worker(gateway: Gateway, spec: WorkerSpec) -> ServedModel:
    labels = spec.labels
    path = labels.get("model_path") or _directory_of(spec.model_id, labels.get("tokenizer_path"))
    text = await _load(
        path,
        tokenizer_path=labels.get("tokenizer_path"),
        chat_template_path=None,
        generation_config=gateway.settings.generation_config,
    )
    model = ServedModel(
        model_id=spec.model_id,
        text=text,
        root=path,
        created=int(time.time()),
        tool_parser=labels.get("tool_parser") or gateway.settings.tool_call_parser,
        reasoning_parser=labels.get("reasoning_parser") or gateway.settings.reasoning_parser,
    )
    check_parsers(model)
    gateway.catalog.add(model)
    return model


def _directory_of(model_id: str, tokenizer_path: str | None) -> str:
    """Where a worker without a model path has its model: its id if that is a directory, else its tokenizer's."""
    return model_id if tokenizer_path is None or Path(model_id).is_dir() else tokenizer_path
