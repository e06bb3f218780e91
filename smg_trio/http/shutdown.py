"""How a running server is told to end: drain first, then cut. Does IO only through its cancel scope."""

from __future__ import annotations

import trio


class Shutdown:
    """One server's end. States: running, draining (`begin`), cut (the deadline passed, or `cut`).

    Draining stops accepting, closes idle connections, and makes every further response say
    ``Connection: close``. At the deadline what still runs is cancelled; a client that does not read
    cannot hold it, since no send is shielded. Serves one call of `serve` only.
    """

    def __init__(self) -> None:
        self._began = trio.Event()
        self.hard_scope = trio.CancelScope()

    @property
    def draining(self) -> bool:
        """Whether `begin` was called."""
        return self._began.is_set()

    def begin(self, grace_s: float) -> None:
        """Starts draining; connections have ``grace_s`` seconds. A later call can only shorten it."""
        deadline = trio.current_time() + grace_s
        self.hard_scope.deadline = min(self.hard_scope.deadline, deadline)
        self._began.set()

    def cut(self) -> None:
        """Ends every connection now (a second signal)."""
        self._began.set()
        self.hard_scope.cancel()

    async def wait_draining(self) -> None:
        """Returns once `begin` or `cut` was called. Cancellation leaves nothing behind."""
        await self._began.wait()
