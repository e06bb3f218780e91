"""The engine requests behind one answer: leased and begun together, read as one stream, left together.

What is common to generating (`pipeline.answer`) and pooling (`pipeline.pooling`), and the interface for what
runs an answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import trio

from smg_trio.core.errors import PixelFormMissing, SmgError
from smg_trio.core.events import TokenLogprob, Usage
from smg_trio.core.outputs import FinishReason, GenerationOutput
from smg_trio.worker.output_stream import OutputStream

if TYPE_CHECKING:
    from smg_trio.core.requests import SamplingParams
    from smg_trio.pipeline.prepared_media import AnswerMedia
    from smg_trio.routing.lease import Lease
    from smg_trio.routing.registry import Registry
    from smg_trio.worker.group import AnyDelivery
    from smg_trio.worker.ledger import InFlight

_process_tag = token_hex(4)
_sequence = count()

_BEGUN_AT_ONCE = 20_000
"""Prompt tokens of the requests begun before other tasks get their turn: looking through them takes a millisecond."""
_REQUEST_TOKENS = 1_000
"""What a request costs beside its prompt, in tokens of one."""

Batch: TypeAlias = Sequence[tuple[int, GenerationOutput]]
"""Outputs of engines in order of arrival, each with the index of the request that it belongs to."""
PlainText: TypeAlias = Callable[[Batch], tuple[str, list[TokenLogprob] | None] | None]
"""Text and log probabilities (None unless asked for) of a batch; None if `EngineRequests.take` must see the batch."""


def unique_request_id(base: str) -> str:
    """An engine request id that no other request of this process has, and with luck none of an earlier gateway's."""
    return f"{base}-{_process_tag}{next(_sequence):x}"


class HeldRequest(ABC):
    """One engine request, and the lease on the worker whose engine has it."""

    __slots__ = ("entry", "lease")

    def __init__(self, lease: Lease, entry: InFlight[AnyDelivery]) -> None:
        self.lease = lease
        self.entry = entry

    @property
    @abstractmethod
    def finished(self) -> bool:
        """The engine has nothing more to say."""

    def leave(self) -> None:
        """Abort at the engine unless it has ended there; give the lease back."""
        self.lease.worker.leave(self.entry)
        self.lease.close()


class RequestCounts(NamedTuple):
    """What one engine request came to.

    Attributes:
        prompt: index of its prompt; the choices of one prompt are engine requests of their own.
        finish_reason: None if the engine has not ended it.
        queue_s: seconds in the engine's queue; None if it has not said.
    """

    prompt: int
    finish_reason: FinishReason | None
    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    queue_s: float | None = None


Held = TypeVar("Held", bound=HeldRequest)
Update = TypeVar("Update")


class EngineRequests(ABC, Generic[Held, Update]):
    """One attempt at an answer. One task reads it; the caller of `begin` owes a `close` on every path.

    It owns its requests from `begin` until `close`; closing never blocks, so it is safe in any `finally`, cancelled or
    not, and whatever the engines still do for it is aborted.

    Attributes:
        pooled: the answer is made of pooled outputs and comes in one piece, not token by token.
        model_id: the model that is asked.
        request_id: the answer's id as the client sees it; engine ids are made from it.
        prompt_tokens: of all prompts together.
        receive: waits for and returns what the engines have said since, for `take`; an empty batch only after
            `wake_reader`. Given a function, it has that take what comes in the meantime; see
            `OutputStream.receive_batch`. Raises the SmgError that ended a request; `fail_leases` is to be told of it
            then. Cancelled, it can be called again.
    """

    __slots__ = (
        "_held",
        "_media",
        "_open",
        "_outputs",
        "_refused_by",
        "model_id",
        "prompt_tokens",
        "receive",
        "request_id",
    )
    pooled: ClassVar[bool] = False
    usage_known: ClassVar[bool] = True

    def __init__(
        self, model_id: str, request_id: str, prompt_tokens: int, requests: int, media: AnswerMedia | None = None
    ) -> None:
        """Not yet begun.

        Args:
            requests: how many engine requests there will be.
            media: of all of them.
        """
        self.model_id = model_id
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self._held: list[Held] = []
        self._open = requests
        self._refused_by: str | None = None
        self._media = media
        self._outputs: OutputStream[int] = OutputStream()
        self.receive: Callable[..., Awaitable[Batch]] = self._outputs.receive_batch

    async def begin(self, registry: Registry, *, routing_key: str | None = None, avoid: Collection[str] = ()) -> None:
        """Choose workers and send every request. Other tasks get their turn while many are begun.

        Raises NoReadyWorker, WorkersOverloaded, PixelFormMissing, MediaMismatch, or the ClientFault that says what the
        engine could not take; nothing is left running then, nor when cancelled.
        """
        begun, media = 0, self._media
        try:
            if media is not None:
                await media.prepare(registry)
            forms = None if media is None else media.forms
            for index, prompt in enumerate(self._prompts()):
                if begun > _BEGUN_AT_ONCE:
                    begun = 0
                    await trio.lowlevel.checkpoint()
                lease = registry.lease(self.model_id, prompt, routing_key=routing_key, avoid=avoid, forms=forms)
                try:
                    self._held.append(self._begin_one(index, lease))
                except BaseException:
                    self._refused_by = lease.worker.spec.worker_id
                    lease.close()
                    raise
                begun += _REQUEST_TOKENS + len(prompt)
        except BaseException as error:
            if media is not None and isinstance(error, PixelFormMissing):
                media.refused(error)
            self.close()
            raise

    @abstractmethod
    def _prompts(self) -> Iterable[Sequence[int]]:
        """The prompt of each request in token ids, as policies see it."""

    @abstractmethod
    def _begin_one(self, index: int, lease: Lease) -> Held:
        """Send one request to the leased worker; its outputs are tagged with `index`."""

    @abstractmethod
    def again(self) -> EngineRequests[Held, Update]:
        """Another attempt at the same answer, not yet begun."""

    @abstractmethod
    def take(self, batch: Batch) -> list[Update]:
        """The updates that a batch of `receive` makes. Raises EngineRejected; the answer is closed then."""

    @abstractmethod
    def usage(self) -> Usage:
        """Counts so far."""

    def plain_text(self) -> PlainText | None:
        """A shorter way than `take` for batches that add nothing but text; None where there is none."""
        return None

    async def next_updates(self) -> list[Update]:
        """Wait for and return what the engines have said by now.

        Not to be called once `finished`. Raises the SmgError that ends the answer; it is closed then. Cancelled, it
        can be called again.
        """
        try:
            batch = await self.receive()
        except SmgError as error:
            self.fail_leases(error)
            raise
        return self.take(batch)

    @property
    def finished(self) -> bool:
        """Every request has ended."""
        return not self._open

    @property
    def pending_outputs(self) -> int:
        """Outputs of the engines that have not been read."""
        return self._outputs.pending

    @property
    def sampling(self) -> SamplingParams | None:
        """How tokens are sampled, if any are."""
        return None

    def keep_text(self) -> None:
        """Remember the text of each choice; called before anything is begun. Nothing where there is no text."""
        return

    @property
    def kept_text(self) -> Sequence[str]:
        """What `keep_text` had remembered: the content of each choice so far."""
        return ()

    @property
    def choices(self) -> int:
        """How many texts are asked for."""
        return 0

    @property
    def asked_tokens(self) -> int:
        """The most tokens that may be generated, as far as the request says so."""
        return 0

    @property
    def worker_ids(self) -> set[str]:
        """The workers that answer, or that refused to."""
        answering = {held.lease.worker.spec.worker_id for held in self._held}
        return answering if self._refused_by is None else answering | {self._refused_by}

    @property
    def engines(self) -> set[tuple[str, int]]:
        """The engines that answer: URL of the worker, rank."""
        return {(held.lease.worker.spec.url, held.entry.rank) for held in self._held}

    @property
    def worker_urls(self) -> set[str]:
        """URLs of the workers that answer."""
        return {held.lease.worker.spec.url for held in self._held}

    @property
    def adapter(self) -> str:
        """Name of the LoRA adapter that the answer is made with; "" for none."""
        return ""

    def request_counts(self) -> list[RequestCounts]:
        """What each request that was sent has come to."""
        return []

    @property
    def finish_reasons(self) -> list[str]:
        """How the choices ended, of those that have."""
        return []

    def release(self) -> None:
        """Forget what only another attempt would need; idempotent."""
        if self._media is not None:
            self._media.release()

    def wake_reader(self) -> None:
        """Have `receive` return, if with nothing new."""
        self._outputs.wake()

    def fail(self, error: SmgError) -> None:
        """End the answer with `error`, which is raised to its reader after what came before it."""
        self._outputs.fail(error)

    def fail_leases(self, error: SmgError) -> None:
        """Tell the workers that the answer failed with `error`, and close."""
        for held in self._held:
            if not held.finished:
                held.lease.failed(error)
        self.close()

    def close(self) -> None:
        """Leave every request and give the workers back; idempotent, never blocks."""
        for held in self._held:
            held.leave()


AnyAnswer: TypeAlias = EngineRequests[Any, Any]
