"""What hears of a request on its way: metrics, access line, trace, recent errors, the meter of its key.

```
(begun) ─ authenticated ─┬─ generation_begins ─ sent ─┬─ first_output ─ generation_ended ─┬─ answered ─ ended
                         │                   retried ─┘     or generation_failed before it │  or client_left
                         └────────────────────────────────────────────────────────────────┘
```
The code that handles a request or runs a generation calls one observer, `Observers`, which calls all that are turned
on: for each stage of a request, never for a token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from smg_trio.core.errors import SmgError
    from smg_trio.core.events import Usage
    from smg_trio.core.requests import SamplingParams
    from smg_trio.pipeline.engine_requests import RequestCounts

Phase = Literal["queued", "waiting", "generating"]
"""Before admission; before the first output; since then."""
CLIENT_LEFT: Final = 499
"""Status of a request whose client left before there was a response."""
CLIENT_LEFT_CODE: Final = "client_closed_request"
"""Its error code, as the reference has it."""


class ObservedAnswer(Protocol):
    """What observers ask of an answer (`pipeline.engine_requests.EngineRequests` and `relay.answer.RelayedAnswer`)."""

    @property
    def pooled(self) -> bool:
        """It comes in one piece, not token by token."""
        ...

    @property
    def model_id(self) -> str:
        """The model that is asked."""
        ...

    @property
    def request_id(self) -> str:
        """The answer's id."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts together, as far as they are known before it is sent."""
        ...

    @property
    def asked_tokens(self) -> int:
        """The most tokens that may be generated, as far as the request says so."""
        ...

    @property
    def sampling(self) -> SamplingParams | None:
        """How tokens are sampled, where the gateway decides that."""
        ...

    @property
    def choices(self) -> int:
        """How many texts are asked for."""
        ...

    @property
    def finish_reasons(self) -> list[str]:
        """How the choices ended, of those that have."""
        ...

    @property
    def finished(self) -> bool:
        """It has come to its end."""
        ...

    def keep_text(self) -> None:
        """Remember the text of each choice, where the gateway reads it; called before anything is sent."""
        ...

    @property
    def kept_text(self) -> Sequence[str]:
        """What `keep_text` had remembered: the content of each choice so far."""
        ...

    @property
    def pending_outputs(self) -> int:
        """Outputs that have not been read."""
        ...

    @property
    def worker_urls(self) -> set[str]:
        """URLs of the workers that answer."""
        ...

    @property
    def engines(self) -> set[tuple[str, int]]:
        """The engines that answer: URL of the worker, rank (0 for a worker behind HTTP)."""
        ...

    @property
    def adapter(self) -> str:
        """Name of the LoRA adapter that the answer is made with, as far as the gateway knows; "" for none."""
        ...

    def request_counts(self) -> list[RequestCounts]:
        """What each engine request that was sent has come to; empty where a worker behind HTTP answers."""
        ...

    @property
    def usage_known(self) -> bool:
        """Whether `usage` counts anything: a relayed response need not say how many tokens it has."""
        ...

    def usage(self) -> Usage:
        """Counts so far."""
        ...


class Generation(Protocol):
    """An answer from its beginning to its end."""

    @property
    def request_id(self) -> str:
        """That of the HTTP request, or of the turn of a WebSocket."""
        ...

    @property
    def endpoint(self) -> str:
        """Which API was asked, in a word."""
        ...

    @property
    def streaming(self) -> bool:
        """Whether the client gets the answer piece by piece."""
        ...

    @property
    def answer(self) -> ObservedAnswer:
        """The present attempt: its id, model, workers and token counts."""
        ...

    @property
    def phase(self) -> Phase:
        """How far it has come."""
        ...


class RequestObserver:
    """Does nothing of what it hears; an observer overrides what concerns it. Times are seconds of the loop's clock.

    No method may raise or wait.
    """

    __slots__ = ()

    def authenticated(self, key_name: str) -> None:
        """Whose key the request came with, also if it does not allow the request. Not heard where no keys are set."""

    def generation_begins(self, generation: Generation) -> None:
        """The prompt is ready: engines will be asked once the request is admitted."""

    def sent(self, waited_from: float, now: float) -> None:
        """Engines have it, at the first attempt or a later one; it waited for that since `waited_from`."""

    def first_output(self, now: float) -> None:
        """The first output came from an engine: there will be no more retries."""

    def retried(self, attempt: int, error: SmgError, delay_s: float) -> None:
        """The `attempt`-th attempt failed with `error`; the next one begins in `delay_s` seconds."""

    def generation_failed(self, generation: Generation, error: SmgError) -> None:
        """The generation ends with an error, whatever status the response has."""

    def generation_ended(self, generation: Generation, usage: Usage, worker_urls: Collection[str], now: float) -> None:
        """It is over, complete or not; `worker_urls` are of the workers that answered. Heard once, and last of it."""

    def answered(self, status: int, code: str) -> None:
        """There is a response, of which nothing has been sent; `code` is its error code, empty if it is none."""

    def ended(self, complete: bool) -> None:
        """The response is over; `complete` is False if the client left before it had all of it."""

    def client_left(self) -> None:
        """The client left before there was a response. Nothing more is heard of the request."""


class Observers(RequestObserver):
    """Tells each of its members, in order.

    Attributes:
        members: only those that are turned on, so that the others cost nothing.
    """

    __slots__ = ("members",)

    def __init__(self, members: Sequence[RequestObserver] = ()) -> None:
        self.members = tuple(members)

    def add(self, member: RequestObserver) -> None:
        """Have another one hear of what happens from now on."""
        self.members += (member,)

    def authenticated(self, key_name: str) -> None:
        """See `RequestObserver`."""
        for member in self.members:
            member.authenticated(key_name)

    def generation_begins(self, generation: Generation) -> None:
        """See `RequestObserver`."""
        for member in self.members:
            member.generation_begins(generation)

    def sent(self, waited_from: float, now: float) -> None:
        """See `RequestObserver`."""
        for member in self.members:
            member.sent(waited_from, now)

    def first_output(self, now: float) -> None:
        """See `RequestObserver`."""
        for member in self.members:
            member.first_output(now)

    def retried(self, attempt: int, error: SmgError, delay_s: float) -> None:
        """See `RequestObserver`."""
        for member in self.members:
            member.retried(attempt, error, delay_s)

    def generation_failed(self, generation: Generation, error: SmgError) -> None:
        """See `RequestObserver`."""
        for member in self.members:
            member.generation_failed(generation, error)

    def generation_ended(self, generation: Generation, usage: Usage, worker_urls: Collection[str], now: float) -> None:
        """See `RequestObserver`."""
        for member in self.members:
            member.generation_ended(generation, usage, worker_urls, now)

    def answered(self, status: int, code: str) -> None:
        """See `RequestObserver`."""
        for member in self.members:
            member.answered(status, code)

    def ended(self, complete: bool) -> None:
        """See `RequestObserver`."""
        for member in self.members:
            member.ended(complete)

    def client_left(self) -> None:
        """See `RequestObserver`."""
        for member in self.members:
            member.client_left()
