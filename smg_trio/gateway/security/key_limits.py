"""What each key holder uses: requests in flight and tokens per minute. Pure; the clock is handed in.

A request is begun if its holder has a slot for it and tokens left. What it costs is only known later: its prompt when
it has been tokenized, its answer when that has ended. So the last request that was begun may overdraw the minute's
tokens, and nothing else begins until that is paid back. What asks for more than a whole minute's tokens by itself is
refused before it is sent to an engine. A holder that has been idle for a minute has a whole minute's tokens available.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final

from smg_trio.core.errors import BudgetExceeded, RateLimited
from smg_trio.routing.token_bucket import TokenBucket

if TYPE_CHECKING:
    from smg_trio.gateway.security.key_ring import KeyHolder

_MINUTE_S: Final = 60.0


class KeySlot:
    """One request's slot among those of its key holder: given back when the last of those who hold it lets go.

    The caller of `KeyMeter.enter` or `hold` calls `close` once; that never blocks.
    """

    __slots__ = ("_held", "_meter")

    def __init__(self, meter: KeyMeter) -> None:
        self._meter = meter
        self._held = 1

    def hold(self) -> KeySlot:
        """Hold it too: until the caller has called `close`."""
        self._held += 1
        return self

    def use(self, tokens: int) -> None:
        """Take tokens off the holder's; negative: give them back."""
        self._meter.use(tokens)

    def check(self, prompt_tokens: int, answer_tokens: int = 0) -> None:
        """Raises BudgetExceeded if so many are more than the holder has in a minute."""
        self._meter.check(prompt_tokens, answer_tokens)

    def close(self) -> None:
        """Let go."""
        self._held -= 1
        if not self._held:
            self._meter.give_back()

    def __enter__(self) -> KeySlot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KeyMeter:
    """What one key holder uses.

    Attributes:
        holder: whose limits hold.
        in_flight: requests that have a slot.
    """

    __slots__ = ("_bucket", "_clock", "holder", "in_flight")

    def __init__(self, holder: KeyHolder, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._bucket: TokenBucket | None = None
        self.in_flight = 0
        self.take_over(holder)

    @property
    def in_use(self) -> bool:
        """Whether a new meter would say something else."""
        bucket = self._bucket
        return self.in_flight > 0 or (bucket is not None and bucket.level(self._clock()) < bucket.capacity)

    def take_over(self, holder: KeyHolder) -> None:
        """The holder's limits may be others now; what has been used stays used."""
        self.holder = holder
        tokens = holder.limits.tokens_per_minute
        if tokens is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(tokens / _MINUTE_S, tokens, self._clock())
        else:
            self._bucket.change(tokens / _MINUTE_S, tokens, self._clock())

    def enter(self) -> KeySlot:
        """A slot for one more request. Raises RateLimited, which names the limit that is reached."""
        limits = self.holder.limits
        if limits.concurrent_requests is not None and self.in_flight >= limits.concurrent_requests:
            raise self._refusal(
                f"concurrent requests: limit {limits.concurrent_requests}, in flight {self.in_flight}", 1
            )
        bucket = self._bucket
        if bucket is not None and bucket.level(now := self._clock()) <= 0:
            overdrawn = math.ceil(-bucket.level(now))
            what = f"tokens per minute: limit {limits.tokens_per_minute}, overdrawn by {overdrawn}"
            raise self._refusal(what, bucket.wait_s(1, now))
        self.in_flight += 1
        return KeySlot(self)

    def give_back(self) -> None:
        """A slot is free again."""
        self.in_flight -= 1

    def _refusal(self, what: str, wait_s: float) -> RateLimited:
        whose = f" for key {self.holder.name}" if self.holder.name else ""
        seconds = max(1, math.ceil(wait_s))
        return RateLimited(f"Rate limit reached{whose} on {what}. Try again in {seconds}s.", retry_after_s=wait_s)

    def use(self, tokens: int) -> None:
        """See `KeySlot.use`."""
        if self._bucket is not None:
            self._bucket.take(tokens, self._clock())

    def check(self, prompt_tokens: int, answer_tokens: int) -> None:
        """See `KeySlot.check`."""
        limit = self.holder.limits.tokens_per_minute
        if limit is None or prompt_tokens + answer_tokens <= limit:
            return
        whose = f" for key {self.holder.name}" if self.holder.name else ""
        raise BudgetExceeded(
            f"Request too large{whose} on tokens per minute: limit {limit}, requested {prompt_tokens + answer_tokens} "
            f"({prompt_tokens} of the prompt, {answer_tokens} of the answer). Lower max_tokens or n, or shorten the "
            "prompt."
        )

    def headers(self) -> list[tuple[str, str]]:
        """What is left, as OpenAI's API says it: tokens, and how long until all of them are there again."""
        bucket = self._bucket
        if bucket is None:
            return []
        now = self._clock()
        return [
            ("x-ratelimit-limit-tokens", f"{bucket.capacity:.0f}"),
            ("x-ratelimit-remaining-tokens", str(max(0, math.floor(bucket.level(now))))),
            ("x-ratelimit-reset-tokens", f"{math.ceil(bucket.wait_s(bucket.capacity, now))}s"),
        ]


_PRUNE_AT: Final = 4096
"""Meters from which those that say nothing any more are dropped: with tokens anyone may be a key holder."""


class KeyMeters:
    """A meter for every key holder who has limits."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._meters: dict[str, KeyMeter] = {}
        self._prune_at = _PRUNE_AT

    def of(self, holder: KeyHolder) -> KeyMeter:
        """The holder's meter; one who is known again after keys were read anew keeps it."""
        meter = self._meters.get(holder.identity)
        if meter is None:
            if len(self._meters) >= self._prune_at:
                self._meters = {name: one for name, one in self._meters.items() if one.in_use}
                self._prune_at = max(_PRUNE_AT, 2 * len(self._meters))
            meter = self._meters[holder.identity] = KeyMeter(holder, self._clock)
        elif meter.holder is not holder:
            meter.take_over(holder)
        return meter
