"""SIGTERM on a gateway in a process of its own: not ready at once, drained within the limit, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import ConnectionClosed, open_websocket_url

from smg_trio.testing.commands import EngineRequest
from smg_trio.testing.notation import parse_script
from smg_trio.testing.script import Script, ScriptChooser
from tests.waiting import read_to_end

from .harness import (
    ENDLESS,
    HI,
    MODEL,
    PATIENCE_S,
    Process,
    TestModel,
    chat_body,
    connect,
    error_of,
    events,
    launched_gateway,
    open_gateway,
    post,
    read_until,
)

BIG = "x" * 2000
WORDS = f'E["{BIG}"|"a"|"b"|"<EOS>"]'


def by_seed(*notations: str) -> Callable[[TestModel], ScriptChooser]:
    """An engine that says the script whose number is the request's seed."""

    def choose(model: TestModel) -> ScriptChooser:
        scripts = [parse_script(notation, model.id_of) for notation in notations]

        def script_of(request: EngineRequest) -> Script:
            return scripts[request.seed or 0]

        return script_of

    return choose


async def stream_text(port: int, opened: trio.Event, **fields: Any) -> str:
    """The whole text of a streamed chat; `opened` is set at its first bytes."""
    text = ""
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, verify=False) as http,
        http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True, **fields)) as answer,
    ):
        async for piece in answer.aiter_text():
            text += piece
            opened.set()
    return text


def left_sockets(process: Process) -> list[Path]:
    return [path for path in Path(process.url.removeprefix("ipc://")).parent.iterdir() if path.is_socket()]


async def test_sigterm_drains_then_ends_the_rest_and_nobody_can_hold_it(tmp_path: Path) -> None:
    normal = "E[" + "|" * 150 + '"a"|"b"|"<EOS>"]'
    choose = by_seed(normal, ENDLESS, f'E["{BIG}"|…]')
    flags = ("--shutdown-grace-period-secs", "2")
    async with launched_gateway(tmp_path, words=WORDS, choose=choose, flags=flags) as (process, engine):
        texts: dict[str, str] = {}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{process.port}", verify=False) as http:
            assert (await http.get("/readiness")).status_code == 200
            async with trio.open_nursery() as nursery:
                opened = {name: trio.Event() for name in ("normal", "endless")}

                async def client(name: str, seed: int) -> None:
                    texts[name] = await stream_text(process.port, opened[name], seed=seed)

                nursery.start_soon(client, "normal", 0)
                nursery.start_soon(client, "endless", 1)
                stuck = await connect(process.port, receive_buffer=4096)
                await stuck.send_all(post("/v1/chat/completions", chat_body(stream=True, seed=2)))
                with trio.fail_after(PATIENCE_S):
                    await opened["endless"].wait()
                    requests = await engine.wait_received(3)
                process.signal()
                asked = trio.current_time()
                with trio.fail_after(1):
                    while (await http.get("/readiness")).status_code == 200:
                        await trio.lowlevel.checkpoint()
                assert (await http.get("/readiness")).json()["reason"] == "draining"
                assert (await http.get("/health")).status_code == 200
                refused = await http.post("/v1/chat/completions", json={"messages": HI})
                assert error_of(refused, 503)["code"] == "shutting_down"
            code = await process.wait(5)
            assert trio.current_time() - asked < 4.5
        assert code == 0
        *_, finish, done = events(texts["normal"])
        assert (finish["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")
        *_, failure, done = events(texts["endless"])
        assert (failure["error"]["code"], done) == ("shutting_down", "[DONE]")
        of_seed = {request.seed: request.request_id for request in requests}
        with trio.fail_after(PATIENCE_S):
            await engine.wait_aborted(of_seed[1])
        assert engine.aborts.count(of_seed[1]) == 1
        assert of_seed[0] not in engine.aborts
        assert of_seed[2] in engine.aborts or engine.in_flight == 0
        assert left_sockets(process) == []
        await stuck.aclose()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_gateway_ends_at_once_with_0(tmp_path: Path, number: signal.Signals) -> None:
    async with launched_gateway(tmp_path) as (process, engine):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{process.port}", verify=False) as http:
            answer = await http.post("/v1/chat/completions", json={"messages": HI})
            assert answer.json()["choices"][0]["message"]["content"] == "Hello world"
            process.signal(number)  # the client's idle connection must not hold it
            assert await process.wait(3) == 0
        assert left_sockets(process) == []
        assert engine.aborts == []
        assert not [line for line in process.log if "Traceback" in line or " ERROR " in line]


async def test_a_second_signal_ends_it_now_and_not_with_0(tmp_path: Path) -> None:
    async with launched_gateway(tmp_path, ENDLESS) as (process, engine):
        async with trio.open_nursery() as nursery:
            opened = trio.Event()

            async def client() -> None:
                with contextlib.suppress(httpx.HTTPError):
                    await stream_text(process.port, opened)

            nursery.start_soon(client)
            with trio.fail_after(PATIENCE_S):
                await opened.wait()
            process.signal()
            with trio.fail_after(PATIENCE_S):
                await _until_draining(process.port)
            process.signal()
            assert await process.wait(2) not in (0, None)
        with trio.fail_after(PATIENCE_S):
            await engine.wait_until(lambda: len(engine.aborts) == 1)
        assert left_sockets(process) == []


async def _until_draining(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=False) as http:
        while (await http.get("/readiness")).status_code == 200:
            await trio.lowlevel.checkpoint()


async def test_a_plain_answer_in_flight_is_finished_during_the_drain(tmp_path: Path) -> None:
    slow = "E[" + "|" * 100 + '"a"|"b"|"<EOS>"]'
    async with launched_gateway(tmp_path, slow) as (process, engine):
        async with await connect(process.port) as stream:
            await stream.send_all(post("/v1/chat/completions", chat_body()))
            with trio.fail_after(PATIENCE_S):
                await engine.wait_received()
            process.signal()
            answer = await read_to_end(stream)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b" 200 " in head
        assert json.loads(body)["choices"][0]["message"]["content"] == "ab"
        assert await process.wait(3) == 0
        assert engine.aborts == []


async def test_a_client_on_a_slow_line_gets_all_of_a_finished_answer(tmp_path: Path) -> None:
    """The engine has ended, the bytes are still on their way: that is an answer in flight too."""
    says = "E[" + ",".join([f'"{BIG}"'] * 4000) + '|"<EOS>"]'
    async with launched_gateway(tmp_path, says, flags=("--shutdown-grace-period-secs", "10")) as (process, _engine):
        stream = await connect(process.port, receive_buffer=4096)
        await stream.send_all(post("/v1/chat/completions", chat_body(), "Connection: close"))
        data = await read_until(stream, b"xxx")
        process.signal()
        ends = trio.current_time() + 2.0  # reads slowly, for longer than connections of nobody's are kept
        while trio.current_time() < ends:
            data += await stream.receive_some(16_384)
            with trio.move_on_after(0.05):
                await trio.sleep_forever()
        data += await read_to_end(stream)
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        assert len(body) == length
        assert await process.wait(5) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--backend", "sglang"), "ZMQ direct backend has no engine implementation for runtime sglang"),
        (("--worker-urls", "unix://x:1"), "URL must start with a lowercase"),
        (("--worker-urls", "grpc://x:1"), "ZMQ worker URL must be ipc://<path>"),
        (("--worker-urls", "ipc://"), "must include a socket path"),
        (("--port", "99999"), "--port"),
        (("--model-path", "/nowhere/at/all"), "/nowhere/at/all"),
        (("--max-payload-size", "0"), "--max-payload-size"),
        (("--api-key", ""), "--api-key"),
    ],
    ids=str,
)
async def test_wrong_settings_end_it_with_2_and_a_word(tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    import sys

    model = TestModel(tmp_path / "model")
    command = [
        sys.executable, "-m", "smg_trio", "launch", "--worker-urls", f"ipc://{tmp_path}/s/w", "--model-path",
        str(model.directory), "--port", "0", "--prometheus-port", "0", *flags,
    ]  # fmt: skip
    with trio.fail_after(PATIENCE_S):
        ended = await trio.run_process(command, check=False, capture_stderr=True)
    assert ended.returncode == 2, ended.stderr
    assert message.encode() in ended.stderr
    assert b"Traceback" not in ended.stderr


async def test_a_gateway_asked_to_end_in_this_process_leaves_no_answer(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.005}, shutdown_grace_period_secs=0.3) as bench:
        async with bench.http.stream(
            "POST", "/v1/chat/completions", json={"model": MODEL, "messages": HI, "stream": True}
        ) as answer:
            text = ""
            async for piece in answer.aiter_text():
                if not text:
                    bench.shutdown.ask()
                text += piece
        assert events(text)[-1] == "[DONE]"
        assert events(text)[-2]["error"]["code"] == "shutting_down"
        await bench.wait_idle()
        with trio.fail_after(PATIENCE_S):
            await bench.engine.wait_until(lambda: len(bench.engine.aborts) == 1)


async def test_an_idle_conversation_does_not_hold_the_gateway_and_a_turn_may_end(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, WORDS, shutdown_grace_period_secs=60.0, engine={"step_time_s": 0.2}) as bench:
        url = bench.base_url.replace("http", "ws", 1) + "/v1/responses"
        async with open_websocket_url(url) as idle, open_websocket_url(url) as busy:
            await busy.send_message(json.dumps({"type": "response.create", "model": MODEL, "input": "hi"}))
            assert json.loads(await busy.get_message())["type"] == "response.created"
            bench.shutdown.ask()
            with trio.fail_after(PATIENCE_S):
                for socket, last in ((idle, None), (busy, "response.completed")):
                    seen = None
                    with pytest.raises(ConnectionClosed) as closed:
                        while True:
                            seen = json.loads(await socket.get_message())["type"]
                    assert seen == last
                    assert closed.value.reason is not None
                    assert closed.value.reason.code == 1001
                await bench.ended.wait()
