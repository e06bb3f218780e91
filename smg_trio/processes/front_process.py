"""One front as the keeper has it: a process that was started by exec, and the channel to it.

Fork would copy what must not be shared: libzmq's context and threads, tokenizer threads, the pool of random digits that
request ids are made of.
"""

from __future__ import annotations

import logging
import os
import site
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

import smg_trio
from smg_trio.processes.channel import Calls, Channel, Notices

if TYPE_CHECKING:
    from smg_trio.processes.keys import KeyBook

logger = logging.getLogger("smg_trio.processes")

_HANG_UP_LIMIT_S: Final = 5.0
"""A front whose channel has ended has nothing more to do."""


class Front:
    """One life of one front.

    Attributes:
        index: which of the processes; also its socket pair's number.
        channel: to it; None before it has been started.
        ready: it accepts connections.
        confirmed: the newest state of the gateway that it has taken over.
        workers: its word on each worker: state.
        watching: it has watchers of the live feed.
        background: responses that it runs in the background: id and owner.
        responses: ids that clients gave to responses that it is generating.
        keys: slots that its requests have.
        exposition: its metrics when they were last asked for.
        failure: why it could not start, in its own words.
    """

    def __init__(self, index: int, keys: KeyBook) -> None:
        self.index = index
        self.keys = keys
        self.channel: Channel | None = None
        self.ready = False
        self.confirmed = 0
        self.workers: dict[str, str] = {}
        self.watching = False
        self.background: dict[str, str] = {}
        self.responses: set[str] = set()
        self.exposition = ""
        self.failure = ""
        self._process: trio.Process | None = None

    @property
    def pid(self) -> int:
        """Of its process; 0 before it has one."""
        return 0 if self._process is None else self._process.pid

    def notify(self, name: str, *arguments: Any) -> None:
        """See `Channel.notify`; nothing happens if there is nobody to tell."""
        if self.channel is not None:
            self.channel.notify(name, *arguments)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def run(
        self, notices: Notices, calls: Calls, inherited: Sequence[int], started: Callable[[int], None]
    ) -> int:
        """Start it and wait for its end; the exit code. Cancelled, it is killed.

        Args:
            notices, calls: see `Channel`.
            inherited: descriptors that it gets under the same numbers.
            started: called with its process id.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-m", "smg_trio.processes", str(theirs.fileno()), f"front-{self.index}"],
                pass_fds=[theirs.fileno(), *inherited],
                stdin=subprocess.DEVNULL,
                env=environment(os.environ),
            )
        process = self._process
        started(process.pid)
        self.channel = Channel(ours, notices, calls)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._talk, self.channel)
                code = await process.wait()
                nursery.cancel_scope.cancel()
            return code
        finally:
            self.ready = False
            if process.returncode is None:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()

    async def _talk(self, channel: Channel) -> None:
        await channel.run()
        await trio.sleep(_HANG_UP_LIMIT_S)
        logger.warning("front %d has let go of its channel and does not end; it is killed", self.index)
        self.kill()


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """That of a front: it must import this very package, wherever the keeper has it from."""
    parent = str(Path(smg_trio.__file__).resolve().parents[1])
    known = [*site.getsitepackages(), site.getusersitepackages()]
    if parent in known:
        return dict(own)
    return dict(own) | {"PYTHONPATH": os.pathsep.join(filter(None, (parent, own.get("PYTHONPATH", ""))))}
