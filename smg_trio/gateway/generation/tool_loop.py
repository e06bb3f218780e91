"""A response that calls tools of MCP servers: the model says what to call, the servers answer, and the model goes on.

First the servers list their tools, unless the conversation has a list, and calls that the client has approved are run.
Then there is one generation after the other: each but the last ends with calls, which run beside each other, and whose
results the next one reads. It is over when the model calls nothing, or what the client has to run or to approve. What
goes wrong with a server is in an item, for the client and the model to read; only what goes wrong with a generation
ends the response.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import trio

from smg_trio.api.openai.responses.mcp_items import ApprovedCall, listed_tools
from smg_trio.api.openai.responses.mcp_work import McpWork
from smg_trio.api.openai.responses.object import ResponseEnd
from smg_trio.api.openai.responses.tools import NO_OFFER, DeclaredTool, OfferedTools, offered_by
from smg_trio.core.errors import ShuttingDown
from smg_trio.core.events import NO_TOKENS, ChoiceUpdate, Usage
from smg_trio.core.mcp import McpFailure, McpResult, McpServer, McpTool
from smg_trio.gateway.generation.session import GenerationSession, GenerationTimeout

if TYPE_CHECKING:
    from smg_trio.api.openai.responses.object import ResponseAnswer
    from smg_trio.api.openai.responses.output import ResponseOutput
    from smg_trio.core.conversations import Item
    from smg_trio.gateway.state import Gateway
    from smg_trio.mcp.sessions import McpSessions

logger = logging.getLogger("smg_trio.gateway")

Send = Callable[[bytes], Awaitable[None]]


class Rounds(Protocol):
    """What the loop needs of the response (`ResponsesRun`).

    Attributes:
        servers: that the request names.
        approved: calls to be run first.
        max_calls: most calls of tools.
        max_tokens: most tokens of all rounds together; None for no bound.
        started: when the request came, on the loop's clock.
        items: the conversation before the output.
    """

    @property
    def servers(self) -> Sequence[McpServer]: ...  # noqa: D102

    @property
    def approved(self) -> Sequence[ApprovedCall]: ...  # noqa: D102

    @property
    def max_calls(self) -> int: ...  # noqa: D102

    @property
    def max_tokens(self) -> int | None: ...  # noqa: D102

    @property
    def started(self) -> float: ...  # noqa: D102

    @property
    def items(self) -> Sequence[Item]: ...  # noqa: D102

    async def next_round(
        self, output: Sequence[Item], listed: OfferedTools, *, called: bool, max_tokens: int | None
    ) -> ResponseAnswer:
        """Prepare a generation that goes on from `output`. Raises ClientFault, NoReadyWorker."""
        ...

    def begin(self) -> GenerationSession[ChoiceUpdate]:
        """Start it; the caller closes the session."""
        ...


class Sink(Protocol):
    """Gathers the output, and writes its events if there are any (`ResponseEventWriter`, `ResponseFold`)."""

    @property
    def output(self) -> ResponseOutput: ...  # noqa: D102

    def resolved(self, answer: ResponseAnswer) -> None: ...  # noqa: D102

    def update(self, update: ChoiceUpdate) -> bytes: ...  # noqa: D102

    def work_begins(self, index: int) -> bytes: ...  # noqa: D102

    def work_ends(self, index: int) -> bytes: ...  # noqa: D102


async def send_nothing(events: bytes) -> None:
    """Where nobody is sent events."""


class ToolLoop:
    """One response; `run` it once."""

    def __init__(self, gateway: Gateway, rounds: Rounds, sink: Sink, send: Send = send_nothing) -> None:
        """`send`: takes the events of the sink, in order."""
        self._gateway = gateway
        self._rounds = rounds
        self._sink = sink
        self._output = sink.output
        self._send = send
        self._servers = {server.label: server for server in rounds.servers}
        self._tools: dict[str, dict[str, McpTool]] = {}
        self._listed = NO_OFFER
        self._calls_left = rounds.max_calls
        self._called = False

    async def run(self) -> Usage:
        """The counts of all generations.

        Cancelled or not, no generation and no session with a server is left. Raises SmgError; then the output is as far
        as it has come.
        """
        timeout_s = self._gateway.settings.request_timeout_secs
        access = self._gateway.mcp
        assert access is not None, "servers are read only where some are allowed"
        deadline = self._rounds.started + timeout_s
        with trio.CancelScope(deadline=deadline) as scope, self._gateway.tools_run(scope):
            async with access.sessions() as sessions:
                return await self._all_rounds(sessions)
        if trio.current_time() < deadline:
            raise ShuttingDown("The server is shutting down.")
        raise GenerationTimeout(f"The answer took longer than {timeout_s:g}s.")

    async def _all_rounds(self, sessions: McpSessions) -> Usage:
        await self._list_all(sessions)
        await self._run_approved(sessions)
        usage, left = NO_TOKENS, self._rounds.max_tokens
        while True:
            is_last = self._calls_left <= 0
            listed = NO_OFFER if is_last else self._listed
            answer = await self._rounds.next_round(self._output.values(), listed, called=self._called, max_tokens=left)
            self._sink.resolved(answer)
            self._output.next_round()
            round_usage = await self._generate()
            usage = usage.plus(round_usage)
            calls = self._output.calls()
            if self._output.end.status != "completed":
                await self._give_up(calls)
                return usage
            await self._call_all(sessions, calls)
            if is_last or not calls or self._output.waits_for_client:
                return usage
            if left is not None and (left := left - round_usage.completion_tokens) <= 0:
                self._output.fail(ResponseEnd("incomplete", "max_output_tokens"))
                return usage

    async def _generate(self) -> Usage:
        session = self._rounds.begin()
        try:
            while not session.answer.finished:
                for update in await session.next_updates():
                    if events := self._sink.update(update):
                        await self._send(events)
            return session.answer.usage()
        finally:
            session.close()

    async def _list_all(self, sessions: McpSessions) -> None:
        """All servers beside each other, which are shown in their order."""
        found: dict[str, McpResult | list[McpTool]] = {}
        ended = {label: trio.Event() for label in self._servers}

        async def ask(server: McpServer) -> None:
            began = trio.current_time()
            try:
                found[server.label] = await sessions.list_tools(server)
                self._note("list", server.label, "its tools", began)
            except McpFailure as failure:
                found[server.label] = McpResult(failure=failure)
                self._note("list", server.label, "its tools", began, failure)
            ended[server.label].set()

        async with _beside() as nursery:
            for label, server in self._servers.items():
                known = listed_tools(self._rounds.items, label)
                if known is None:
                    nursery.start_soon(ask, server)
                else:
                    self._offer(server, known)
                    del ended[label]
            for label, event in ended.items():
                await self._show_list(self._servers[label], event, found)

    async def _show_list(
        self, server: McpServer, event: trio.Event, found: dict[str, McpResult | list[McpTool]]
    ) -> None:
        index = self._output.begin(McpWork("list", server.label))
        await self._send(self._sink.work_begins(index))
        await event.wait()
        result = found[server.label]
        if isinstance(result, McpResult):
            self._output.end_work(index, result)
        else:
            tools = [tool for tool in result if server.offers(tool)]
            self._offer(server, tools)
            self._output.end_work(index, McpResult(), tools)
        await self._send(self._sink.work_ends(index))

    def _offer(self, server: McpServer, tools: Sequence[McpTool]) -> None:
        self._tools[server.label] = {tool.name: tool for tool in tools if server.offers(tool)}
        self._listed = self._listed.joined(offered_by(server, tools))

    async def _run_approved(self, sessions: McpSessions) -> None:
        indexes = []
        for call in self._rounds.approved:
            work = McpWork("call", call.label, approved=call.request_id)
            index = self._output.begin(work, DeclaredTool(call.name, "mcp", call.label), call.arguments)
            await self._send(self._sink.work_begins(index))
            indexes.append(index)
        await self._call_all(sessions, indexes)

    async def _call_all(self, sessions: McpSessions, indexes: Sequence[int]) -> None:
        """Run calls beside each other; each is shown as it ends."""
        send, receive = trio.open_memory_channel[tuple[int, McpResult]](len(indexes))

        async def call(index: int, within_bound: bool) -> None:
            send.send_nowait((index, await self._call(sessions, index, within_bound)))

        async with _beside() as nursery:
            for index in indexes:
                nursery.start_soon(call, index, self._calls_left > 0)
                self._calls_left -= 1
                self._called = True
            for _ in indexes:
                index, result = await receive.receive()
                self._output.end_work(index, result)
                await self._send(self._sink.work_ends(index))

    async def _call(self, sessions: McpSessions, index: int, within_bound: bool) -> McpResult:
        item = self._output.items[index]
        work, name = item.mcp, item.called_name
        assert work is not None
        if not within_bound:
            problem = f"not called: a response may make {self._rounds.max_calls} calls of tools"
            return McpResult(failure=McpFailure(problem))
        if name not in self._tools.get(work.label, ()):
            return McpResult(failure=McpFailure(f"the server offers no tool called {name[:64]!r}"))
        arguments = _arguments(item.text)
        if arguments is None:
            return McpResult(failure=McpFailure("the arguments are not a JSON object"))
        began = trio.current_time()
        result = await sessions.call(self._servers[work.label], name, arguments)
        self._note("call", work.label, name, began, result.failure)
        return result

    async def _give_up(self, calls: Sequence[int]) -> None:
        """The response ends in another way than by what the model wanted: its calls are not run."""
        for index in calls:
            self._output.end_work(index)
            await self._send(self._sink.work_ends(index))

    def _note(self, operation: str, label: str, what: str, began: float, failure: McpFailure | None = None) -> None:
        result = "ok" if failure is None else "error"
        self._gateway.metrics.mcp.at(operation, result).observe(trio.current_time() - began)
        if failure is not None:
            logger.info("MCP server %r, %s: %s", label, what, failure.message)


@asynccontextmanager
async def _beside() -> AsyncIterator[trio.Nursery]:
    """A nursery of tasks that raise nothing; what the block raises comes out as it is, not as a group."""
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except Exception as error:  # noqa: BLE001 - raised below
            failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _arguments(text: str) -> dict[str, Any] | None:
    """What a call says; nothing at all is no arguments."""
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
