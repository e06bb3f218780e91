"""A whole gateway under test: real sockets on both sides, fake engines that dial in, real HTTP clients."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import trio
import zmq

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.workers import WorkerState
from smg_trio.gateway.dashboard.feed import LiveFeed
from smg_trio.gateway.run import GatewayShutdown, RunningGateway
from smg_trio.gateway.security.file_watcher import FileWatcher
from smg_trio.gateway.state import Gateway
from smg_trio.processes.run import run_processes
from smg_trio.settings.settings import Settings
from smg_trio.testing.fake_engine import FakeEngine
from smg_trio.testing.lockstep import LockstepGroup
from smg_trio.testing.notation import parse_script
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.script import LengthScript, Script, ScriptChooser
from smg_trio.testing.zmq_engine import zmq_engine
from smg_trio.wire.addresses import handshake_port, parse_worker_url
from smg_trio.worker.nursery import Worker
from tests.certificates import Authority
from tests.waiting import PATIENCE_S, until

from .model import TestModel, tokens_named

VLLM, TOKENSPEED = EngineProtocol.VLLM, EngineProtocol.TOKENSPEED
MODEL = "m"
HI = [{"role": "user", "content": "hi"}]
HELLO = 'E["Hel"|"lo"|" wor"|"ld"|"<EOS>"]'
ENDLESS = 'E["a"|"b"|…]'
COUNTING = LengthScript()
SLOW = {"step_time_s": 0.005}
"""Options of an engine whose responses can be met on their way."""

Says = str | Script | ScriptChooser


@dataclass
class Bench:
    """A running gateway, its engines and clients."""

    base_url: str
    metrics_url: str
    gateway: Gateway
    _feed: LiveFeed | None
    ended: trio.Event
    http: httpx.AsyncClient
    model: TestModel
    shutdown: GatewayShutdown
    files: FileWatcher
    urls: list[str]
    nursery: trio.Nursery
    dial: Callable[[EngineOptions, str, ScriptChooser, LockstepGroup | None], FakeEngine]
    protocol: EngineProtocol
    engine_defaults: dict[str, Any]
    engines: list[FakeEngine] = field(default_factory=list)
    scopes: dict[int, trio.CancelScope] = field(default_factory=dict)

    @property
    def engine(self) -> FakeEngine:
        """The newest engine."""
        return self.engines[-1]

    @property
    def feed(self) -> LiveFeed:
        """The live page's feed."""
        assert self._feed is not None, "the gateway runs without the live page"
        return self._feed

    @property
    def port(self) -> int:
        """The gateway's port on the loopback."""
        return int(self.base_url.rpartition(":")[2])

    @property
    def worker(self) -> Worker:
        """The first worker."""
        return self.gateway.registry.workers()[0]

    def openai(self, **options: Any) -> openai.AsyncOpenAI:
        """The official client, strict about what it gets and without retries."""
        chosen: dict[str, Any] = {"api_key": "none", "_strict_response_validation": True} | options
        return openai.AsyncOpenAI(
            base_url=self.base_url + "/v1",
            max_retries=0,
            http_client=httpx.AsyncClient(timeout=PATIENCE_S, verify=False),
            **chosen,
        )

    def script(self, says: Says) -> ScriptChooser:
        """What an engine is to say, in notation, as a script, or as a choice among scripts."""
        if isinstance(says, str):
            script = parse_script(says, self.model.id_of)
            return lambda request: script
        if callable(says):
            return says
        return lambda request: says

    def say(self, says: Says) -> None:
        """Have the newest engine say this from now on."""
        self.engine.choose_script = self.script(says)

    def start_engine(
        self,
        says: Says = COUNTING,
        *,
        worker: int = 0,
        handshake: str = "",
        group: LockstepGroup | None = None,
        **options: Any,
    ) -> FakeEngine:
        """Start an engine that dials in to a worker, or at an address; ranks in lockstep share a group."""
        address = handshake or parse_worker_url(self.urls[worker]).handshake
        chosen = EngineOptions(**(self.engine_defaults | options))
        engine = self.dial(chosen, address, self.script(says), group)
        self.engines.append(engine)
        self.scopes[id(engine)] = trio.CancelScope()
        self.nursery.start_soon(self._run, engine)
        return engine

    async def _run(self, engine: FakeEngine) -> None:
        with self.scopes[id(engine)]:
            await engine.run()

    def kill(self, engine: FakeEngine) -> None:
        """SIGKILL: its links close, nothing is said."""
        self.scopes[id(engine)].cancel()

    async def wait_ready(self, worker: int = 0) -> None:
        """Wait until a worker serves."""
        with trio.fail_after(PATIENCE_S):
            await self.gateway.registry.workers()[worker].wait_state(WorkerState.READY)

    async def wait_all_ready(self) -> None:
        """With several processes: wait until every one of them serves the first worker."""
        with trio.fail_after(PATIENCE_S):
            while (await self.http.get("/workers")).json()["workers"][0]["status"] != "ready":  # noqa: ASYNC110
                await trio.sleep(0.02)

    async def wait_idle(self) -> None:
        """Wait until no answer is in flight; then nothing may be left of any."""
        with trio.fail_after(PATIENCE_S):
            await self.gateway.wait_no_answers()
        for worker in self.gateway.registry.workers():
            assert worker.in_flight == 0
            assert self.gateway.registry.load(worker.spec.worker_id) == 0
        assert self.gateway.answers == 0

    async def chat(self, **fields: Any) -> httpx.Response:
        """One chat request."""
        return await self.http.post("/v1/chat/completions", json={"model": MODEL, "messages": HI} | fields)

    async def completion(self, **fields: Any) -> httpx.Response:
        """One completions request."""
        return await self.http.post("/v1/completions", json={"model": MODEL, "prompt": "hi"} | fields)

    async def chat_text(self, **fields: Any) -> tuple[str, dict[str, Any]]:
        """Content and choice of a chat answer, asked for both whole and streamed; both must be the same."""
        whole = await self.chat(**fields)
        assert whole.status_code == 200, whole.text
        choice = whole.json()["choices"][0]
        streamed = await self.chat(**fields, stream=True, stream_options={"include_usage": True})
        assert streamed.status_code == 200, streamed.text
        joined = join_chat(streamed.text)
        assert joined["content"] == (choice["message"]["content"] or "")
        assert joined["finish_reason"] == choice["finish_reason"]
        assert joined["stop_reason"] == choice.get("stop_reason")
        assert joined["usage"]["completion_tokens"] == whole.json()["usage"]["completion_tokens"]
        assert joined["usage"]["prompt_tokens"] == whole.json()["usage"]["prompt_tokens"]
        return joined["content"], choice | {"usage": whole.json()["usage"]}


@contextmanager
def _zmq_context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield context
    finally:
        # Engines' sockets linger for seconds, as real ones do, where their gateway is gone: not in the test's time.
        threading.Thread(target=context.destroy, kwargs={"linger": 0}, daemon=True).start()


def worker_url(directory: Path, name: str) -> str:
    """A worker URL below `directory` whose derived handshake port is free."""
    for attempt in range(20):
        path = f"{directory}/s/{name}{attempt}"
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", handshake_port(path)))
            except OSError:
                continue
        return f"ipc://{path}"
    raise RuntimeError("no free handshake port")


@asynccontextmanager
async def open_gateway(
    tmp_path: Path,
    says: Says = HELLO,
    *,
    protocol: EngineProtocol = VLLM,
    words: str = "",
    special_tokens: tuple[str, ...] = (),
    workers: int = 1,
    engine: dict[str, Any] | None = None,
    model_defaults: dict[str, object] | None = None,
    model_config: dict[str, object] | None = None,
    model_files: dict[str, str] | None = None,
    connect: bool = True,
    http2: bool = False,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """Run a gateway in this process, with one engine per worker; cancelled at the end of the block.

    Args:
        tmp_path: for the model and the sockets.
        says: what the engines say; texts quoted in notation become tokens of the model.
        protocol: of all engines.
        words: notation whose texts become tokens too.
        special_tokens: of the model, beside its own.
        workers: how many.
        engine: options of the engines.
        model_defaults: entries of the model's own generation_config.json.
        model_config: entries of its config.json.
        model_files: texts of further files of the model, or in place of its own.
        connect: whether engines are started and waited for.
        http2: whether the client speaks HTTP/2, and nothing else.
        settings: of the gateway.
    """
    notation = (says if isinstance(says, str) else "") + words
    model = TestModel(
        tmp_path / "model",
        tokens_named(notation),
        generation_config=model_defaults,
        config=model_config,
        special_tokens=special_tokens,
    )
    for name, content in (model_files or {}).items():
        (model.directory / name).write_text(content)
    urls = [worker_url(tmp_path, f"w{index}-") for index in range(workers)]
    defaults: dict[str, Any] = {
        "protocol": protocol,
        "vocab_size": model.vocab_size,
        "eos_token_id": model.id_of("<EOS>"),
    }
    chosen: dict[str, Any] = {
        "worker_urls": tuple(urls),
        "backend": protocol.value,
        "model_path": str(model.directory),
        "served_model_name": (MODEL,),
        "host": "127.0.0.1",
        "port": 0,
        "prometheus_host": "127.0.0.1",
        "prometheus_port": 0,
    }
    shutdown = GatewayShutdown()
    with _zmq_context() as context:

        def dial(
            options: EngineOptions, handshake: str, choose: ScriptChooser, group: LockstepGroup | None
        ) -> FakeEngine:
            return zmq_engine(options, handshake, choose_script=choose, group=group, context=context)

        ended = trio.Event()

        async def run(*, task_status: trio.TaskStatus[RunningGateway]) -> None:
            try:
                await run_processes(Settings(**(chosen | settings)), shutdown=shutdown, task_status=task_status)
            finally:
                ended.set()

        async with trio.open_nursery() as nursery:
            running: RunningGateway = await nursery.start(run)
            scheme = "https" if "tls_cert_path" in settings else "http"
            base_url = f"{scheme}://127.0.0.1:{running.server.port}"
            async with httpx.AsyncClient(
                base_url=base_url, timeout=PATIENCE_S, verify=False, http1=not http2, http2=http2
            ) as http:
                bench = Bench(
                    base_url=base_url,
                    metrics_url=f"http://127.0.0.1:{running.metrics_server.port}/metrics",
                    gateway=running.gateway,
                    _feed=running.feed,
                    ended=ended,
                    http=http,
                    model=model,
                    shutdown=shutdown,
                    files=running.files,
                    urls=urls,
                    nursery=nursery,
                    dial=dial,
                    protocol=protocol,
                    engine_defaults=defaults | (engine or {}),
                )
                if connect:
                    for index in range(workers):
                        bench.start_engine(says, worker=index)
                        await bench.wait_ready(index)
                yield bench
            nursery.cancel_scope.cancel()


# ---- reading answers ------------------------------------------------------------------------------------


def events(text: str) -> list[Any]:
    """The data of every event of a stream of server-sent events; ``[DONE]`` as that text."""
    found = []
    for block in text.split("\n\n"):
        if not block:
            continue
        assert block.startswith("data: "), block
        data = block.removeprefix("data: ")
        assert "\n" not in data
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


def join_chat(text: str, choice: int = 0) -> dict[str, Any]:
    """A streamed chat answer put together; asserts that it ends as it must and holds no empty content."""
    chunks = events(text)
    assert chunks[-1] == "[DONE]"
    assert chunks.count("[DONE]") == 1
    joined: dict[str, Any] = {"content": "", "finish_reason": None, "stop_reason": None, "usage": None, "deltas": []}
    joined["logprobs"] = []
    for chunk in chunks[:-1]:
        assert "error" not in chunk, chunk
        joined["usage"] = chunk.get("usage") or joined["usage"]
        for part in chunk["choices"]:
            if part["index"] != choice:
                continue
            assert "finish_reason" in part
            assert joined["finish_reason"] is None, "nothing comes after the finish"
            piece = part["delta"].get("content")
            if piece is not None and "role" not in part["delta"]:
                assert piece, "no empty deltas"
                joined["deltas"].append(piece)
                joined["content"] += piece
            joined["finish_reason"] = part["finish_reason"]
            joined["stop_reason"] = part.get("stop_reason")
            joined["logprobs"] += (part.get("logprobs") or {}).get("content") or []
    return joined


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object of an answer of that status; asserts the shape that all errors have."""
    assert response.status_code == status, (response.status_code, response.text)
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "Traceback" not in error["message"]
    return error


# ---- raw connections -------------------------------------------------------------------------------------


def post(path: str, body: Any, *headers: str) -> bytes:
    """The bytes of a POST with a JSON body (or with these bytes)."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


def chat_body(**fields: Any) -> dict[str, Any]:
    """A chat body."""
    return {"model": MODEL, "messages": HI} | fields


async def connect(port: int, *, receive_buffer: int | None = None) -> trio.SocketStream:
    """A connection to a server on the loopback; a small receive buffer makes a slow reader felt soon."""
    sock = trio.socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await sock.connect(("127.0.0.1", port))
    return trio.SocketStream(sock)


async def connect_over(
    port: int, authority: Authority | None, protocol: str = "http/1.1"
) -> trio.SocketStream | trio.SSLStream[trio.SocketStream]:
    """The same over TLS, speaking `protocol`, where the server's certificate is of an authority."""
    plain = await connect(port)
    if authority is None:
        return plain
    context = authority.trusting()
    context.set_alpn_protocols([protocol])
    return trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)


async def read_until(stream: trio.SocketStream, mark: bytes) -> bytes:
    """Read until `mark` has come."""
    data = b""
    with trio.fail_after(PATIENCE_S):
        while mark not in data:
            piece = await stream.receive_some()
            assert piece, f"closed before {mark!r}: {data!r}"
            data += piece
    return data


async def hang_up(stream: trio.SocketStream, *, reset: bool) -> None:
    """Close a connection: with a FIN, or with an RST as a killed client's kernel does."""
    if reset:
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()
    await trio.lowlevel.checkpoint()


# ---- a gateway in a process of its own ---------------------------------------------------------------------


@dataclass
class Process:
    """A ``launch`` in a process of its own."""

    process: trio.Process
    port: int
    log: list[str]
    model: TestModel
    url: str

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def wait_log(self, words: str) -> None:
        """Wait for a line of its log."""
        await until(lambda: any(words in line for line in self.log))

    async def wait(self, limit_s: float) -> int:
        """Its exit code, within `limit_s`."""
        with trio.fail_after(limit_s):
            return await self.process.wait()


@asynccontextmanager
async def launched_gateway(
    tmp_path: Path,
    says: Says = HELLO,
    *,
    words: str = "",
    flags: tuple[str, ...] = (),
    choose: Callable[[TestModel], ScriptChooser] | None = None,
    verify: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[Process, FakeEngine]]:
    """``python -m smg_trio launch`` with one engine, which runs here; killed at the end of the block.

    `verify`: whom to trust, of a gateway with TLS.
    """
    notation = (says if isinstance(says, str) else "") + words
    model = TestModel(tmp_path / "model", tokens_named(notation))
    url = worker_url(tmp_path, "p")
    command = [
        sys.executable, "-m", "smg_trio", "launch", "--worker-urls", url, "--backend", "vllm",
        "--model-path", str(model.directory), "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", "0",
        "--prometheus-host", "127.0.0.1", "--prometheus-port", "0", *flags,
    ]  # fmt: skip
    log: list[str] = []
    with _zmq_context() as context:
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(
                partial(trio.run_process, command, stderr=subprocess.PIPE, check=False)
            )
            started = trio.Event()
            ports: list[int] = []
            nursery.start_soon(read_log, process, log, ports, started)
            with trio.fail_after(PATIENCE_S):
                await started.wait()
            if choose is not None:
                chooser = choose(model)
            elif isinstance(says, str):
                script = parse_script(says, model.id_of)
                chooser = lambda request: script  # noqa: E731
            else:
                raise TypeError
            options = EngineOptions(vocab_size=model.vocab_size, step_time_s=0.005)
            engine = zmq_engine(options, parse_worker_url(url).handshake, choose_script=chooser, context=context)
            nursery.start_soon(engine.run)
            with trio.fail_after(PATIENCE_S):
                await engine.wait_connected()
                await wait_ready_at(ports[0], verify)
            try:
                yield Process(process, ports[0], log, model, url), engine
            finally:
                nursery.cancel_scope.cancel()


async def wait_ready_at(port: int, verify: ssl.SSLContext | None = None) -> None:
    base_url = f"{'http' if verify is None else 'https'}://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=base_url, verify=verify or False) as http:
        while (await http.get("/readiness")).status_code != 200:
            await trio.lowlevel.checkpoint()


async def read_log(process: trio.Process, log: list[str], ports: list[int], started: trio.Event) -> None:
    assert process.stderr is not None
    buffer = b""
    async for piece in process.stderr:
        buffer += piece
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace")
            log.append(text)
            if "listening on " in text:
                ports.append(int(text.rpartition(":")[2]))
                started.set()
