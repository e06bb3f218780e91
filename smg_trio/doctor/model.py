"""The model's files, found and loaded as a launch would; never over the network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from smg_trio.core.errors import ConfigError
from smg_trio.doctor.findings import Check, Finding, Status
from smg_trio.gateway.models.orders import is_complete, load, locate, order_of_settings

if TYPE_CHECKING:
    from smg_trio.gateway.models.orders import ModelOrder
    from smg_trio.gateway.plugin_set import PluginSet
    from smg_trio.pipeline.models import ServedModel
    from smg_trio.settings.settings import Settings


async def check_model(settings: Settings, plugins: PluginSet) -> list[Finding]:
    """Find and load the model that the settings name, as a launch does: up to some seconds for large vocabularies."""
    order = order_of_settings(settings)
    if order is None:
        text = "none is named: workers of the worker API bring theirs"
        return [Finding(Check.MODEL, Status.NOTE, "--model-path", text)]
    try:
        located = await locate(order)
        if not is_complete(order, located):
            return [_to_download(order)]
        return list(model_findings(await load(order, located, plugins)))
    except ConfigError as error:
        subject = f"{error.option} (from {error.origin})" if error.origin else error.option
        return [Finding(Check.MODEL, Status.PROBLEM, subject, error.problem, error.remedy)]


def _to_download(order: ModelOrder) -> Finding:
    names = " and ".join(wanted.text for wanted in order.wanted)
    return Finding(
        Check.MODEL, Status.NOTE, order.files.option,
        f"{names} is not whole on this disk: a launch downloads its small files, and needs the network for that",
        f"To have them before: hf download {order.files.text}",
    )  # fmt: skip


def model_findings(model: ServedModel) -> Iterator[Finding]:
    """What was read of a model. Pure."""
    text, files = model.text, model.files
    where = f"{files.source} {files.path}" if files is not None else model.root
    yield Finding(Check.MODEL, Status.OK, model.model_id, f"from {where}, tokenizer loaded")
    if text.no_chat:
        yield Finding(Check.MODEL, Status.WARNING, "chat template", "chat requests will be refused", text.no_chat)
    elif text.chat_template is None:
        remedy = "For a model that can chat: --chat-template FILE."
        yield Finding(
            Check.MODEL, Status.WARNING, "chat template", "there is none: chat requests will be refused", remedy
        )
    else:
        yield Finding(Check.MODEL, Status.OK, "chat template", "compiled")
    yield _config_finding(model)


def _config_finding(model: ServedModel) -> Finding:
    text = model.text
    if text.model_type is None:
        remedy = "Restore the file: without it parsers are chosen by the model's name, limits are the engine's."
        return Finding(Check.MODEL, Status.WARNING, "config.json", "absent, or it names no model_type", remedy)
    context = f"context of {text.context_length:,} tokens" if text.context_length else "context length not stated"
    return Finding(Check.MODEL, Status.OK, "config.json", f"model_type {text.model_type}, {context}")
