"""Waiting for a ZMQ socket through trio.

ZMQ's descriptor is a mailbox signal, not a readiness level: any call on the socket may swallow the edge that
another task waits for. The rules kept here:

1. Try the operation first; only on EAGAIN read EVENTS; only if the wanted bit is clear, wait for the descriptor,
   with nothing in between.
2. After any call on a socket on which another task is parked, EVENTS is read again and that task is woken.
3. One task waits on the descriptor (the leader), others park behind it; a cancelled leader hands over.
4. The descriptor only ever becomes readable, also for POLLOUT.
"""

from __future__ import annotations

import trio
import zmq

from smg_trio.worker.links import LinkClosed

# As plain numbers: `&` and `|` of the library's flags cost a microsecond each.
EVENTS, POLLIN, POLLOUT = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.POLLOUT)


def _events(socket: zmq.Socket[bytes]) -> int:
    # Reading EVENTS also makes libzmq process what its descriptor signalled.
    return int(socket.get(EVENTS))


class SocketPoller:
    """Waits for POLLIN or POLLOUT of one socket, for any number of tasks, by rules 1 to 4."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._descriptor = int(socket.get(zmq.FD))
        self._lot = trio.lowlevel.ParkingLot()
        self._led = False
        self._waiting_for = [0, 0]
        self.closed = False

    def readable(self) -> bool:
        """Whether a message can be received now. Raises LinkClosed."""
        if self.closed:
            raise LinkClosed
        return bool(_events(self._socket) & POLLIN)

    async def wait(self, mask: int) -> None:
        """Return when EVENTS shows `mask`. Raises LinkClosed. Nothing is left behind when cancelled."""
        slot = 0 if mask == POLLIN else 1
        self._waiting_for[slot] += 1
        try:
            while not self.closed:
                if _events(self._socket) & mask:
                    return
                await self._lead_or_follow()
        finally:
            self._waiting_for[slot] -= 1
        raise LinkClosed

    async def wait_signal(self) -> None:
        """Wait for the next signal of the socket, whatever it says. Raises LinkClosed."""
        if self.closed:
            raise LinkClosed
        await self._lead_or_follow()

    async def _lead_or_follow(self) -> None:
        if self._led:
            await self._lot.park()
            return
        self._led = True
        try:
            await trio.lowlevel.wait_readable(self._descriptor)
        except trio.ClosedResourceError:  # by `_wake_all`: the link was closed, or there is something to look at
            if self.closed:
                raise LinkClosed from None
        finally:
            self._led = False
            self._lot.unpark_all()

    def kick(self) -> None:
        """Rule 2: call after every operation on the socket."""
        if not self._led:
            return
        mask = (POLLIN if self._waiting_for[0] else 0) | (POLLOUT if self._waiting_for[1] else 0)
        if _events(self._socket) & mask:
            self._wake_all()

    def _wake_all(self) -> None:
        # Nothing is being closed: it is the way to wake a waiter that costs it nothing, unlike a scope to cancel.
        trio.lowlevel.notify_closing(self._descriptor)
        self._lot.unpark_all()

    def close(self) -> None:
        """Wake every waiter with LinkClosed and forget the descriptor."""
        self.closed = True
        self._wake_all()
