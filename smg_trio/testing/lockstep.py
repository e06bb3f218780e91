"""Lockstep of a data-parallel group as vLLM's MoE ranks keep it, without IO. Pure.

Every step is a collective: a rank that has work of its own, or was woken for a wave, enters it and is stuck
there (deaf to its input) until all ranks have entered. At step 1 and each ``sync_interval`` steps the ranks ask
each other for unfinished work; if there is none, all pause, each reports ``wave_complete`` with its own wave
number and counts it up by one. A wake-up with a wave below the rank's own is dropped, any other is taken over.
Read in vLLM 0.32.0 (``DPEngineCoreProc``) and seen on a running group of two.
"""

from __future__ import annotations

from collections.abc import Callable


class LockstepRank:
    """One rank's part of the group state; made by `LockstepGroup.join`.

    Attributes:
        wave: the rank's current wave.
        running: woken, and not paused since.
        unfinished: has requests of its own.
        completed: wave numbers to report as complete, oldest first; the engine takes them out.
    """

    __slots__ = ("_group", "completed", "notify", "running", "steps", "unfinished", "wave")

    def __init__(self, group: LockstepGroup) -> None:
        self._group = group
        self.wave = 0
        self.running = False
        self.unfinished = False
        self.steps = 0
        self.completed: list[int] = []
        self.notify: Callable[[], None] = lambda: None

    @property
    def participates(self) -> bool:
        """Whether the rank has entered the collective or will immediately."""
        return self.running or self.unfinished

    @property
    def stuck(self) -> bool:
        """In the collective, waiting for other ranks."""
        return self.participates and not self._group.complete

    def start_wave(self, wave: int) -> bool:
        """Take a wake-up; False if it was stale."""
        if wave < self.wave:
            return False
        self.wave = wave
        self.running = True
        self._group.settle()
        return True

    def set_unfinished(self, unfinished: bool) -> None:
        """Say whether the rank has requests of its own."""
        if unfinished != self.unfinished:
            self.unfinished = unfinished
            self._group.settle()

    def finish_step(self) -> None:
        """Count a step; pauses the group where the ranks ask each other and none has work."""
        self.running = True
        self.steps += 1
        if self.steps == 1 or self.steps % self._group.sync_interval == 0:
            self._group.pause_if_idle()


class LockstepGroup:
    """The ranks behind one worker. The group is complete when all ``size`` ranks take part."""

    def __init__(self, size: int, *, sync_interval: int = 16) -> None:
        self.size = size
        self.sync_interval = sync_interval
        self._ranks: dict[int, LockstepRank] = {}

    @property
    def complete(self) -> bool:
        """Whether every rank has entered the collective, so that steps can be made."""
        ranks = self._ranks.values()
        return len(ranks) == self.size and all(rank.participates for rank in ranks)

    def join(self, rank: int) -> LockstepRank:
        """Add a rank, in place of an earlier one with the same number."""
        member = self._ranks[rank] = LockstepRank(self)
        return member

    def leave(self, rank: int) -> None:
        """Take a dead rank out: the others are stuck from now on."""
        self._ranks.pop(rank, None)

    def settle(self) -> None:
        """Tell every rank when the group has become complete."""
        if self.complete:
            self._notify()

    def pause_if_idle(self) -> None:
        """End the wave of every rank if no rank has unfinished work."""
        if any(rank.unfinished for rank in self._ranks.values()):
            return
        for rank in self._ranks.values():
            rank.completed.append(rank.wave)
            rank.wave += 1
            rank.running = False
            rank.steps = 0
        self._notify()

    def _notify(self) -> None:
        for rank in self._ranks.values():
            rank.notify()
