"""Hooks of plug-ins: each request is shown to them when its body has been read, each answer when it has ended.

Requests wait for their hooks, one after the other; nobody waits for those of an answer, which are called in tasks of
their own. What is still to be told when the gateway ends is told then, for a few seconds.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import trio

from smg_trio.core.errors import GatewayFault, SmgError
from smg_trio.core.plugin_calls import PluginMistake
from smg_trio.gateway.observability.observer import Generation, RequestObserver
from smg_trio.gateway.plugin_calls import PluginFailed, call_plugin
from smg_trio.plugins.hooks import AnswerView, Changes, Refuse, RequestView

if TYPE_CHECKING:
    from smg_trio.core.events import Usage
    from smg_trio.gateway.plugin_set import HookPlugin, PluginSet
    from smg_trio.settings.settings import Settings

logger = logging.getLogger("smg_trio.gateway")

LIMIT_S: Final = 1.0
"""How long one call may take."""
_MOST_WAITING: Final = 10_000
_AT_ONCE: Final = 64
_END_LIMIT_S: Final = 5.0
_SECRET: Final = frozenset({"authorization", "proxy-authorization", "x-api-key", "cookie"})


class HookUnavailable(GatewayFault):
    """A hook failed, and requests are not to be served without it (`--hook-fault closed`)."""

    code = "hook_unavailable"


class RefusedByHook(SmgError):
    """A hook does not want the request served."""

    def __init__(self, refusal: Refuse) -> None:
        super().__init__(refusal.message)
        self.status = refusal.status  # type: ignore[misc]  # of a class elsewhere, of each refusal here
        self.code = refusal.code  # type: ignore[misc]


class Hooks:
    """Those of one gateway.

    Args:
        plugins: in the order in which they are called.
        closed: a request whose hook fails is refused.
        text: they are shown the text of answers.
    """

    def __init__(self, plugins: list[HookPlugin], *, closed: bool, text: bool) -> None:
        self._of_requests = [(one, one.on_request) for one in plugins if one.on_request is not None]
        self._of_answers = [(one, one.on_answer) for one in plugins if one.on_answer is not None]
        self._closed = closed
        self._text = text
        self._send, self._receive = trio.open_memory_channel[AnswerView](_MOST_WAITING)
        self._ended = trio.Event()

    async def changed(
        self, body: Mapping[str, Any], *, request_id: str, path: str, headers: Mapping[str, str], identity: str
    ) -> tuple[Mapping[str, Any], str | None]:
        """The body as the hooks want it (the same object if they do not care), and the routing key that they name.

        Raises RefusedByHook, HookUnavailable.
        """
        shown = {name: value for name, value in headers.items() if name not in _SECRET}
        routing_key = None
        for plugin, on_request in self._of_requests:
            model = body.get("model")
            view = RequestView(
                request_id=request_id,
                path=path,
                model=model if isinstance(model, str) else "",
                body=body,
                headers=shown,
                identity=identity,
                options=plugin.options,
            )
            try:
                changes = checked_answer(await call_plugin(plugin.calls, LIMIT_S, on_request, view))
            except (PluginFailed, PluginMistake) as failure:
                self._fault(plugin, failure)
                continue
            if isinstance(changes, Refuse):
                raise RefusedByHook(changes)
            if changes is not None:
                body = _with(body, changes)
                routing_key = routing_key if changes.routing_key is None else changes.routing_key
        return body, routing_key

    def _fault(self, plugin: HookPlugin, failure: PluginFailed | PluginMistake) -> None:
        error = failure.error if isinstance(failure, PluginFailed) else failure
        plugin.calls.fault(error, "the request is answered 503" if self._closed else "the request goes on without it")
        if self._closed:
            raise HookUnavailable("A check of this request could not be made at present. Try again.")

    @property
    def follows_answers(self) -> bool:
        """Whether any of them wants to know of answers."""
        return bool(self._of_answers)

    def observer(self, request_id: str, identity: str) -> HookObserver:
        """What has the hooks told of a generation."""
        return HookObserver(self, request_id, identity, text=self._text)

    def tell(self, answer: AnswerView) -> None:
        """An answer has ended; the hooks hear of it soon. Never waits."""
        try:
            self._send.send_nowait(answer)
        except trio.WouldBlock:
            for plugin, _ in self._of_answers:
                plugin.calls.fault(TimeoutError(f"{_MOST_WAITING} answers wait for it"), "it is not told of this one")
        except trio.ClosedResourceError:
            logger.warning("an answer ended after the hooks did: they are not told of it")

    async def run(self) -> None:
        """Tell of answers until `finish`; then what is left."""
        free = trio.Semaphore(_AT_ONCE)
        async with trio.open_nursery() as nursery:
            async for answer in self._receive:
                await free.acquire()
                nursery.start_soon(self._tell_all, answer, free)
        self._ended.set()

    async def _tell_all(self, answer: AnswerView, free: trio.Semaphore) -> None:
        try:
            for plugin, on_answer in self._of_answers:
                try:
                    view = replace(answer, options=plugin.options)
                    await call_plugin(plugin.calls, LIMIT_S, on_answer, view)
                except PluginFailed as failure:
                    plugin.calls.fault(failure.error, "it has not taken note of an answer")
        finally:
            free.release()

    async def finish(self) -> None:
        """No answer is going to end any more: wait until the hooks know of all, for some seconds at most."""
        self._send.close()
        with trio.move_on_after(_END_LIMIT_S) as scope:
            await self._ended.wait()
        if scope.cancelled_caught:
            logger.warning("hooks have not taken note of all answers within %g s", _END_LIMIT_S)


def hooks_of(settings: Settings, plugins: PluginSet) -> Hooks | None:
    """The hooks that the settings name; None if they name none."""
    if not plugins.hooks:
        return None
    return Hooks(plugins.hooks, closed=settings.hook_fault == "closed", text=settings.hook_text)


def _with(body: Mapping[str, Any], changes: Changes) -> Mapping[str, Any]:
    changed = {name: value for name, value in body.items() if name not in changes.remove}
    changed |= changes.body
    if changes.model is not None:
        changed["model"] = changes.model
    return body if changed == body else changed


def checked_answer(answer: Any) -> Refuse | Changes | None:
    """What `on_request` returned. Raises PluginMistake."""
    if answer is None:
        return None
    if isinstance(answer, Refuse):
        fits = type(answer.status) is int and 400 <= answer.status <= 599
        if not fits or not _is_word(answer.code) or not isinstance(answer.message, str):
            raise PluginMistake("a Refuse must have a status from 400 to 599, a code of one word, and a message")
        return answer
    if not isinstance(answer, Changes):
        raise PluginMistake(f"on_request returned {type(answer).__name__}, not a Refuse, Changes or None")
    texts = (answer.model, answer.routing_key)
    if not all(text is None or (isinstance(text, str) and text.strip()) for text in texts):
        raise PluginMistake("a Changes' model and routing_key must be texts or None")
    try:
        json.dumps(dict(answer.body), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise PluginMistake(f"a Changes' body cannot be written as JSON: {error}") from None
    return answer


def _is_word(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.replace("_", "").replace("-", "").isalnum()


class HookObserver(RequestObserver):
    """Follows one generation, and has the hooks told of it when it has ended."""

    __slots__ = ("_error", "_first_output_at", "_hooks", "_identity", "_request_id", "_started", "_text")

    def __init__(self, hooks: Hooks, request_id: str, identity: str, *, text: bool) -> None:
        self._hooks = hooks
        self._request_id = request_id
        self._identity = identity
        self._text = text
        self._started = trio.current_time()
        self._first_output_at: float | None = None
        self._error = ""

    def generation_begins(self, generation: Generation) -> None:
        """See `RequestObserver`."""
        if self._text:
            generation.answer.keep_text()

    def first_output(self, now: float) -> None:
        """See `RequestObserver`."""
        self._first_output_at = now

    def generation_failed(self, generation: Generation, error: SmgError) -> None:
        """See `RequestObserver`."""
        self._error = error.code

    def generation_ended(self, generation: Generation, usage: Usage, worker_urls: Collection[str], now: float) -> None:
        """See `RequestObserver`."""
        answer, first, duration_s = generation.answer, self._first_output_at, now - self._started
        status = "failed" if self._error else "ok" if answer.finished else "left"
        self._hooks.tell(
            AnswerView(
                request_id=self._request_id,
                endpoint=generation.endpoint,
                model=answer.model_id,
                identity=self._identity,
                status=status,
                error=self._error,
                streaming=generation.streaming,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                reasoning_tokens=usage.reasoning_tokens,
                started=time.time() - duration_s,
                first_output_s=None if first is None else first - self._started,
                duration_s=duration_s,
                workers=tuple(sorted(worker_urls)),
                text=answer.kept_text,
            )
        )
