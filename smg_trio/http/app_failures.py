"""What an exception of the app means for its request."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from smg_trio.http.client_connection import ClientGone
from smg_trio.http.faults import AppFailed, RequestFault

if TYPE_CHECKING:
    from smg_trio.core.errors import SmgError

LOGGER = logging.getLogger("smg_trio.http")


def fault_of(error: Exception) -> SmgError | None:
    """The answer to the client, if it is still there; logs failures that are not errors of this package."""
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, RequestFault):
            return leaf
    if all(isinstance(leaf, ClientGone) for leaf in leaves):
        return None
    LOGGER.error("the app failed on a request", exc_info=error)
    return AppFailed()


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
