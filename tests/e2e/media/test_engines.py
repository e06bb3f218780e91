"""Pictures and the engines behind the gateway: which one is asked, what it is sent, and what happens if that fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio

from smg_trio.media.expansion import Expanded
from smg_trio.pipeline import media as pipeline_media
from smg_trio.testing.script import HANG, FixedScript
from tests.e2e.harness import COUNTING, PATIENCE_S, Bench, error_of

from .vision import BLUE, RED, digests, image, open_vision_gateway, png, text, user

PICTURES = user(image(RED), text("?"))
WINDOWS = [png(112, 112, (shade, 0, 0)) for shade in range(0, 240, 20)]
"""Pictures of sixteen tokens."""
ERROR_FINISH = 3


async def dtypes(bench: Bench, engine: int) -> list[str]:
    """Of the pixels that an engine was sent, request by request."""
    requests = bench.engines[engine].received
    return [item.data["pixel_values"].array.dtype for request in requests for item in request.media if item.data]


async def test_engines_of_two_versions_get_each_its_own_form(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path, workers=2, connect=False, policy="round_robin") as bench:
        for worker, version in enumerate(("0.27.1", "0.32.0")):
            bench.start_engine(COUNTING, worker=worker, version=version)
            await bench.wait_ready(worker)
        for _ in range(4):
            assert (await bench.chat(messages=PICTURES, max_tokens=2)).status_code == 200
        assert await dtypes(bench, 0) == ["bfloat16"] * 2
        assert await dtypes(bench, 1) == ["uint8"] * 2


async def test_pictures_are_prepared_anew_for_an_engine_that_came_meanwhile(tmp_path: Path) -> None:
    """The first request keeps the second waiting; when its turn comes the engine is one that wants another form."""
    settings: dict[str, Any] = {"max_concurrent_requests": 1, "queue_size": 4, "queue_timeout_secs": 30}
    async with open_vision_gateway(
        tmp_path, 'E["<EOS>"|…]', engine={"version": "0.27.1"}, retry_max_retries=50, **settings
    ) as bench:
        engine = bench.engine
        bench.say(FixedScript((), HANG))
        answers: list[int] = []

        async def ask() -> None:
            answers.append((await bench.chat(messages=PICTURES, max_tokens=2)).status_code)

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await engine.wait_received(1)
                nursery.start_soon(ask)
                while not bench.gateway.admission.statistics().waiting:
                    await trio.lowlevel.checkpoint()
                engine.options = replace(engine.options, version="0.32.0")
                bench.say(COUNTING)
                engine.restart()
        assert answers == [200, 200]
        assert await dtypes(bench, 0) == ["bfloat16", "uint8", "uint8"]
        await bench.wait_idle()


async def test_an_engine_that_has_lost_a_picture_is_sent_it_again(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path) as bench:
        bench.say(FixedScript((), HANG))
        answers: list[int] = []

        async def ask() -> None:
            answers.append((await bench.chat(messages=PICTURES, max_tokens=2)).status_code)

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                [request] = await bench.engine.wait_received(1)
                bench.say(COUNTING)
                identifier = request.media[0].identifier
                output = [request.request_id, [], None, None, None, ERROR_FINISH, *[None] * 7, 0, [identifier]]
                bench.engine.send_raw([msgpack.packb([0, [output], None, 1.0])])
        assert answers == [200]
        assert len(bench.engine.received) == 2
        assert await dtypes(bench, 0) == ["uint8"] * 2


async def test_a_fault_of_ours_is_a_500_with_an_id_and_no_engine_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = pipeline_media.expand

    def shifted(*arguments: Any, **more: Any) -> Expanded:
        expanded = real(*arguments, **more)
        return replace(expanded, features=tuple(replace(one, length=one.length + 1) for one in expanded.features))

    async with open_vision_gateway(tmp_path) as bench:
        monkeypatch.setattr(pipeline_media, "expand", shifted)
        for stream in (False, True):
            answer = await bench.chat(messages=PICTURES, stream=stream)
            error = error_of(answer, 500)
            assert error["code"] == "internal_error"
            assert "vectors" not in error["message"], "what is wrong is for the log"
            [logged] = [record.message for record in caplog.records if "is not sent" in record.message]
            assert "5 places for 4 vectors" in logged
            assert logged.split()[1] in error["message"]
            caplog.clear()
        assert not bench.engine.received
        monkeypatch.undo()
        assert (await bench.chat(messages=PICTURES, max_tokens=2)).status_code == 200
        await bench.wait_idle()


@pytest.mark.parametrize("policy", ["cache_aware", "prefix_hash"])
async def test_the_same_pictures_go_to_the_same_engine(tmp_path: Path, policy: str) -> None:
    async with open_vision_gateway(tmp_path, workers=2, policy=policy) as bench:
        for _ in range(2):
            for window in WINDOWS:
                answer = await bench.chat(messages=user(image(window)), max_tokens=1)
                assert answer.status_code == 200, answer.text
        seen = [{digests(request)[0] for request in engine.received} for engine in bench.engines]
        assert all(seen), "all went to one engine"
        assert not seen[0] & seen[1]
        assert len(seen[0] | seen[1]) == len(WINDOWS)


async def test_an_engine_that_dies_of_others_requests_takes_no_picture_with_it(tmp_path: Path) -> None:
    """A retry needs the media again, and another engine has never seen them."""
    async with open_vision_gateway(tmp_path, workers=2, policy="round_robin") as bench:
        first = bench.engines[0]
        first.choose_script = lambda request: FixedScript((), HANG)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append((await bench.chat(messages=user(image(RED), image(BLUE)), max_tokens=3)).json())

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(ask)
                await first.wait_received(1)
                first.die()
        texts = {answer["choices"][0]["message"]["content"] for answer in answers}
        assert len(answers) == 2
        assert len(texts) == 1
        [asked] = {tuple(digests(request)) for engine in bench.engines for request in engine.received}
        assert len(asked) == 2


async def test_text_beside_pictures_is_answered_by_engines_that_were_never_asked(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path) as bench:
        assert (await bench.chat(max_tokens=2)).status_code == 200
        assert [call.method for call in bench.engine.utilities].count("collective_rpc") == 0
        for _ in range(3):
            assert (await bench.chat(messages=PICTURES, max_tokens=2)).status_code == 200
        assert [call.method for call in bench.engine.utilities].count("collective_rpc") == 1
