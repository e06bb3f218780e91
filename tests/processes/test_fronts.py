"""How fronts are started again and told to end; their processes are played."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from smg_trio.core.errors import GatewayFault
from smg_trio.gateway.run import GatewayShutdown
from smg_trio.gateway.security.key_limits import KeyMeters
from smg_trio.processes.front_process import Front
from smg_trio.processes.fronts import Fronts
from smg_trio.processes.keys import KeyBook
from smg_trio.processes.memory import SharedBoard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smg_trio.processes.channel import Calls, Notices


class PlayedFront(Front):
    """Lives for a while after it has become ready, and ends with a code."""

    def __init__(self, index: int, owner: Owner) -> None:
        super().__init__(index, KeyBook(KeyMeters(trio.current_time)))
        self._owner = owner
        self._told = trio.Event()
        self.killed = False

    def notify(self, name: str, *arguments: object) -> None:
        if name == "drain" and not self._owner.deaf:
            self._told.set()

    def kill(self) -> None:
        self.killed = True
        self._told.set()

    async def run(
        self, notices: Notices, calls: Calls, inherited: Sequence[int], started: Callable[[int], None]
    ) -> int:
        owner = self._owner
        owner.starts.append(trio.current_time() - owner.began)
        started(1000 + self.index)
        if owner.becomes_ready:
            owner.fronts.became_ready(self)
        with trio.move_on_after(owner.lives_s):
            await self._told.wait()
            return -9 if self.killed else 0
        return 1


class Owner:
    """A keeper with nothing to keep."""

    def __init__(self, count: int = 1, *, lives_s: float = 0.0, ready: bool = True, deaf: bool = False) -> None:
        self.shutdown = GatewayShutdown()
        self.fronts = Fronts(SharedBoard.create(count + 1), count, self.shutdown, self)
        self.lives_s, self.becomes_ready, self.deaf = lives_s, ready, deaf
        self.began = trio.current_time()
        self.starts: list[float] = []
        self.ended = 0
        self.standing_in = 0

    def make_front(self, index: int) -> Front:
        return PlayedFront(index, self)

    def notices(self, front: Front) -> Notices:
        return {}

    def calls(self, front: Front) -> Calls:
        return {}

    @contextmanager
    def _away(self) -> Iterator[None]:
        self.standing_in += 1
        try:
            yield
        finally:
            self.standing_in -= 1

    async def stand_in(self, index: int) -> None:
        with self._away():
            await trio.sleep_forever()

    async def front_ended(self, front: Front) -> None:
        self.ended += 1


async def test_a_front_that_ends_again_and_again_is_started_ever_later(autojump_clock: trio.testing.MockClock) -> None:
    owner = Owner()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.fronts.serve)
        await trio.sleep(30)
        assert owner.starts == pytest.approx([0, 0.5, 1.5, 3.5, 8.5, 18.5, 28.5])
        assert owner.standing_in == 1
        began = trio.current_time()
        await owner.fronts.drain(100)
    assert trio.current_time() == began  # nobody waits for the next start
    assert (owner.standing_in, owner.ended) == (0, owner.fronts.restarts)
    assert owner.shutdown.clean


async def test_one_that_has_lived_well_is_started_again_at_once(autojump_clock: trio.testing.MockClock) -> None:
    owner = Owner(lives_s=100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.fronts.serve)
        await trio.sleep(350)
        assert owner.starts == pytest.approx([0, 100, 200, 300])
        nursery.cancel_scope.cancel()


async def test_one_that_never_became_ready_fails_the_start(autojump_clock: trio.testing.MockClock) -> None:
    owner = Owner(ready=False)
    await owner.fronts.serve()
    assert owner.fronts.failed
    assert isinstance(owner.shutdown.failure, GatewayFault)
    assert owner.shutdown.failure.message == "process 1 ended with code 1 before it could serve"
    assert len(owner.starts) == 1


@pytest.mark.parametrize("deaf", [False, True])
async def test_draining_waits_for_all_and_kills_who_does_not_end(
    deaf: bool, autojump_clock: trio.testing.MockClock
) -> None:
    owner = Owner(3, lives_s=10_000, deaf=deaf)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.fronts.serve)
        await owner.fronts.ready.wait()
        began = trio.current_time()
        await owner.fronts.drain(20)
    assert trio.current_time() - began == pytest.approx(25 if deaf else 0)
    assert owner.ended == 3
    assert owner.shutdown.clean is not deaf
    assert owner.fronts.living == {}
