"""Which response ids are in use by requests being answered now.

Clients may choose the id of a response, and a client that retries chooses the same one again. An id has one request at
a time; what is kept in the history is asked there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smg_trio.core.errors import Conflict


class ResponseIds:
    """The ids in use."""

    def __init__(self) -> None:
        self._in_use: set[str] = set()

    @contextmanager
    def claim(self, response_id: str) -> Iterator[None]:
        """Use an id until the block is left. Raises Conflict while another request uses it."""
        if response_id in self._in_use:
            raise id_in_use(response_id)
        self._in_use.add(response_id)
        try:
            yield
        finally:
            self._in_use.discard(response_id)


def id_in_use(response_id: str) -> Conflict:
    """What a second request with the id is answered, whether the first is running or kept."""
    return Conflict(
        f"request_id '{response_id}' is in use by another response; choose another one, or leave it out.",
        param="request_id",
    )
