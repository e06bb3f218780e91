"""What each handshake message means in each phase of each rank, pure.

A rank goes WAITING --HELLO--> LOADING --READY and registration, in either order--> READY. vLLM registers (on the
input socket) and says READY (on the handshake socket) when the model is loaded, and the two arrive in any order;
TokenSpeed says HELLO only after loading and READY immediately (spec: wire-vllm 2, wire-tokenspeed 2). A HELLO while
LOADING is an engine that died and came back; a HELLO once the rank has registered is either that too or a stranger,
which only the shell can tell (is the connected peer still there?).

Nothing that dials in can disturb a connected engine: an unexpected message is refused with words for the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smg_trio.core.workers import RankPhase

if TYPE_CHECKING:
    from smg_trio.core.engines import EngineInfo


@dataclass(frozen=True, slots=True)
class SendInit:
    """Answer this rank's HELLO."""

    rank: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class RankReady:
    """The rank has registered and said READY."""

    rank: int
    info: EngineInfo


@dataclass(frozen=True, slots=True)
class HelloFromConnected:
    """A HELLO for a rank that has registered: restarted engine or stranger."""

    rank: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The message is ignored; ``reason`` goes into the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Half of what makes the rank READY has come."""

    rank: int
    seen: str


Step = SendInit | RankReady | HelloFromConnected | Refused | Progress


class _Rank:
    __slots__ = ("info", "phase", "ready_seen", "reason")

    def __init__(self) -> None:
        self.phase = RankPhase.WAITING
        self.info: EngineInfo | None = None
        self.ready_seen = False
        self.reason = "waiting for HELLO"


class GroupHandshake:
    """The phases of all ranks of one worker.

    Args:
        engine_count: number of ranks, >= 1.
        lockstep_capable: whether data_parallel_size > 1 in a registration means lockstep (vLLM: yes, dense ranks
            register 1; TokenSpeed: no, it registers the true count and has no waves).

    Attributes:
        ever_complete: every rank has been READY at the same time.
        smallest_window: the smallest context window among registered engines, in tokens; None while there is none.
    """

    def __init__(self, engine_count: int, *, lockstep_capable: bool = True) -> None:
        self._lockstep_capable = lockstep_capable
        self._ranks = [_Rank() for _ in range(engine_count)]
        self._ready: list[int] = []
        self._lockstep = False
        self.smallest_window: int | None = None
        self.ever_complete = False

    def hello(self, rank: int) -> Step:
        """A HELLO has come from `rank`."""
        if not 0 <= rank < len(self._ranks):
            return Refused(f"HELLO from unexpected engine id {rank}: this worker has {len(self._ranks)} engine(s)")
        state = self._ranks[rank]
        if state.phase is RankPhase.READY:
            return HelloFromConnected(rank)
        if state.phase is RankPhase.LOADING and state.info is not None:
            # Its registration came through our own directory; a HELLO comes from anywhere.
            return HelloFromConnected(rank)
        again = state.phase is RankPhase.LOADING
        self._reset(rank, RankPhase.LOADING, "loading the model")
        return SendInit(rank, again)

    def ready(self, rank: int) -> Step:
        """A READY has come from `rank`."""
        if not 0 <= rank < len(self._ranks) or self._ranks[rank].phase is not RankPhase.LOADING:
            return Refused(f"READY for unexpected or duplicate engine id {rank}")
        self._ranks[rank].ready_seen = True
        return self._advance(rank, "READY")

    def registered(self, rank: int, info: EngineInfo) -> Step:
        """A registration has come from `rank` on the input socket."""
        if not 0 <= rank < len(self._ranks) or self._ranks[rank].phase is not RankPhase.LOADING:
            return Refused(f"input registration for unexpected engine id {rank}")
        self._ranks[rank].info = info
        self._note_ranks()
        return self._advance(rank, "registration")

    def _advance(self, rank: int, seen: str) -> Step:
        state = self._ranks[rank]
        if state.info is None or not state.ready_seen:
            state.reason = f"{seen} seen, waiting for {'registration' if state.ready_seen else 'READY'}"
            return Progress(rank, seen)
        state.phase = RankPhase.READY
        state.reason = ""
        self._note_ranks()
        return RankReady(rank, state.info)

    def lost(self, rank: int, reason: str) -> None:
        """The rank's engine is gone; its next HELLO starts anew."""
        self._reset(rank, RankPhase.WAITING, reason)

    def taken_back(self, rank: int, info: EngineInfo) -> None:
        """An engine that needs no handshake: it was given up for silence and speaks, or a gateway before had it."""
        state = self._ranks[rank]
        state.phase, state.info, state.ready_seen, state.reason = RankPhase.READY, info, True, ""
        self._note_ranks()

    def _note_ranks(self) -> None:
        """After any change of a rank: what every request asks for."""
        self._ready = [rank for rank, state in enumerate(self._ranks) if state.phase is RankPhase.READY]
        if len(self._ready) == len(self._ranks):
            self.ever_complete = True
        infos = [state.info for state in self._ranks if state.info is not None]
        self.smallest_window = min((info.max_model_len for info in infos), default=None)
        self._lockstep = self._lockstep_capable and any(info.data_parallel_size > 1 for info in infos)

    def _reset(self, rank: int, phase: RankPhase, reason: str) -> None:
        state = self._ranks[rank]
        state.phase, state.info, state.ready_seen, state.reason = phase, None, False, reason
        self._note_ranks()

    def phase(self, rank: int) -> RankPhase:
        """Where `rank` stands."""
        return self._ranks[rank].phase

    def info(self, rank: int) -> EngineInfo | None:
        """What `rank` registered with; None before that."""
        return self._ranks[rank].info

    def reason(self, rank: int) -> str:
        """Why `rank` is not READY, in words; empty if it is."""
        return self._ranks[rank].reason

    def ready_ranks(self) -> list[int]:
        """Ascending ranks that are READY; not to be changed."""
        return self._ready

    @property
    def lockstep(self) -> bool:
        """Whether the engines step together: a vLLM rank that registers data_parallel_size > 1 says so."""
        return self._lockstep

    @property
    def serving_ranks(self) -> list[int]:
        """Ranks that may be given requests.

        A group starts when all its engines are there. After that, dense ranks are independent and the living ones
        go on; a lockstep group serves only when complete.
        """
        ready = self._ready
        if len(ready) == len(self._ranks) or (self.ever_complete and not self._lockstep):
            return ready
        return []

    def summary(self) -> str:
        """A summary in one line: which ranks are connected, and what the others wait for."""
        waiting = [f"rank {rank}: {state.reason}" for rank, state in enumerate(self._ranks) if state.reason]
        ready = self.ready_ranks()
        if not waiting:
            return ""
        if len(self._ranks) == 1:
            return self._ranks[0].reason
        return f"{len(ready)} of {len(self._ranks)} ranks ready ({'; '.join(waiting)})"
