"""What an engine says of a request that it ends with an error (vLLM since 0.33), as clients see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .harness import HELLO, HI, MODEL, Bench, error_of, events, open_gateway
from .scrape import scrape

NEW = {"version": "0.33.0"}
SOON = {"retry_initial_backoff_ms": 1.0}
PAUSED = "Generation is paused. Please retry after it resumes."
APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 3},
    "/generate": {"text": "hi"},
}
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def ask(bench: Bench, path: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    """Status and error object (or body) of an answer that has not begun."""
    answer = await bench.http.post(path, json={"model": MODEL, **APIS[path], **fields})
    assert answer.headers["content-type"] == "application/json", answer.text
    body = answer.json()
    return answer.status_code, body.get("error", body) if isinstance(body, dict) else body


@streams
@pytest.mark.parametrize(
    ("says", "status", "message"),
    [
        ("E[] fin=error(validation_error: the rule is no rule)", 400, "the rule is no rule"),
        ("E[] fin=error(internal: the worker lost it)", 500, "the worker lost it"),
        ("E[] fin=error(engine_paused, retryable: come back later)", 503, "come back later"),
    ],
)
async def test_the_engine_s_words_reach_the_client_with_their_status(
    tmp_path: Path, says: str, status: int, message: str, stream: bool
) -> None:
    async with open_gateway(tmp_path, says, engine=NEW, **SOON) as bench:
        for path in APIS:
            found, error = await ask(bench, path, stream=stream)
            assert (found, message in error["message"]) == (status, True), (path, error)
        await bench.wait_idle()
        asked = len(bench.engine.received)
        # Only what may go well another time is tried again.
        assert (asked > len(APIS)) == (status == 503)


async def test_an_error_after_the_first_token_is_an_event_with_the_engine_s_words(tmp_path: Path) -> None:
    says = 'E["a"|"b"] fin=error(engine_paused, retryable: come back later)'
    async with open_gateway(tmp_path, says, engine=NEW | {"step_time_s": 0.005}) as bench:
        answer = await bench.chat(stream=True, max_tokens=9, ignore_eos=True)
        *_, failure, done = events(answer.text)
        assert (failure["error"]["message"], failure["error"]["code"], done) == (
            "come back later",
            "engine_unavailable",
            "[DONE]",
        )
        assert len(bench.engine.received) == 1


async def test_a_paused_engine_s_requests_go_to_another_worker_and_speak_not_against_it(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, workers=2, engine=NEW, cb_failure_threshold=2, **SOON) as bench:
        workers = bench.gateway.registry.workers()
        await bench.http.post(f"/pause?worker_id={workers[0].spec.worker_id}")
        assert [call.method for call in bench.engines[0].record.utilities][-1] == "pause_generation"
        for path in [*APIS] * 4:
            assert (await ask(bench, path))[0] == 200, path
        assert bench.engines[0].record.finished == []
        assert len(bench.engines[0].received) > 2
        found = await scrape(bench)
        assert found.value("smg_worker_cb_state", worker=bench.urls[0]) == 0
        await bench.http.post(f"/pause?worker_id={workers[1].spec.worker_id}")
        for path in APIS:
            status, error = await ask(bench, path)
            assert (status, error["message"]) == (503, PAUSED), path
        await bench.http.post("/resume")
        for path in APIS:
            assert (await ask(bench, path))[0] == 200, path
        await bench.wait_idle()


@pytest.mark.parametrize(("version", "method"), [("0.32.0", "pause_scheduler"), ("0.33.0", "pause_generation")])
async def test_a_user_s_pause_is_the_method_of_that_version(tmp_path: Path, version: str, method: str) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"version": version}) as bench:
        assert (await bench.http.post("/pause?mode=keep")).status_code == 200
        assert (await bench.http.get("/is_paused")).json() == {"is_paused": True}
        call = [call for call in bench.engine.record.utilities if call.method.startswith("pause")]
        assert [(one.method, one.args) for one in call] == [(method, ("keep", True))]
        await bench.http.post("/resume")
        assert (await bench.chat()).status_code == 200


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
async def test_a_grammar_that_the_engine_cannot_compile_is_the_client_s_fault(tmp_path: Path, version: str) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"version": version}) as bench:
        error = error_of(await bench.chat(structured_outputs={"grammar": "no rule"}), 400)
        assert error["param"] == "structured_outputs"
        assert error["message"].startswith("Invalid structured outputs: ") == (version == "0.33.0")


async def test_pooling_is_refused_with_the_engine_s_words_too(tmp_path: Path) -> None:
    options = NEW | {"supported_tasks": ("embed",)}
    async with open_gateway(tmp_path, HELLO, workers=2, engine=options, **SOON) as bench:
        worker_id = bench.gateway.registry.workers()[0].spec.worker_id
        await bench.http.post(f"/pause?worker_id={worker_id}")
        for _ in range(4):
            assert (await bench.http.post("/v1/embeddings", json={"input": "hi"})).status_code == 200
        await bench.http.post("/pause")
        assert error_of(await bench.http.post("/v1/embeddings", json={"input": "hi"}), 503)["message"] == PAUSED
        await bench.wait_idle()
