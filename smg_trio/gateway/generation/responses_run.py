"""One response of the Responses API, from its request and history to the store, however it is delivered."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from smg_trio.api.openai.raw_messages import RawMessages
from smg_trio.api.openai.responses.items import resolve_references
from smg_trio.api.openai.responses.mcp_items import ApprovedCall, approved_calls
from smg_trio.api.openai.responses.object import ResponseAnswer, ResponseEnd, response_value
from smg_trio.api.openai.responses.stored import PreviousResponseNotFound, conversation_not_found, history_of
from smg_trio.core.conversations import SHARED, Item, StoredResponse
from smg_trio.core.errors import SmgError, UnsupportedFeature
from smg_trio.gateway.generation.session import GenerationSession, fold_answer
from smg_trio.gateway.generation.tool_loop import Send, Sink, ToolLoop, send_nothing
from smg_trio.history.base import HistoryStore, HistoryUnavailable
from smg_trio.pipeline.answer import Answer
from smg_trio.pipeline.prepare import NO_HINTS, EngineHints, PreparedRequest

if TYPE_CHECKING:
    from smg_trio.api.openai.responses.fold import ResponseFold
    from smg_trio.api.openai.responses.request import ResponsesRequest
    from smg_trio.api.openai.responses.tools import OfferedTools
    from smg_trio.core.events import ChoiceUpdate, Usage
    from smg_trio.gateway.request_context import RequestContext
    from smg_trio.gateway.state import Gateway

logger = logging.getLogger("smg_trio.gateway")

Result = TypeVar("Result")

OPENAI_MODELS = "gpt-"
"""How the names of OpenAI's models begin: Codex asks for one of them unless told otherwise, and for others in further
threads, whatever server it talks to. Where a single model is served, that is what they mean."""
_WITH_OUTPUT = ("completed", "incomplete")
"""States in which a response is added to its conversation."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


def needs_history(gateway: Gateway) -> HistoryStore:
    """The store. Raises UnsupportedFeature where nothing is kept."""
    if gateway.history is None:
        raise UnsupportedFeature("This server keeps no history (--history-backend none).")
    return gateway.history


class ResponsesRun:
    """See `prepare`.

    Attributes:
        shown: what is known of the response before its first token.
        own_items: what this request brought, references resolved.
        servers, approved, max_calls, max_tokens, started: see `Rounds`; without servers there is one round.
    """

    def __init__(
        self,
        gateway: Gateway,
        context: RequestContext,
        asked: ResponsesRequest,
        prepared: PreparedRequest | None,
        own_items: Sequence[Item],
        shown: ResponseAnswer,
        history: Sequence[Item] = (),
        hints: EngineHints = NO_HINTS,
    ) -> None:
        self._gateway = gateway
        self._context = context
        self._asked = asked
        self._prepared = prepared
        self._session: GenerationSession[ChoiceUpdate] | None = None
        self._history = history
        self._hints = hints
        self.servers = asked.tools.servers if asked.generate else ()
        self.approved: Sequence[ApprovedCall] = ()
        self.max_calls = min(gateway.settings.mcp_max_tool_calls, asked.max_tool_calls or sys.maxsize)
        self.max_tokens = asked.base.sampling.max_tokens
        self.started = trio.current_time()
        self._routing_key: str | None = None
        self._owner = SHARED
        self.response_id = shown.response_id
        self.own_items = list(own_items)
        self.shown = shown
        if gateway.history is None:
            self.shown = self.shown.not_stored()

    @classmethod
    async def prepare(
        cls,
        gateway: Gateway,
        asked: ResponsesRequest,
        response_id: str,
        *,
        context: RequestContext,
        started: float,
        local: dict[str, StoredResponse] | None = None,
        routing_key: str | None = None,
        hints: EngineHints = NO_HINTS,
    ) -> ResponsesRun:
        """Gather what the request goes on from, and prepare the whole conversation, if anything is to be generated.

        Args:
            context: of the request; what its key holder owns may be gone on from, and so will this response.
            local: responses known to this connection only (WebSocket mode, ``store: false``).

        Raises ClientFault, NoReadyWorker, HistoryUnavailable.
        """
        if asked.store_required and gateway.history is not None:
            gateway.history.ensure_writable()
        owner = gateway.keys.owner(context.holder)
        history = await _history(gateway, asked, owner, local or {})
        own = resolve_references(asked.input, await _known_items(gateway, asked, owner, history))
        chat, tools = asked.chat(history, own), asked.offered(history, own)
        gateway.notes.once(
            f"Responses tools of type {kind} cannot run on this server and are not offered to models"
            for kind in sorted(tools.left_out)
        )
        approved = _check_servers(gateway, asked, history, own)
        model = gateway.catalog.find(chat.model, stands_in_for=OPENAI_MODELS)
        prepared = None
        if asked.generate and not asked.tools.servers:
            prepared = await gateway.preparer.chat(
                chat, model, request_id=response_id, max_model_len=gateway.context_window(model), hints=hints
            )
        shown = _shown(asked, response_id, model.model_id, prepared, tools)
        run = cls(gateway, context, asked, prepared, own, shown, history, hints)
        run.started, run._routing_key, run._owner, run.approved = started, routing_key, owner, approved
        return run

    @property
    def owner(self) -> str:
        """Identity of the key holder whose response it is."""
        return self._owner

    @property
    def items(self) -> list[Item]:
        """The conversation before the output."""
        return [*self._history, *self.own_items]

    async def next_round(
        self, output: Sequence[Item], listed: OfferedTools, *, called: bool, max_tokens: int | None
    ) -> ResponseAnswer:
        """See `Rounds`."""
        gateway, asked = self._gateway, self._asked
        own = [*self.own_items, *output]
        chat = asked.chat(self._history, own, listed=listed, called=called)
        if max_tokens is not None:
            chat = replace(chat, sampling=replace(chat.sampling, max_tokens=max_tokens))
        model = gateway.catalog.find(chat.model, stands_in_for=OPENAI_MODELS)
        window = gateway.context_window(model)
        self._prepared = await gateway.preparer.chat(
            chat, model, request_id=self.response_id, max_model_len=window, hints=self._hints
        )
        tools = listed.joined(asked.offered(self._history, own))
        shown = _shown(asked, self.response_id, model.model_id, self._prepared, tools)
        self.shown = replace(shown, created_at=self.shown.created_at, shown=self.shown.shown)
        return self.shown

    async def call_tools(self, sink: Sink, send: Send = send_nothing) -> Usage:
        """Generate all rounds of a response that names MCP servers; see `ToolLoop.run`."""
        return await ToolLoop(self._gateway, self, sink, send).run()

    def check_budget(self) -> None:
        """Raises BudgetExceeded, as `begin` would; not before there is a prompt."""
        if self._prepared is None:
            return
        self._context.check_budget(self._answer())

    def _answer(self) -> Answer:
        assert self._prepared is not None, "something is to be generated"
        return Answer([self._prepared])

    def begin(self) -> GenerationSession[ChoiceUpdate]:
        """Start generating; the caller closes the session."""
        self._session = GenerationSession(
            self._gateway,
            self._context,
            self._answer(),
            "responses",
            streaming=self._asked.stream,
            started=self.started,
            routing_key=self._routing_key,
        )
        return self._session

    def usage(self) -> Usage:
        """Counts of the answer begun."""
        assert self._session is not None, "an answer was begun"
        return self._session.answer.usage()

    def unfinished(self, status: str) -> dict[str, Any]:
        """The response object before there is output."""
        return response_value(self.shown, ResponseEnd(status))

    def stored(self, value: dict[str, Any]) -> StoredResponse:
        """The record of the response in the state `value`."""
        return StoredResponse(
            response_id=self.response_id,
            value=value,
            input_items=self.own_items,
            previous_response_id=self._asked.previous_response_id,
            conversation_id=self._asked.conversation,
            owner=self._owner,
        )

    async def keep(self, value: dict[str, Any]) -> bool:
        """Store the response, and add to its conversation, as far as the request wants it; durable on return.

        Returns False if that is not possible at present and the request can do without. Raises HistoryUnavailable if
        it cannot (`ResponsesRequest.store_required`).
        """
        store = self._gateway.history
        if store is None:
            return True
        stored = self.stored(value)
        try:
            if self._asked.store:
                await store.put_response(stored)
            if self._asked.conversation is not None and value["status"] in _WITH_OUTPUT:
                await store.add_items(self._asked.conversation, stored.items)
        except HistoryUnavailable:
            if self._asked.store_required:
                raise
            return False
        return True

    async def _keep_in_the_end(self, value: dict[str, Any]) -> None:
        """Store how a response in the background ended: it exists nowhere else, so try until it can be stored.

        Unless it has been cancelled or deleted meanwhile, through another gateway with the same history.
        """
        store, stored = needs_history(self._gateway), self.stored(value)
        kept = await _in_the_end(store.update_response, stored)
        if kept and stored.conversation_id is not None and value["status"] in _WITH_OUTPUT:
            await _in_the_end(store.add_items, stored.conversation_id, stored.items)

    async def run_in_background(self, fold: ResponseFold) -> None:
        """Generate, and keep each state. Cancelled, the canceller has kept the last one."""
        with self._context.in_background("background response") as context:
            self._context = context
            await self._generate(fold)

    async def _generate(self, fold: ResponseFold) -> None:
        with suppress(HistoryUnavailable):  # that it is queued has been stored
            if not await needs_history(self._gateway).update_response(self.stored(self.unfinished("in_progress"))):
                return
        try:
            usage = await self._answered(fold)
        except Exception as error:
            if not isinstance(error, SmgError):
                logger.exception("background response %s failed", self.response_id)
            fold.fail(error)
            await self._keep_in_the_end(fold.response())
            return
        await self._keep_in_the_end(fold.response(usage))

    async def _answered(self, fold: ResponseFold) -> Usage:
        if self.servers:
            return await self.call_tools(fold)
        session = self.begin()
        await fold_answer(session, fold)
        return session.answer.usage()


async def _in_the_end(call: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
    """Call until the history is available."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await call(*arguments)
        except HistoryUnavailable:
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _check_servers(
    gateway: Gateway, asked: ResponsesRequest, history: Sequence[Item], own: Sequence[Item]
) -> list[ApprovedCall]:
    """The calls that the request approves. Raises McpServerNotAllowed, InvalidRequest."""
    if gateway.mcp is None:
        return []
    for server in asked.tools.servers:
        gateway.mcp.check(server)
    return approved_calls(history, own, [server.label for server in asked.tools.servers])


async def _history(
    gateway: Gateway, asked: ResponsesRequest, owner: str, local: dict[str, StoredResponse]
) -> list[Item]:
    """Items from before the request, oldest first."""
    if asked.previous_response_id is not None:
        chain: list[StoredResponse] = []
        following: str | None = asked.previous_response_id
        while following is not None and following in local:
            chain.insert(0, local[following])
            following = local[following].previous_response_id
        if following is not None:
            kept = await needs_history(gateway).get_chain(following, owner)
            if kept is None:
                raise PreviousResponseNotFound(following)
            chain = [*kept, *chain]
        return history_of(chain)
    if asked.conversation is not None:
        store = needs_history(gateway)
        if await store.get_conversation(asked.conversation, owner) is None:
            raise conversation_not_found(asked.conversation)
        return await store.items(asked.conversation)
    return []


async def _known_items(gateway: Gateway, asked: ResponsesRequest, owner: str, history: list[Item]) -> dict[str, Item]:
    """What the request's references may name: items before it, its own, and any other that is kept for its owner."""
    known = {item["id"]: item for item in [*history, *(i for i in asked.input if i["type"] != "item_reference")]}
    missing = {item["id"] for item in asked.input if item["type"] == "item_reference"} - known.keys()
    if missing and gateway.history is not None:
        known |= await gateway.history.find_items(missing, owner)
    return known


def _shown(
    asked: ResponsesRequest, response_id: str, model_id: str, prepared: PreparedRequest | None, tools: OfferedTools
) -> ResponseAnswer:
    sampling = asked.base.sampling if prepared is None else prepared.sampling
    return ResponseAnswer(
        response_id=response_id,
        model=asked.base.model or model_id,
        created_at=int(time.time()),
        shown=asked.shown,
        max_output_tokens=asked.base.sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        parallel_tool_calls=asked.base.parallel_tool_calls,
        top_logprobs=asked.base.top_logprobs,
        raw_messages=_raw_messages(prepared) if asked.show_raw_messages and prepared is not None else None,
        declared_tools=tools.declared,
        mcp_labels=[server.label for server in asked.tools.servers],
    )


def _raw_messages(prepared: PreparedRequest) -> RawMessages:
    tokenizer, prompt = prepared.model.text.tokenizer, prepared.prompt
    skip = prepared.decode.skip_special_tokens

    def decode(token_ids: Sequence[int]) -> str:
        return tokenizer.decode(token_ids, skip_special_tokens=skip)

    return RawMessages(prompt.text or decode(prompt.token_ids), prompt.token_ids, decode)
