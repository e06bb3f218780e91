"""Models as settings and workers name them: an order says which files are wanted, `load` makes the model of them."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio

from smg_trio.hub.locating import FilesAt, Wanted, find
from smg_trio.hub.names import without_revision
from smg_trio.pipeline.model_media import load_family
from smg_trio.pipeline.models import ServedModel
from smg_trio.pipeline.planning import check_parsers
from smg_trio.plugins.kinds import REASONING_PARSER, TOOL_PARSER, Kind
from smg_trio.text.model_files import load_model_text

if TYPE_CHECKING:
    from smg_trio.core.workers import WorkerSpec
    from smg_trio.gateway.plugin_set import PluginSet
    from smg_trio.parsers.registry import ParserName
    from smg_trio.settings.settings import Settings

logger = logging.getLogger("smg_trio.gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOrder:
    """A model that is to be served.

    Attributes:
        model_id, aliases: what clients call it.
        files: where everything about it is, but for a tokenizer that is elsewhere.
        tokenizer: where the tokenizer is, if elsewhere.
        chat_template, generation_config: as settings have them.
        tool_parser, reasoning_parser: as flags and labels name them.
    """

    model_id: str
    aliases: tuple[str, ...] = ()
    files: Wanted
    tokenizer: Wanted | None = None
    chat_template: str | None = None
    generation_config: str = "auto"
    tool_parser: str | None = None
    reasoning_parser: str | None = None

    @property
    def wanted(self) -> list[Wanted]:
        """Everything that has to be found, the model first."""
        return [self.files] if self.tokenizer is None else [self.files, self.tokenizer]


class Located(NamedTuple):
    """Where the files of an order are; None: they have to be downloaded."""

    files: FilesAt | None
    tokenizer: FilesAt | None = None


def order_of_settings(settings: Settings) -> ModelOrder | None:
    """The model that the settings name, if they do."""
    path = settings.model_path
    if path is None:
        return None
    names = settings.served_model_name or _names(path)
    aliases = [alias for alias, _, name in (entry.partition("=") for entry in settings.model_alias) if name in names]
    return ModelOrder(
        model_id=names[0],
        aliases=(*names[1:], *aliases),
        files=Wanted(text=path, revision=settings.revision, tokenizer=settings.tokenizer_path is None),
        tokenizer=_wanted_tokenizer(settings.tokenizer_path, "--tokenizer-path"),
        chat_template=settings.chat_template,
        generation_config=settings.generation_config,
        tool_parser=settings.tool_call_parser,
        reasoning_parser=settings.reasoning_parser,
    )


def order_of_worker(spec: WorkerSpec, settings: Settings) -> ModelOrder:
    """The model that a worker brings with it, by its labels (`model_path`, `tokenizer_path`).

    Without a `model_path` its id says where the files are; if that is no directory, a `tokenizer_path` does.
    """
    labels = spec.labels
    tokenizer = labels.get("tokenizer_path")
    option, path = "labels.model_path", labels.get("model_path")
    if not path:
        named_by_id = tokenizer is None or os.path.isdir(spec.model_id)
        option, path = ("model_id", spec.model_id) if named_by_id else ("labels.tokenizer_path", str(tokenizer))
    names = _names(spec.model_id)
    return ModelOrder(
        model_id=names[0],
        aliases=names[1:],
        files=Wanted(text=path, option=option, tokenizer=tokenizer in (None, path)),
        tokenizer=None if tokenizer == path else _wanted_tokenizer(tokenizer, "labels.tokenizer_path"),
        generation_config=settings.generation_config,
        tool_parser=labels.get("tool_parser") or settings.tool_call_parser,
        reasoning_parser=labels.get("reasoning_parser") or settings.reasoning_parser,
    )


def order_of_change(served: ServedModel, spec: WorkerSpec, settings: Settings) -> ModelOrder:
    """The model that is served, out of the files that a worker's labels name now; names no parsers."""
    own = order_of_settings(settings)
    return replace(
        order_of_worker(spec, settings),
        model_id=served.model_id,
        aliases=served.aliases,
        chat_template=own.chat_template if own is not None and own.model_id == served.model_id else None,
        tool_parser=None,
        reasoning_parser=None,
    )


def _names(path: str) -> tuple[str, ...]:
    """What a model is called without further names: as given, and without the revision."""
    return tuple(dict.fromkeys((path, without_revision(path))))


def _wanted_tokenizer(path: str | None, option: str) -> Wanted | None:
    return None if path is None else Wanted(text=path, option=option, only_tokenizer=True)


async def locate(order: ModelOrder) -> Located:
    """Where the order's files are on this disk. Raises ConfigError; never asks the network."""
    places = [await trio.to_thread.run_sync(find, wanted, abandon_on_cancel=True) for wanted in order.wanted]
    return Located(*places)


def is_complete(order: ModelOrder, located: Located) -> bool:
    """Whether nothing has to be downloaded."""
    return located.files is not None and (order.tokenizer is None or located.tokenizer is not None)


async def load(order: ModelOrder, located: Located, plugins: PluginSet) -> ServedModel:
    """The model, out of files that are all there, with its parsers. Raises ConfigError."""
    files, tokenizer = located
    assert files is not None, "downloaded before"
    text = await trio.to_thread.run_sync(
        partial(
            load_model_text,
            files.path,
            tokenizer_path=None if tokenizer is None else tokenizer.path,
            chat_template_path=order.chat_template,
            generation_config=order.generation_config,
        ),
        abandon_on_cancel=True,
    )
    family = await trio.to_thread.run_sync(load_family, Path(files.path), text.tokenizer, abandon_on_cancel=True)
    if text.no_chat:
        logger.warning("chat requests for %s will be refused. %s", order.files.text, text.no_chat)
    model = ServedModel(
        model_id=order.model_id,
        aliases=order.aliases,
        text=text,
        root=order.files.text,
        files=files,
        created=int(time.time()),
        tool_parser=await parser_of(plugins, TOOL_PARSER, order.tool_parser),
        reasoning_parser=await parser_of(plugins, REASONING_PARSER, order.reasoning_parser),
        family=family,
    )
    check_parsers(model)
    if order.files.revision and files.source == "directory":
        logger.warning("--revision %s: %s is a directory, which has no revisions", order.files.revision, files.path)
    takes = "" if family is None else f"; takes {', '.join(sorted(family.modalities))} input ({family.name})"
    logger.info("model %s: %s%s", order.model_id, _found(files, tokenizer), takes)
    return model


async def parser_of(plugins: PluginSet, kind: Kind, named: str | None) -> ParserName | None:
    """The parser that a flag or label names, loaded in a thread where it is a plug-in. Raises ConfigError."""
    return None if named is None else await trio.to_thread.run_sync(plugins.parser, kind, named)


def _found(files: FilesAt, tokenizer: FilesAt | None) -> str:
    where = f"{files.source} {files.path}"
    return where if tokenizer is None else f"{where}, tokenizer: {tokenizer.source} {tokenizer.path}"


def completed(spec: WorkerSpec, model: ServedModel) -> WorkerSpec:
    """The worker's spec with what its model says."""
    return replace(spec, model_id=model.model_id, vocab_size=model.text.vocab_size)
