"""Traffic for the soak: kinds of clients one after the other, each response judged."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import httpx
import trio
import wsproto
from wsproto.events import AcceptConnection, CloseConnection, Request, TextMessage

from scripts.disorder.formula import compare, token_of

if TYPE_CHECKING:
    from smg_trio.text.tokenizer import Tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODEL = "demo"
EXPLAINED_S = 5.0
"""A failure so soon after a fault of an engine is that fault's."""
PATIENCE_S = 60.0

_OF_ENGINES = ("engine_dead", "no_available_workers", "overloaded_error", "response.failed")


@dataclass(slots=True)
class Account:
    """What has come of the traffic so far.

    Attributes:
        last_fault: when an engine was last broken.
    """

    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    last_fault: float = float("-inf")
    tokens: int = 0

    def note(self, kind: str, wrong: str, began: float) -> None:
        """Count the end of a request; `wrong` says what was wrong with it, or nothing."""
        if not wrong:
            self.ends[kind] += 1
        elif self.last_fault >= began - EXPLAINED_S and any(word in wrong for word in _OF_ENGINES):
            word = next(word for word in _OF_ENGINES if word in wrong)
            self.ends[f"{kind}, failed with an engine: {word}"] += 1
        else:
            self.ends[f"{kind}, failed"] += 1
            self.faults.append(f"{kind}: {wrong}")


class Traffic:
    """One client: a kind of request by chance, over and over.

    Args:
        tokenizer: of the model, to check texts.
        only: kinds of requests by name; none: all.
    """

    def __init__(
        self,
        name: str,
        random: Random,
        port: int,
        http: httpx.AsyncClient,
        account: Account,
        tokenizer: Tokenizer,
        only: Collection[str] = (),
    ) -> None:
        self._name = name
        self._random = random
        self._port = port
        self._http = http
        self._account = account
        self._tokenizer = tokenizer
        kinds: list[tuple[int, str, Callable[[], Awaitable[str]]]] = [
            (30, "stream", self._stream),
            (15, "several choices", self._choices),
            (10, "left", self._leave),
            (10, "bad request", self._bad_request),
            (5, "slow reader", self._slow_reader),
            (5, "big prompt", self._big_prompt),
            (3, "heavy body", self._heavy_body),
            (8, "tools", self._tools),
            (5, "messages", self._messages),
            (5, "response", self._response),
            (4, "websocket", self._websocket),
        ]
        self._kinds = [kind for kind in kinds if not only or kind[1] in only]

    async def run_until(self, ends: float) -> None:
        """Ask until then; the last request may end later."""
        weights = [weight for weight, _, _ in self._kinds]
        while trio.current_time() < ends:
            _, kind, ask = self._random.choices(self._kinds, weights)[0]
            began, wrong = trio.current_time(), f"no end within {PATIENCE_S:g} s"
            with trio.move_on_after(PATIENCE_S):
                try:
                    wrong = await ask()
                except (httpx.HTTPError, OSError, ValueError, KeyError, trio.BrokenResourceError) as error:
                    wrong = f"{type(error).__name__}: {error}"
                except wsproto.utilities.ProtocolError as error:
                    wrong = f"{error}"
            self._account.note(kind, wrong, began)
            if wrong:
                await trio.sleep(0.2)

    def _body(self, length: int) -> dict[str, Any]:
        seed = self._random.randrange(2**31)
        return {"model": MODEL, "seed": seed, "max_tokens": length, "ignore_eos": True, "return_token_ids": True}

    def _chat(self, length: int) -> dict[str, Any]:
        return self._body(length) | {"messages": [{"role": "user", "content": f"{self._name} asks"}]}

    def _expected(self, seed: int, length: int) -> list[int]:
        return [token_of(seed, position) for position in range(length)]

    async def _stream(self) -> str:
        body = self._chat(self._random.randint(1, 150)) | {"stream": True, "stream_options": {"include_usage": True}}
        return self._stream_fault(body, await self._http.post(CHAT, json=body))

    def _stream_fault(self, body: dict[str, Any], answer: httpx.Response) -> str:
        if answer.status_code != 200:
            return f"status {answer.status_code}: {answer.text[-400:]}"
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
        if not lines or lines[-1] != "[DONE]":
            return f"ended with {lines[-1:]}"
        chunks = [json.loads(line) for line in lines[:-1]]
        errors = [chunk for chunk in chunks if "error" in chunk]
        if errors:
            return f"{errors[0]}"
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        found = [token for choice in choices for token in choice.get("token_ids") or ()]
        self._account.tokens += len(found)
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        finish = next((choice["finish_reason"] for choice in reversed(choices)), None)
        expected = self._expected(body["seed"], body["max_tokens"])
        return compare(expected, found, text, self._tokenizer, finish, chunks[-1].get("usage"))

    async def _choices(self) -> str:
        body = self._body(self._random.randint(1, 60)) | {"prompt": ["one", "two"], "n": self._random.randint(2, 5)}
        answer = await self._http.post(COMPLETIONS, json=body)
        if answer.status_code != 200:
            return f"status {answer.status_code}: {answer.text[-400:]}"
        choices = answer.json()["choices"]
        if len(choices) != 2 * body["n"]:
            return f"{len(choices)} choices"
        for choice in choices:
            self._account.tokens += len(choice["token_ids"])
            seed = body["seed"] + choice["index"] % body["n"]
            if choice["token_ids"] != self._expected(seed, body["max_tokens"]):
                return f"choice {choice['index']} has wrong tokens"
        return ""

    async def _leave(self) -> str:
        body = self._chat(2_000) | {"stream": True, "n": self._random.choice((1, 3))}
        seen, enough = 0, self._random.randint(0, 40)
        async with self._http.stream("POST", CHAT, json=body) as answer:
            if answer.status_code != 200:
                return f"status {answer.status_code}: {(await answer.aread()).decode()[-400:]}"
            async for line in answer.aiter_lines():
                seen += 1
                if seen >= enough or '"error"' in line:
                    break
        return ""

    async def _bad_request(self) -> str:
        fields, path = self._random.choice(_BAD)
        answer = await self._http.post(path, json=self._chat(5) | fields)
        return "" if 400 <= answer.status_code < 500 else f"status {answer.status_code} for {str(fields)[:80]}"

    async def _slow_reader(self) -> str:
        sock = trio.socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        await sock.connect(("127.0.0.1", self._port))
        body = json.dumps(self._chat(100) | {"stream": True}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        received = b""
        async with trio.SocketStream(sock) as stream:
            await stream.send_all(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            while piece := await stream.receive_some(self._random.randint(1, 2_000)):
                received += piece
                await trio.sleep(0.01)
        return "" if b"[DONE]" in received and b'"error"' not in received else f"ended with {received[-400:]!r}"

    async def _big_prompt(self) -> str:
        text = "word " * self._random.randint(2_000, 7_000)
        body = self._chat(3) | {"messages": [{"role": "user", "content": text}]}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        return self._stream_fault(body, await self._http.post(CHAT, json=body))

    async def _heavy_body(self) -> str:
        numbers, escapes = ",".join(["7"] * 300_000), "\\n" * 1_000_000
        kind = self._random.choice((f'"x": [{numbers}]', f'"x": "{escapes}"'))
        body = json.dumps(self._chat(2))[:-1] + f", {kind}}}"
        answer = await self._http.post(CHAT, content=body, headers={"content-type": "application/json"})
        return "" if answer.status_code == 200 else f"status {answer.status_code}: {answer.text[-400:]}"

    async def _tools(self) -> str:
        choice = self._random.choice(("auto", "required", {"type": "function", "function": {"name": "f"}}))
        body = self._chat(40) | {"tools": _TOOLS, "tool_choice": choice, "stream": self._random.random() < 0.5}
        answer = await self._http.post(CHAT, json=body)
        failed = answer.status_code != 200 or '"error"' in answer.text
        return f"status {answer.status_code}: {answer.text[-400:]}" if failed else ""

    async def _messages(self) -> str:
        body = {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}], "stream": True}
        answer = await self._http.post("/v1/messages", json=body)
        ended = answer.status_code == 200 and "message_stop" in answer.text and "event: error" not in answer.text
        return "" if ended else f"status {answer.status_code}: {answer.text[-400:]}"

    async def _response(self) -> str:
        body = {"model": MODEL, "max_output_tokens": 20, "input": "hi", "store": self._random.random() < 0.3}
        answer = await self._http.post("/v1/responses", json=body)
        if answer.status_code != 200:
            return f"status {answer.status_code}: {answer.text[-400:]}"
        if body["store"]:
            answer = await self._http.delete(f"/v1/responses/{answer.json()['id']}")
        return "" if answer.status_code == 200 else f"status {answer.status_code} for deleting"

    async def _websocket(self) -> str:
        turns = self._random.randint(1, 3)
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
            connection = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
            await stream.send_all(connection.send(Request(host="localhost", target="/v1/responses")))
            text = ""
            while True:
                data = await stream.receive_some()
                connection.receive_data(data or None)
                for event in connection.events():
                    if isinstance(event, CloseConnection):
                        return f"closed with {event.code}"
                    if isinstance(event, TextMessage):
                        text += event.data
                        if not event.message_finished:
                            continue
                        kind, text = json.loads(text)["type"], ""
                        if kind == "error" or kind.endswith("failed"):
                            return kind
                        if not kind.endswith(("completed", "incomplete")) or kind.count(".") > 1:
                            continue
                        turns -= 1
                        if not turns:
                            return ""
                    if isinstance(event, (AcceptConnection, TextMessage)):
                        ask = {"type": "response.create", "model": MODEL, "max_output_tokens": 20, "store": False}
                        message = TextMessage(json.dumps(ask | {"input": "hi"}))
                        await stream.send_all(connection.send(message))
                if not data:
                    return "the connection was cut"


_TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}},
    {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}},
]
_BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": 7}, CHAT),
    ({"messages": []}, CHAT),
    ({"temperature": -1}, CHAT),
    ({"model": "other"}, CHAT),
    ({"n": 10_000}, CHAT),
    ({"stop": ["x" * 5_000]}, CHAT),
    ({"logit_bias": {"x": 1}}, CHAT),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}}, CHAT),
    ({"structured_outputs": {"regex": "("}}, CHAT),
    ({"prompt": [10**30]}, COMPLETIONS),
    ({"prompt": "word " * 100_000}, COMPLETIONS),
    ({"prompt": ["a"] * 2_000}, COMPLETIONS),
    ({"tokens": "x"}, "/detokenize"),
    ({}, "/v1/nothing"),
]
