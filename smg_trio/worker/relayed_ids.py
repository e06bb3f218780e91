"""Which requests a keeper has handed on for fronts: what else an engine speaks of is nobody's. Pure."""

from __future__ import annotations

from typing import Final

from smg_trio.wire.requests import aborted_ids, added_id

_MOST: Final = 1_000_000


class RelayedIds:
    """The ids of requests that fronts have sent through the keeper and that have not ended."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def note(self, frames: list[bytes]) -> None:
        """A front has sent this message to an engine."""
        added = added_id(frames)
        if added is None:
            self._ids.difference_update(aborted_ids(frames))
        elif len(self._ids) < _MOST:
            self._ids.add(added)

    def known(self, request_id: str, *, ended: bool) -> bool:
        """Whether the request is a front's; ``ended``: the engine has said its last word on it."""
        if request_id not in self._ids:
            return False
        if ended:
            self._ids.discard(request_id)
        return True
