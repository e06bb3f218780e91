"""Key limits for several processes: the keeper keeps the meters, a front asks for a slot per request.

Only requests of key holders who have limits pay for it: a question before the request and one after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smg_trio.gateway.security.key_limits import KeyMeter, KeyMeters, KeySlot
from smg_trio.gateway.security.key_ring import KeyHolder, KeyLimits

if TYPE_CHECKING:
    from smg_trio.processes.channel import Channel


class RemoteKeyMeter(KeyMeter):
    """A front's side of one holder's meter: it knows the limits, and the keeper what is used."""

    __slots__ = ("_keeper", "_slot")

    def __init__(self, holder: KeyHolder, keeper: Channel, slot: int) -> None:
        super().__init__(holder, lambda: 0.0)
        self._keeper = keeper
        self._slot = slot

    def use(self, tokens: int) -> None:
        """See `KeySlot.use`."""
        self._keeper.notify("key_use", self._slot, tokens)

    def give_back(self) -> None:
        """See `KeyMeter.give_back`."""
        self._keeper.notify("key_close", self._slot)


async def enter(keeper: Channel, holder: KeyHolder) -> KeySlot:
    """A slot for one more request. Raises RateLimited, PeerGone."""
    slot: int = await keeper.call("key_enter", *_holder_value(holder))
    return KeySlot(RemoteKeyMeter(holder, keeper, slot))


async def headers(keeper: Channel, holder: KeyHolder) -> list[tuple[str, str]]:
    """What the holder has left, as headers. Raises PeerGone."""
    return [(name, value) for name, value in await keeper.call("key_headers", *_holder_value(holder))]


def _holder_value(holder: KeyHolder) -> list[Any]:
    return [holder.identity, holder.name, holder.limits.concurrent_requests, holder.limits.tokens_per_minute]


class KeyBook:
    """The keeper's side for one front: the slots that requests of that front have."""

    def __init__(self, meters: KeyMeters) -> None:
        self._meters = meters
        self._holders: dict[str, KeyHolder] = {}
        self._slots: dict[int, KeySlot] = {}
        self._last = 0

    def _holder(self, identity: str, name: str, concurrent: int | None, tokens: int | None) -> KeyHolder:
        limits = KeyLimits(concurrent, tokens)
        known = self._holders.get(identity)
        if known is None or known.limits != limits:
            known = self._holders[identity] = KeyHolder(name=name, identity=identity, limits=limits)
        return known

    async def enter(self, *holder: Any) -> int:
        """A slot's number. Raises RateLimited."""
        slot = self._meters.of(self._holder(*holder)).enter()
        self._last += 1
        self._slots[self._last] = slot
        return self._last

    async def headers(self, *holder: Any) -> list[tuple[str, str]]:
        """See `KeyMeter.headers`."""
        return self._meters.of(self._holder(*holder)).headers()

    def use(self, number: int, tokens: int) -> None:
        """See `KeySlot.use`."""
        self._slots[number].use(tokens)

    def close(self, number: int) -> None:
        """See `KeySlot.close`."""
        slot = self._slots.pop(number, None)
        if slot is not None:
            slot.close()

    def close_all(self) -> None:
        """The front has ended."""
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()
