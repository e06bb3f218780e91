"""``/workers`` on a running gateway: workers come, change and go, and nobody else notices."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import trio

from smg_trio.core.workers import WorkerState
from smg_trio.wire.addresses import parse_worker_url
from tests.waiting import until

from .answers import spelt
from .harness import ENDLESS, HELLO, MODEL, PATIENCE_S, SLOW, Bench, chat_body, events, open_gateway, worker_url
from .model import TestModel, tokens_named

CODES = {400: "BAD_REQUEST", 404: "WORKER_NOT_FOUND", 409: "WORKER_ALREADY_EXISTS"}


def refusal(answer: httpx.Response, status: int) -> str:
    """The text of a refusal; asserts the worker API's own shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error", "code"}
    assert body["code"] == CODES[status]
    return str(body["error"])


async def add(bench: Bench, url: str, **fields: Any) -> str:
    """Add a worker; its id."""
    answer = await bench.http.post("/workers", json={"url": url} | fields)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["worker_id"])


async def show(bench: Bench, worker_id: str) -> dict[str, Any]:
    answer = await bench.http.get(f"/workers/{worker_id}")
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


async def wait_status(bench: Bench, worker_id: str, status: str) -> dict[str, Any]:
    """Ask for the worker until it has that status."""
    with trio.fail_after(PATIENCE_S):
        while (value := await show(bench, worker_id))["status"] != status:
            await trio.lowlevel.checkpoint()
    return value


async def wait_gone(bench: Bench, worker_id: str) -> None:
    with trio.fail_after(PATIENCE_S):
        while (answer := await bench.http.get(f"/workers/{worker_id}")).status_code != 404:
            await trio.lowlevel.checkpoint()
    assert refusal(answer, 404) == f"Worker {worker_id} not found"


async def wait_freed(bench: Bench, url: str) -> None:
    """Wait until socket files and the handshake port of a worker are free."""
    port = int(parse_worker_url(url).handshake.rpartition(":")[2])
    await until(lambda: not (_files(url) or _taken(port)))


def _files(url: str) -> list[str]:
    """The socket files and the lock of a worker."""
    path = Path(parse_worker_url(url).path)
    return [file.name for file in path.parent.glob(f"{path.name}*") if file.suffix != ".json"]


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def connect_engine(bench: Bench, url: str, worker_id: str, says: str = HELLO, **options: Any) -> None:
    bench.start_engine(says, handshake=parse_worker_url(url).handshake, **options)
    await wait_status(bench, worker_id, "ready")


# ---- adding ------------------------------------------------------------------------------------------------


async def test_a_gateway_without_workers_takes_one_at_run_time(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, workers=0) as bench:
        assert (await bench.http.get("/readiness")).json()["reason"] == "insufficient healthy workers"
        assert (await bench.http.get("/workers")).json() == {
            "workers": [], "total": 0, "stats": {"prefill_count": 0, "decode_count": 0, "regular_count": 0},
        }  # fmt: skip
        assert (await bench.chat()).status_code == 503
        url = worker_url(tmp_path, "n")
        answer = await bench.http.post("/workers", json={"url": url})
        assert answer.status_code == 202
        body = answer.json()
        worker_id = body.pop("worker_id")
        assert answer.headers["location"] == f"/workers/{worker_id}"
        assert body == {
            "status": "accepted",
            "url": url,
            "location": f"/workers/{worker_id}",
            "message": "Worker addition queued for background processing",
        }
        assert (await show(bench, worker_id))["status"] == "pending"
        await connect_engine(bench, url, worker_id)
        assert (await bench.http.get("/readiness")).json() == {
            "status": "ready", "healthy_workers": 1, "total_workers": 1,
        }  # fmt: skip
        assert (await bench.chat_text())[0] == "Hello world"
        listed = (await bench.http.get("/workers")).json()
        assert listed["workers"] == [await show(bench, worker_id)]
        assert listed["stats"]["regular_count"] == 1
        await bench.wait_idle()


async def test_a_gateway_without_any_model_serves_the_model_that_a_worker_brings(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, workers=0, model_path=None, served_model_name=()) as bench:
        path, url = str(bench.model.directory), worker_url(tmp_path, "n")
        nameless = await wait_status(bench, await add(bench, url), "failed")
        assert nameless["status_reason"].startswith(f"ZMQ worker {url} has no model identity")
        worker_id = await add(bench, url, labels={"model_path": path, "model_id": MODEL})
        await connect_engine(bench, url, worker_id)
        assert [model["id"] for model in (await bench.http.get("/v1/models")).json()["data"]] == [MODEL]
        assert (await bench.chat_text())[0] == "Hello world"
        other = worker_url(tmp_path, "o")
        assert (await show(bench, await add(bench, other, labels={"model_path": path})))["model_id"] == path


async def test_every_field_of_a_zmq_worker_is_taken_and_its_key_is_never_shown(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, workers=1, connect=False) as bench:
        url = worker_url(tmp_path, "n")
        handshake = parse_worker_url(worker_url(tmp_path, "elsewhere")).handshake
        worker_id = await add(
            bench, url, runtime_type="tokenspeed", zmq_handshake_address=handshake, dp_size=2, model_id=MODEL,
            labels={"rack": "7", "tool_parser": "qwen"}, priority=7, cost=2.5, api_key="hush",
            health={"check_interval_secs": 5, "failure_threshold": 2, "drain_settle_secs": 1},
            overload={"waiting_requests": 3}, max_connection_attempts=3,
            resilience={"cb_failure_threshold": 4, "max_retries": 2, "disable_retry": False},
            worker_type="regular", connection_mode="zmq", a_field_of_next_year=[1],
        )  # fmt: skip
        for rank in range(2):
            bench.start_engine(HELLO, handshake=handshake, protocol="tokenspeed", rank=rank, group_size=2)
        value = await wait_status(bench, worker_id, "ready")
        expected = {
            "url": url, "runtime_type": "tokenspeed", "zmq_handshake_address": handshake, "dp_size": 2,
            "model_id": MODEL, "labels": {"rack": "7", "tool_parser": "qwen"}, "priority": 7, "cost": 2.5,
            "health": {"check_interval_secs": 5, "failure_threshold": 2, "drain_settle_secs": 1},
            "resilience": {"cb_failure_threshold": 4, "max_retries": 2, "disable_retry": False},
            "overload": {"waiting_requests": 3}, "worker_type": "regular", "connection_mode": "zmq",
            "is_healthy": True, "status": "ready", "load": 0,
        }  # fmt: skip
        assert {name: value[name] for name in expected} == expected
        assert [rank["status"] for rank in value["ranks"]] == ["ready", "ready"]
        assert (await bench.chat_text())[0] == "Hello world"
        assert "hush" not in (await bench.http.get("/workers")).text


async def test_a_second_model_comes_with_its_worker_and_requests_find_their_own(tmp_path: Path) -> None:
    second = TestModel(tmp_path / "second", tokens_named('E["other"|" words"]'))
    async with open_gateway(tmp_path, HELLO) as bench:
        url = worker_url(tmp_path, "n")
        worker_id = await add(bench, url, model_id="second", labels={"model_path": str(second.directory)})
        first = bench.engine
        says = bench.script(HELLO)
        bench.start_engine(says, handshake=parse_worker_url(url).handshake, vocab_size=second.vocab_size)
        value = await wait_status(bench, worker_id, "ready")
        assert value["model_id"] == str(second.directory)  # labels go before what the body names
        await bench.http.delete(f"/workers/{worker_id}")
        await wait_gone(bench, worker_id)
        labels = {"model_path": str(second.directory), "model_id": "second"}
        worker_id = await add(bench, url, labels=labels)
        value = await wait_status(bench, worker_id, "ready")
        assert value["model_id"] == "second"
        assert {"m", "second"} <= {model["id"] for model in (await bench.http.get("/v1/models")).json()["data"]}
        assert (await bench.chat_text())[0] == "Hello world"
        assert (await bench.chat(model="second")).status_code == 200
        assert len(first.received) == 2
        assert len(bench.engine.received) == 1
        assert (await bench.chat(model="third")).status_code == 404
        await bench.http.delete(f"/workers/{worker_id}")
        await wait_gone(bench, worker_id)
        assert (await bench.chat(model="second")).status_code == 404
        assert [model["id"] for model in (await bench.http.get("/v1/models")).json()["data"]] == [MODEL]
        third = worker_url(tmp_path, "t")
        assert (await show(bench, await add(bench, third)))["model_id"] == MODEL  # the gateway's own is the default


async def test_a_refused_registration_says_why_until_it_is_deleted(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        url = worker_url(tmp_path, "n")
        taken = parse_worker_url(bench.urls[0]).handshake
        cases: list[tuple[dict[str, Any], str]] = [
            ({"runtime_type": "sglang"}, f"ZMQ worker {url} has unsupported runtime sglang: only vllm and tokenspeed "
             "are supported over the ZMQ direct backend"),
            ({"runtime": "trtllm"}, f"ZMQ worker {url} has unsupported runtime trtllm"),
            ({"worker_type": "prefill"}, f"ZMQ worker {url} cannot serve worker type prefill: the direct-ZMQ backend"),
            ({"labels": {"model_path": str(tmp_path / "nowhere")}}, ""),
            ({"labels": {"tool_parser": "zzz"}}, f"worker {url} declares unknown tool_parser 'zzz' for model 'm'"),
            ({"labels": {"reasoning_parser": "zz"}}, f"worker {url} declares unknown reasoning_parser 'zz' for model"),
            ({"zmq_handshake_address": taken}, f"ZMQ worker {url} would bind handshake address {taken}, already "
             f"claimed by worker {bench.urls[0]}: the derived port is a hash of the ipc path"),
            ({"zmq_handshake_address": "ipc:///x"}, "zmq_handshake_address must be a tcp:// address (the engine dials "
             "a TCP handshake), got 'ipc:///x'"),
        ]  # fmt: skip
        ids: list[str] = []
        for fields, reason in cases:
            ids.append(await add(bench, url, **fields))
            value = await wait_status(bench, ids[-1], "failed")
            assert value["status_reason"].startswith(reason), value["status_reason"]
            assert value["status_reason"]
            assert value["is_healthy"] is False
            assert (await bench.http.get("/workers")).json()["total"] == 2
        for gone in ids[:-1]:  # each attempt takes the place of the one before it at the same URL
            assert refusal(await bench.http.get(f"/workers/{gone}"), 404)
        assert (await bench.http.delete(f"/workers/{ids[-1]}")).status_code == 202
        await wait_gone(bench, ids[-1])
        assert bench.worker.state is WorkerState.READY
        worker_id = await add(bench, url)
        await connect_engine(bench, url, worker_id)


async def test_what_is_wrong_with_a_body_is_said_at_once(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        url = worker_url(tmp_path, "n")
        wrong: list[tuple[Any, str]] = [
            ({}, "missing field `url`"),
            ({"url": "ftp://x"}, "Invalid value for field 'worker_url': ftp://x - URL must start with a lowercase"),
            ({"url": "ipc://"}, "ipc:// worker URL must include a socket path"),
            (
                {"url": "grpc://localhost:1"},
                "ZMQ worker URL must be ipc://<path> or tcp://<host>:<port>, got 'grpc://localhost:1'",
            ),
            ({"url": "http://u:p@localhost:1"}, "The worker URL 'http://localhost:1' must not hold a user"),
            ({"url": url, "runtime_type": "vlllm"}, ""),
            ({"url": url, "worker_type": "x"}, ""),
            ({"url": url, "dp_size": 0}, ""),
            ({"url": url, "dp_size": "two"}, ""),
            ({"url": url, "labels": {"a": 1}}, ""),
            ({"url": url, "health": {"check_interval_secs": 0}}, ""),
            ({"url": url, "priority": -1}, ""),
            ([], ""),
        ]
        for body, text in wrong:
            answer = await bench.http.post("/workers", json=body)
            assert answer.status_code == 400, body
            said = refusal(answer, 400)
            assert said.startswith(text), said
            assert said
        json_type = {"content-type": "application/json"}
        assert refusal(await bench.http.post("/workers", content=b"{", headers=json_type), 400)
        assert (await bench.http.get("/workers")).json()["total"] == 1


async def test_one_url_is_one_worker(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        first = bench.worker.spec.worker_id
        text = (
            f"Worker already exists at URL '{bench.urls[0]}' with ID {first}. "
            f"Use PUT /workers/{first} to replace or PATCH /workers/{first} to update."
        )
        assert refusal(await bench.http.post("/workers", json={"url": bench.urls[0]}), 409) == text
        url = worker_url(tmp_path, "n")
        answers: list[httpx.Response] = []

        async def post() -> None:
            answers.append(await bench.http.post("/workers", json={"url": url}))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(post)
        assert sorted(answer.status_code for answer in answers) == [202, 409, 409, 409, 409]
        assert (await bench.http.get("/workers")).json()["total"] == 2


async def test_unknown_and_malformed_ids_are_named(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        for method in ("GET", "PUT", "PATCH", "DELETE"):
            body = {"url": bench.urls[0]} if method == "PUT" else None if method in ("GET", "DELETE") else {}
            unknown = str(uuid4())
            answer = await bench.http.request(method, f"/workers/{unknown}", json=body)
            assert refusal(answer, 404) == f"Worker {unknown} not found"
            answer = await bench.http.request(method, "/workers/abc", json=body)
            assert refusal(answer, 400).startswith("Invalid worker_id 'abc' (expected UUID). Error: ")


async def test_the_worker_api_is_behind_the_key(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, api_key=("k",)) as bench:
        url, worker_id = worker_url(tmp_path, "n"), bench.worker.spec.worker_id
        for method, path in [("POST", "/workers"), ("DELETE", f"/workers/{worker_id}")]:
            body = {"url": url} if method == "POST" else None
            answer = await bench.http.request(method, path, json=body, headers={"authorization": "Bearer wrong"})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert len(bench.gateway.registry.workers()) == 1
        answer = await bench.http.post("/workers", json={"url": url}, headers={"authorization": "Bearer k"})
        assert answer.status_code == 202


# ---- changing ----------------------------------------------------------------------------------------------


async def read_stream(bench: Bench, texts: list[str], begun: trio.Event, **fields: Any) -> None:
    body = chat_body(stream=True) | fields
    async with bench.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        text = ""
        async for piece in answer.aiter_text():
            text += piece
            begun.set()
    texts.append(text)


async def test_patch_and_put_keep_the_connection_and_the_answer_in_flight(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW) as bench:
        worker_id, engine = bench.worker.spec.worker_id, bench.engine
        path = f"/workers/{worker_id}"
        texts: list[str] = []
        async with trio.open_nursery() as nursery:
            begun = trio.Event()
            nursery.start_soon(read_stream, bench, texts, begun)
            await begun.wait()
            patch = {"priority": 9, "cost": 0.5, "labels": {"a": "1"}, "health": {"failure_threshold": 5}}
            answer = await bench.http.patch(path, json=patch)
            assert answer.status_code == 202
            assert answer.json() == {
                "status": "accepted",
                "worker_id": worker_id,
                "message": "Worker update queued for background processing",
            }
            await bench.http.patch(path, json={"labels": {"b": "2"}})
            value = await show(bench, worker_id)
            assert value["labels"] == {"a": "1", "b": "2"}
            assert (value["priority"], value["cost"]) == (9, 0.5)
            assert value["health"] == {"failure_threshold": 5}
            answer = await bench.http.put(path, json={"url": bench.urls[0], "labels": {"c": "3"}})
            assert answer.status_code == 202, answer.text
            value = await show(bench, worker_id)
            assert (value["labels"], value["priority"], value["status"]) == ({"c": "3"}, 50, "ready")
            bench.engine.die(sentinel=False)  # only now does anything end
        assert "error" in events(texts[0])[-2]
        assert engine.exit_reason == "told to die"
        assert not engine.aborts


async def test_put_cannot_move_a_worker_and_refuses_what_post_refuses(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        path, url = f"/workers/{bench.worker.spec.worker_id}", worker_url(tmp_path, "n")
        said = refusal(await bench.http.put(path, json={"url": url}), 400)
        assert said == (
            f"URL mismatch: worker has URL '{bench.urls[0]}' but request body has '{url}'. URL changes are not "
            "supported via PUT. Use DELETE + POST instead."
        )
        said = refusal(await bench.http.put(path, json={"url": bench.urls[0], "runtime_type": "sglang"}), 400)
        assert "unsupported runtime sglang" in said
        assert refusal(await bench.http.patch(path, json={"priority": "high"}), 400)
        assert (await bench.chat_text())[0] == "Hello world"


async def test_put_with_other_engines_binds_anew_under_the_same_id(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        worker_id, old = bench.worker.spec.worker_id, bench.engine
        body = {"url": bench.urls[0], "runtime_type": "tokenspeed"}
        assert (await bench.http.put(f"/workers/{worker_id}", json=body)).status_code == 202
        value = await wait_status(bench, worker_id, "pending")
        assert value["runtime_type"] == "tokenspeed"
        bench.kill(old)
        bench.start_engine(HELLO, protocol="tokenspeed")
        await wait_status(bench, worker_id, "ready")
        assert (await bench.chat_text())[0] == "Hello world"


WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>'


async def change(bench: Bench, method: str = "PATCH", **labels: str) -> httpx.Response:
    body: dict[str, Any] = {"labels": labels}
    if method == "PUT":
        body["url"] = bench.urls[0]
    return await bench.http.request(method, f"/workers/{bench.worker.spec.worker_id}", json=body)


async def finish_reason(bench: Bench) -> str:
    answer = (await bench.chat(tools=[WEATHER])).json()
    return str(answer["choices"][0]["finish_reason"])


async def test_the_parser_that_a_label_names_anew_reads_the_next_answer(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, tool_call_parser="qwen") as bench:
        bench.say(spelt(bench, CALL))
        assert await finish_reason(bench) == "tool_calls"
        assert (await change(bench, tool_parser="deepseek", rack="1")).status_code == 202
        assert await finish_reason(bench) == "stop"
        assert (await change(bench, rack="2")).status_code == 202
        assert await finish_reason(bench) == "stop"
        said = refusal(await change(bench, tool_parser="zzz"), 400)
        assert said == f"worker {bench.urls[0]} declares unknown tool_parser 'zzz' for model 'm'"
        assert (await show(bench, bench.worker.spec.worker_id))["labels"] == {"tool_parser": "deepseek", "rack": "2"}
        assert (await change(bench, "PUT", rack="3")).status_code == 202  # without the label the setting holds again
        assert await finish_reason(bench) == "tool_calls"
        assert bench.worker.state is WorkerState.READY


async def test_files_that_a_label_names_anew_are_read_while_the_worker_goes_on(tmp_path: Path) -> None:
    other = TestModel(tmp_path / "other", [*tokens_named(HELLO), "padding", "more"])
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW) as bench:
        texts: list[str] = []
        async with trio.open_nursery() as nursery:
            begun = trio.Event()
            nursery.start_soon(partial(read_stream, bench, texts, begun, max_tokens=30))
            await begun.wait()
            refusal(await change(bench, model_path=str(tmp_path / "nowhere")), 400)
            assert (await change(bench, model_path=str(other.directory))).status_code == 202
        assert events(texts[0])[-1] == "[DONE]"
        [card] = (await bench.http.get("/v1/models")).json()["data"]
        assert (card["id"], card["root"]) == (MODEL, str(other.directory))
        assert bench.worker.spec.vocab_size == other.vocab_size
        assert (await bench.chat(max_tokens=3)).status_code == 200
        assert not bench.engine.aborts
        said = refusal(await change(bench, model_id="other"), 400)
        assert said.endswith("which PATCH does not do. Use PUT instead.")


# ---- removing ----------------------------------------------------------------------------------------------


async def test_delete_lets_the_answer_in_flight_end_and_takes_no_other(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW) as bench:
        worker_id = bench.worker.spec.worker_id
        texts: list[str] = []
        async with trio.open_nursery() as nursery:
            begun = trio.Event()
            nursery.start_soon(lambda: read_stream(bench, texts, begun, max_tokens=100))
            await begun.wait()
            answer = await bench.http.delete(f"/workers/{worker_id}")
            assert answer.status_code == 202
            assert answer.json()["message"] == "Worker removal queued for background processing"
            value = await show(bench, worker_id)
            assert (value["status"], value["load"], value["is_healthy"]) == ("draining", 1, False)
            assert (await bench.http.get("/readiness")).status_code == 503
            refused = await bench.chat()
            assert refused.status_code == 503
            assert "draining" in refused.json()["error"]["message"]
            assert (await bench.http.delete(f"/workers/{worker_id}")).status_code == 202
            assert not texts
        *chunks, done = events(texts[0])
        assert done == "[DONE]"
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        await wait_gone(bench, worker_id)
        await wait_freed(bench, bench.urls[0])
        assert not bench.engine.aborts
        assert (await bench.http.get("/workers")).json()["total"] == 0


async def test_a_drain_limit_of_zero_ends_answers_with_an_error(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW, disable_retries=True) as bench:
        worker_id = bench.worker.spec.worker_id
        await bench.http.patch(f"/workers/{worker_id}", json={"health": {"drain_settle_secs": 0}})
        texts: list[str] = []
        async with trio.open_nursery() as nursery:
            begun = trio.Event()
            nursery.start_soon(read_stream, bench, texts, begun)
            await begun.wait()
            await bench.http.delete(f"/workers/{worker_id}")
        *_, failure, done = events(texts[0])
        assert done == "[DONE]"
        assert failure["error"]["message"] == "the worker has been removed"
        await wait_freed(bench, bench.urls[0])
        with trio.fail_after(PATIENCE_S):
            await bench.engine.wait_until(lambda: len(bench.engine.aborts) == 1)
        await bench.wait_idle()


async def test_a_pending_worker_goes_at_once_and_its_place_is_free(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, workers=0) as bench:
        url = worker_url(tmp_path, "n")
        for _ in range(3):
            worker_id = await add(bench, url)
            await until(lambda: len(_files(url)) >= 3)
            assert (await bench.http.delete(f"/workers/{worker_id}")).status_code == 202
            assert (await bench.http.get(f"/workers/{worker_id}")).status_code == 404
        # At once, while the old one may still be closing its sockets.
        worker_id = await add(bench, url)
        await connect_engine(bench, url, worker_id)
        assert (await bench.chat_text())[0] == "Hello world"
        await bench.http.delete(f"/workers/{worker_id}")
        await wait_freed(bench, url)


async def test_a_handshake_in_progress_is_cancelled_by_a_delete(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        worker_id = bench.worker.spec.worker_id
        engine = bench.start_engine(HELLO, load_time_s=60.0)
        with trio.fail_after(PATIENCE_S):
            while (await show(bench, worker_id))["ranks"][0]["status"] != "loading":
                await trio.lowlevel.checkpoint()
        await bench.http.delete(f"/workers/{worker_id}")
        await wait_freed(bench, bench.urls[0])
        bench.kill(engine)


async def test_a_worker_that_comes_back_takes_its_living_engine_over(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        url, engine = bench.urls[0], bench.engine
        first = bench.worker.spec.worker_id
        await bench.http.delete(f"/workers/{first}")
        await wait_gone(bench, first)
        worker_id = await add(bench, url)
        assert worker_id != first
        await wait_status(bench, worker_id, "ready")
        assert (await bench.chat_text())[0] == "Hello world"
        assert len(engine.received) == 2
        assert engine.exit_reason is None
        await bench.wait_idle()


async def test_requests_go_to_the_others_while_workers_come_and_go(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, workers=2, policy="round_robin") as bench:
        kept, leaving = bench.gateway.registry.workers()
        statuses: list[int] = []

        async def ask() -> None:
            while bench.gateway.registry.workers()[-1] is leaving or len(statuses) < 45:
                statuses.append((await bench.chat()).status_code)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await bench.http.delete(f"/workers/{leaving.spec.worker_id}")
            await wait_gone(bench, leaving.spec.worker_id)
            worker_id = await add(bench, bench.urls[1])
            await wait_status(bench, worker_id, "ready")
        assert set(statuses) == {200}
        assert kept.state is WorkerState.READY
        await bench.wait_idle()
