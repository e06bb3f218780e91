"""``python -m smg_trio chat``: a small streaming chat with a model behind a gateway, over the Responses WebSocket.

One connection for the whole conversation: each turn goes on from the one before it by its id, so the history is sent
once. End of input or Ctrl-C ends the chat; leaving aborts the answer in progress at the engine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TextIO

import trio
from trio_websocket import ConnectionClosed, HandshakeError, WebSocketConnection, open_websocket_url

from smg_trio.core.errors import SmgError

_ENDS = ("response.completed", "response.incomplete", "response.failed")
_DELTAS = {"response.output_text.delta": "", "response.reasoning_text.delta": "\x1b[2m"}
_RESET = "\x1b[0m"


class ChatFailed(SmgError):
    """The gateway cannot be reached, or has hung up."""

    code = "chat_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What to talk to. `url` is the gateway's base URL, ``http://host:port``; `model` "" means its only one."""

    url: str
    model: str = ""
    api_key: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None


class Chat:
    """A conversation over one open connection."""

    def __init__(self, socket: WebSocketConnection, options: ChatOptions, output: TextIO, *, colours: bool) -> None:
        self._socket = socket
        self._options = options
        self._output = output
        self._colours = colours
        self._previous: str | None = None

    async def turn(self, text: str) -> None:
        """Send what was said and write the answer as it comes.

        Raises ChatFailed if the connection is gone. Cancelled, the connection is of no further use.
        """
        try:
            await self._socket.send_message(json.dumps(self._request(text)))
            await self._write_answer()
        except ConnectionClosed:
            raise ChatFailed("the gateway has closed the connection") from None

    def _request(self, text: str) -> dict[str, Any]:
        options = self._options
        request: dict[str, Any] = {"type": "response.create", "model": options.model, "input": text, "store": False}
        optional = {
            "previous_response_id": self._previous,
            "instructions": options.instructions,
            "max_output_tokens": options.max_output_tokens,
        }
        return request | {name: value for name, value in optional.items() if value is not None}

    async def _event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self._socket.get_message())
        return event

    async def _write_answer(self) -> None:
        while True:
            event = await self._event()
            kind = event["type"]
            if kind in _DELTAS:
                self._write(event["delta"], _DELTAS[kind])
            elif kind == "error":
                self._write(f"[{event['error']['message']}]\n")
                return
            elif kind in _ENDS:
                self._end(event["response"])
                return

    def _end(self, response: dict[str, Any]) -> None:
        if response["status"] == "failed":
            self._write(f"[{response['error']['message']}]\n")
            return
        self._previous = response["id"]
        cut = (response.get("incomplete_details") or {}).get("reason")
        self._write(f" [{cut}]\n" if cut else "\n")

    def _write(self, text: str, colour: str = "") -> None:
        self._output.write(f"{colour}{text}{_RESET}" if colour and self._colours else text)
        self._output.flush()


async def run_chat(
    options: ChatOptions, read_line: Callable[[], Awaitable[str | None]], output: TextIO = sys.stdout
) -> int:
    """Chat until `read_line` returns None. The exit code is 0; raises ChatFailed."""
    base = options.url.rstrip("/").replace("http", "ws", 1)
    headers = [(b"authorization", f"Bearer {options.api_key}".encode())] if options.api_key else []
    try:
        async with open_websocket_url(f"{base}/v1/responses", extra_headers=headers) as socket:
            chat = Chat(socket, options, output, colours=output.isatty())
            while (line := await read_line()) is not None:
                if line.strip():
                    await chat.turn(line)
            return 0
    except HandshakeError as error:
        status = getattr(error, "status_code", None)
        reason = f"it answered with status {status}" if status else "no connection"
        raise ChatFailed(f"cannot talk to {options.url}: {reason}") from None
    except OSError as error:
        raise ChatFailed(f"cannot talk to {options.url}: {error}") from None


async def read_terminal_line() -> str | None:
    """A line typed at the terminal; None at its end. Cancelled, the waiting thread is left to the process's end."""

    def read() -> str | None:
        try:
            return input("> ")
        except EOFError:
            return None

    return await trio.to_thread.run_sync(read, abandon_on_cancel=True)
