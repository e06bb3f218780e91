"""What goes with a request through every layer beside its HTTP: who it is for, and who hears of what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smg_trio.gateway.observability.observer import Generation, ObservedAnswer, Observers, RequestObserver
from smg_trio.gateway.security.key_ring import EVERYBODY, KeyHolder

if TYPE_CHECKING:
    from smg_trio.core.events import Usage
    from smg_trio.gateway.observability.tracing import RequestTrace
    from smg_trio.gateway.security.key_limits import KeySlot


class KeyUse(RequestObserver):
    """Keeps a key's slot for each generation to its end, and takes the tokens off the key holder's."""

    __slots__ = ("_slot",)

    def __init__(self, slot: KeySlot) -> None:
        self._slot = slot

    def generation_begins(self, generation: Generation) -> None:
        """See `RequestObserver`."""
        self._slot.hold().use(generation.answer.prompt_tokens)

    def generation_ended(self, generation: Generation, usage: Usage, worker_urls: Collection[str], now: float) -> None:
        """See `RequestObserver`."""
        # A prompt that no engine was handed costs nothing; one that a worker behind HTTP has counted costs now.
        charged = generation.answer.prompt_tokens
        late = 0 if charged else usage.prompt_tokens
        self._slot.use(-charged if generation.phase == "queued" else usage.completion_tokens + late)
        self._slot.close()


@dataclass(slots=True)
class RequestContext:
    """Belongs to one HTTP request, to one turn of a WebSocket, or to one response in the background.

    Attributes:
        request_id: the client's (from its headers) or a new one, as for each turn of a WebSocket; echoed, never an
            engine's key.
        named_by_client: whether `request_id` is the client's.
        holder: whose key it came with.
        key_name: the holder's name; also of a key that does not allow the request.
        slot: its slot among those of its key holder; None where the key has no limits. Code that goes on with it after
            the response holds the slot itself.
        trace: what an engine's spans are put below; None where requests are not traced.
        on_generation: called when a generation begins; what else is to be done with the request is over then.
        observer: is told of everything; the trace and the use of the slot are among its members.
    """

    request_id: str = ""
    named_by_client: bool = False
    holder: KeyHolder = EVERYBODY
    key_name: str = ""
    slot: KeySlot | None = None
    trace: RequestTrace | None = None
    on_generation: Callable[[], None] | None = None
    observer: Observers = field(default_factory=Observers)
    _followers: tuple[Callable[[], RequestObserver], ...] = ()

    def authenticated(self, key_name: str) -> None:
        """The name of the key is known."""
        self.key_name = key_name
        self.observer.authenticated(key_name)

    def follow(self, make: Callable[[], RequestObserver]) -> None:
        """Have what `make` makes hear of the request, and another one of what goes on in the background."""
        self._followers += (make,)
        self.observer.add(make())

    def take(self, slot: KeySlot) -> None:
        """The request counts towards its key's limits."""
        self.slot = slot
        self.observer.add(KeyUse(slot))

    def check_budget(self, answer: ObservedAnswer) -> None:
        """Raises BudgetExceeded if the answer may cost more tokens than the key's holder has in a minute."""
        if self.slot is not None:
            self.slot.check(answer.prompt_tokens, answer.asked_tokens)

    @contextmanager
    def in_background(self, name: str) -> Iterator[RequestContext]:
        """The context of work that outlives the response, whose access line is written and whose HTTP is measured.

        Where requests are traced, the work is a span called `name`.
        """
        trace = None if self.trace is None else self.trace.continued(name)
        context = RequestContext(self.request_id, holder=self.holder, key_name=self.key_name, trace=trace)
        if trace is not None:
            context.observer.add(trace)
        if self.slot is not None:
            context.take(self.slot)
        for make in self._followers:
            context.follow(make)
        try:
            yield context
        finally:
            context.observer.ended(complete=True)
