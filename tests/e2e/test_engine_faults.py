"""Engines that refuse, fail, die or fall silent: clients are told soon and rightly, and the next engine serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from smg_trio.core.workers import WorkerState

from .harness import (
    ENDLESS,
    HELLO,
    MODEL,
    PATIENCE_S,
    SLOW,
    TOKENSPEED,
    VLLM,
    Bench,
    chat_body,
    error_of,
    events,
    open_gateway,
)

both = pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])


async def test_an_error_finish_is_a_5xx_or_an_error_event_then_done(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["par"|"tial"] fin=error', engine={"step_time_s": 0.1}) as bench:
        error = error_of(await bench.chat(), 500)
        assert error["type"] == "server_error"
        stream = await bench.chat(stream=True)
        assert stream.status_code == 200
        *chunks, failure, done = events(stream.text)
        assert done == "[DONE]"
        assert set(failure["error"]) == {"message", "type", "param", "code"}
        assert not any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"])
        completions = events((await bench.completion(stream=True)).text)
        assert "error" in completions[-2]
        await bench.wait_idle()
        assert bench.engine.aborts == []
        assert bench.worker.state is WorkerState.READY
        bench.say('E["par"|"<EOS>"]')
        assert (await bench.chat_text())[0] == "par"


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_has_a_real_status(tmp_path: Path, protocol: Any, stream: bool) -> None:
    for number, says in enumerate(("E[] fin=error", "E[] fin=abort")):
        (tmp_path / str(number)).mkdir()
        async with open_gateway(tmp_path / str(number), says, words='"ok"', protocol=protocol) as bench:
            error_of(await bench.chat(stream=stream), 500)
            await bench.wait_idle()
            bench.say('E["ok"|"<EOS>"]')
            assert (await bench.chat_text())[0] == "ok"


async def test_an_abort_nobody_asked_for_is_an_error(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["par"|"t"] fin=abort', engine={"step_time_s": 0.1}) as bench:
        error_of(await bench.chat(), 500)
        assert "error" in events((await bench.chat(stream=True)).text)[-2]
        await bench.wait_idle()


async def test_one_failed_choice_of_several_fails_the_answer_and_aborts_the_others(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, words='E["x"]', engine=SLOW) as bench:
        scripts = [bench.script('E["x"] fin=error'), bench.script(ENDLESS)]
        bench.say(lambda request: scripts[min(1, request.seed or 0)](request))
        error_of(await bench.chat(n=3, seed=0), 500)
        await bench.wait_idle()
        first, *others = [request.request_id for request in bench.engine.received]
        with trio.fail_after(PATIENCE_S):
            await bench.engine.wait_until(lambda: len(bench.engine.aborts) >= 2)
        assert sorted(bench.engine.aborts) == sorted(others)
        assert first not in bench.engine.aborts


async def open_streams(bench: Bench, count: int, nursery: trio.Nursery, texts: list[str]) -> None:
    """Open streams and return once each has had its first bytes; their texts are added as they end."""
    opened = [trio.Event() for _ in range(count)]

    async def one(event: trio.Event) -> None:
        body = chat_body(stream=True)
        async with bench.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            text = ""
            async for piece in answer.aiter_text():
                text += piece
                event.set()
        texts.append(text)

    for event in opened:
        nursery.start_soon(one, event)
    with trio.fail_after(PATIENCE_S):
        for event in opened:
            await event.wait()


@both
@pytest.mark.parametrize("goodbye", [False, True])
async def test_an_engine_s_death_ends_all_its_answers_within_a_second(
    tmp_path: Path, protocol: Any, goodbye: bool
) -> None:
    async with open_gateway(tmp_path, ENDLESS, protocol=protocol, engine=SLOW) as bench:
        texts: list[str] = []
        failed: list[httpx.Response] = []

        async def whole() -> None:
            failed.append(await bench.chat())

        async with trio.open_nursery() as nursery:
            await open_streams(bench, 5, nursery, texts)
            for _ in range(5):
                nursery.start_soon(whole)
            with trio.fail_after(PATIENCE_S):
                await bench.engine.wait_received(10)
            died = trio.current_time()
            if goodbye:
                bench.engine.die()
            else:
                bench.kill(bench.engine)
        assert trio.current_time() - died < 1.0
        for text in texts:
            *_, failure, done = events(text)
            assert done == "[DONE]"
            assert failure["error"]["code"] == "engine_dead"
            assert failure["error"]["type"] == "server_error"
        assert len(texts) == 5
        assert {error_of(answer, 503)["code"] for answer in failed} <= {"engine_dead", "no_available_workers"}
        assert len(failed) == 5
        await bench.wait_idle()
        assert (await bench.http.get("/readiness")).status_code == 503
        assert error_of(await bench.chat(), 503)["code"] == "no_available_workers"
        assert [model["id"] for model in (await bench.http.get("/v1/models")).json()["data"]] == [MODEL]
        bench.start_engine('E["a"|"<EOS>"]')
        await bench.wait_ready()
        assert (await bench.http.get("/readiness")).status_code == 200
        assert (await bench.chat_text())[0] == "a"


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_death_before_the_first_token_is_a_503(tmp_path: Path, protocol: Any, stream: bool) -> None:
    async with open_gateway(tmp_path, "E[] fin=hang", protocol=protocol) as bench:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                error = error_of(await bench.chat(stream=stream), 503)
                assert error["code"] in ("engine_dead", "no_available_workers")
                assert "the engine closed its connection" in error["message"]

            nursery.start_soon(ask)
            with trio.fail_after(PATIENCE_S):
                await bench.engine.wait_received()
            bench.kill(bench.engine)
        await bench.wait_idle()


@both
async def test_engines_come_and_go_and_come_again(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol) as bench:
        for goodbye in (True, False, True):
            assert (await bench.chat_text())[0] == "Hello world"
            if goodbye:
                bench.engine.die()
            else:
                bench.kill(bench.engine)
            with trio.fail_after(PATIENCE_S):
                await bench.worker.wait_state(WorkerState.NOT_READY)
            bench.start_engine(HELLO)
            await bench.wait_ready()
        assert (await bench.chat_text())[0] == "Hello world"


async def test_requests_of_a_silent_engine_go_to_another_and_the_others_are_not_delayed(tmp_path: Path) -> None:
    async with open_gateway(
        tmp_path, HELLO, workers=2, engine_silence_secs=1, policy="round_robin", engine=SLOW
    ) as bench:
        silent, good = bench.engines
        silent.go_silent()
        outcomes: list[tuple[int, float]] = []

        async def ask() -> None:
            asked = trio.current_time()
            answer = await bench.chat()
            outcomes.append((answer.status_code, trio.current_time() - asked))

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(ask)
        assert [status for status, _ in outcomes] == [200] * 6
        took = sorted(seconds for _, seconds in outcomes)
        assert all(seconds < 0.9 for seconds in took[:3])
        assert all(0.9 < seconds < PATIENCE_S for seconds in took[3:])
        states = [worker.state for worker in bench.gateway.registry.workers()]
        assert states == [WorkerState.NOT_READY, WorkerState.READY]
        for _ in range(4):
            assert (await bench.chat()).status_code == 200
        assert len(good.received) == 10
        await bench.wait_idle()


async def test_an_idle_engine_may_be_silent_for_ever(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine_silence_secs=0.2) as bench:
        assert (await bench.chat()).status_code == 200
        with trio.move_on_after(0.6):
            await bench.worker.wait_state(WorkerState.NOT_READY)
        assert bench.worker.state is WorkerState.READY
        assert (await bench.chat()).status_code == 200


async def test_a_long_prefill_beside_a_stream_is_no_silence(tmp_path: Path) -> None:
    async with open_gateway(
        tmp_path, ENDLESS, words='E["z"]', engine_silence_secs=0.4, engine={"step_time_s": 0.02}
    ) as bench:
        slow = bench.script("E[" + "|" * 60 + '"z"|"<EOS>"]')
        usual = bench.engine.choose_script
        bench.say(lambda request: slow(request) if request.seed == 7 else usual(request))
        async with trio.open_nursery() as nursery:
            texts: list[str] = []
            await open_streams(bench, 1, nursery, texts)
            answer = await bench.chat(seed=7)
            assert answer.json()["choices"][0]["message"]["content"] == "z"
            nursery.cancel_scope.cancel()
        await bench.wait_idle()


async def test_garbage_between_good_messages_harms_nothing_and_much_of_it_ends_the_engine(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["a"|"b"|…]', engine={"step_time_s": 0.02}) as bench:
        async with trio.open_nursery() as nursery:
            texts: list[str] = []
            await open_streams(bench, 1, nursery, texts)
            bench.engine.send_garbage()
            await bench.engine.wait_until(lambda: bench.engine.record.tokens > 5)
            assert not texts
            with trio.fail_after(1):
                while not texts:
                    bench.engine.send_garbage(3)
                    await trio.testing.wait_all_tasks_blocked(0.005)
        assert "error" in events(texts[0])[-2]


async def test_fields_of_a_newer_engine_change_nothing(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"extra_fields": 3}) as bench:
        assert (await bench.chat_text())[0] == "Hello world"


@both
async def test_an_answer_that_takes_too_long_is_ended_and_aborted(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, ENDLESS, protocol=protocol, engine=SLOW, request_timeout_secs=0.7) as bench:
        assert error_of(await bench.chat(), 504)["code"] == "request_timeout"
        *_, failure, done = events((await bench.chat(stream=True)).text)
        assert (failure["error"]["code"], done) == ("request_timeout", "[DONE]")
        await bench.wait_idle()
        with trio.fail_after(PATIENCE_S):
            await bench.engine.wait_until(lambda: len(bench.engine.aborts) == 2)
        bench.say("E[] fin=hang")
        assert error_of(await bench.chat(stream=True), 504)["code"] == "request_timeout"


@both
async def test_an_engine_that_reads_nothing_counts_as_silent(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol, engine_silence_secs=0.3) as bench:
        bench.engine.stop_reading()
        answer = await bench.chat()
        if answer.status_code == 200:  # the message that its reader was already waiting for
            answer = await bench.chat()
        assert error_of(answer, 503)["code"] == "engine_silent"
        assert bench.worker.state is WorkerState.NOT_READY
        assert (await bench.http.get("/readiness")).status_code == 503
        await bench.wait_idle()
        bench.kill(bench.engine)
        bench.start_engine(HELLO)
        await bench.wait_ready()
        assert (await bench.chat()).status_code == 200


async def test_an_engine_that_has_hung_up_its_input_is_not_waited_for(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        bench.engine.close_input()
        with trio.fail_after(1):
            assert error_of(await bench.chat(), 503)["code"] in ("engine_dead", "no_available_workers")
        await bench.wait_idle()


async def test_a_token_outside_the_tokenizer_s_vocabulary_is_no_text(tmp_path: Path) -> None:
    from smg_trio.testing.script import FixedScript

    async with open_gateway(tmp_path, HELLO, engine={"vocab_size": 10**6}) as bench:
        bench.say(FixedScript([[500_000], [bench.model.id_of("Hel")], [2**31 - 1], [bench.model.id_of("<EOS>")]]))
        assert (await bench.chat_text())[0] == "Hel"
        answer = await bench.chat(logprobs=True, top_logprobs=3)
        assert answer.status_code == 200
        assert len(answer.json()["choices"][0]["logprobs"]["content"]) == 4


async def test_the_time_limit_holds_also_between_two_attempts(tmp_path: Path) -> None:
    async with open_gateway(
        tmp_path,
        "E[] fin=hang",
        workers=2,
        policy="round_robin",
        request_timeout_secs=0.5,
        retry_initial_backoff_ms=600,
        retry_jitter_factor=0.0,
    ) as bench:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    assert error_of(await bench.chat(), 504)["code"] == "request_timeout"

                nursery.start_soon(ask)
                await bench.engines[0].wait_received()
                bench.kill(bench.engines[0])
        await bench.wait_idle()
        assert bench.engines[1].received == []
