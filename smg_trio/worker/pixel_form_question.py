"""Asks engines in which form they take media; see `worker.pixel_forms` for what is asked and what the answer means."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import EngineDead, SmgError
from smg_trio.worker.pixel_forms import INSPECTION, form_of_inspection, form_of_version

if TYPE_CHECKING:
    from smg_trio.core.media import PixelForm
    from smg_trio.worker.group import Group

logger = logging.getLogger("smg_trio.worker")

ANSWER_LIMIT_S = 10.0
"""How long an engine may take; it answers between two steps. After that its version decides."""


async def ask_pixel_forms(group: Group, url: str, model_type: str) -> None:
    """Ask every engine of the group that serves and has not been asked yet, all at once.

    Cancelled, what was said is kept.
    """
    unknown = [rank for rank in group.handshake.serving_ranks if group.pixel_forms.of(rank) is None]
    if unknown:
        async with trio.open_nursery() as nursery:
            for rank in unknown:
                nursery.start_soon(_ask, group, rank, url, model_type)


async def _ask(group: Group, rank: int, url: str, model_type: str) -> None:
    info = group.handshake.info(rank)
    if info is None:  # gone since
        return
    try:
        form = await _said(group, rank)
    except EngineDead:
        return
    if form is None:
        form = form_of_version(info, model_type)
        logger.warning(
            "rank %d of %s cannot say how it takes media; by its version (%s) %s is taken for it. Set --mm-pixels if "
            "that is wrong.", rank, url, info.engine_version or "unknown", form,
        )  # fmt: skip
    group.pixel_forms.note(rank, info, form)


async def _said(group: Group, rank: int) -> PixelForm | None:
    method, *arguments = INSPECTION
    with trio.move_on_after(ANSWER_LIMIT_S):
        try:
            return form_of_inspection(await group.call_utility(rank, method, tuple(arguments)))
        except EngineDead:
            raise
        except SmgError as error:
            logger.info("%s", error.message)
    return None
