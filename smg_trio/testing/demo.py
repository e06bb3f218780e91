"""``python -m smg_trio demo``: gateway, fake engine and the bundled tiny model in one process, on real sockets.

The engine has no weights: it answers every chat with a sentence about itself and the words it was sent.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from smg_trio.core.workers import WorkerState
from smg_trio.gateway.run import RunningGateway, run_gateway
from smg_trio.settings.settings import Settings
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.script import Script, text_script
from smg_trio.testing.zmq_engine import run_fake_engine
from smg_trio.text.model_files import ModelText, load_model_text
from smg_trio.wire.addresses import parse_worker_url

if TYPE_CHECKING:
    from smg_trio.testing.commands import EngineRequest

DEMO_MODEL = Path(__file__).parent / "demo_model"
"""The bundled model: a tokenizer trained on this project's own text, a template, no weights."""
DEMO_NAME = "demo"


def demo_script(text: ModelText) -> Callable[[EngineRequest], Script]:
    """What the demo engine says to a request: who it is, and the last turn it was sent."""
    eos = text.eos_token_ids[0]

    def choose(request: EngineRequest) -> Script:
        prompt = text.tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
        said = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0].strip()
        answer = (
            f"Hello from the smg-trio demo engine! I have no weights, but the whole way here is real. You said: {said}"
        )
        return text_script(text.tokenizer.encode(answer), eos_token_id=eos)

    return choose


async def run_demo(host: str, port: int, prometheus_port: int, step_s: float) -> int:
    """Run until a signal; the exit code is the gateway's."""
    text = await trio.to_thread.run_sync(load_model_text, DEMO_MODEL)
    with tempfile.TemporaryDirectory(prefix="smg-trio-demo-") as directory:
        url = f"ipc://{directory}/engine-0"
        settings = Settings(
            worker_urls=(url,),
            backend="vllm",
            model_path=str(DEMO_MODEL),
            served_model_name=(DEMO_NAME,),
            host=host,
            port=port,
            prometheus_host="127.0.0.1",
            prometheus_port=prometheus_port,
            shutdown_grace_period_secs=10.0,
        )
        options = EngineOptions(
            vocab_size=text.tokenizer.vocab_size, max_model_len=text.context_length or 8192, step_time_s=step_s
        )
        exit_code = 0
        async with trio.open_nursery() as nursery:

            async def gateway(*, task_status: trio.TaskStatus[RunningGateway]) -> None:
                nonlocal exit_code
                exit_code = await run_gateway(settings, watch_signals=True, task_status=task_status)
                nursery.cancel_scope.cancel()

            running: RunningGateway = await nursery.start(gateway)
            handshake = parse_worker_url(url).handshake
            nursery.start_soon(_run_engine, options, handshake, demo_script(text))
            await _say_ready(running)
        return exit_code


async def _run_engine(options: EngineOptions, handshake: str, choose: Callable[[EngineRequest], Script]) -> None:
    await run_fake_engine(options, handshake, choose_script=choose)


async def _say_ready(running: RunningGateway) -> None:
    worker = running.gateway.registry.workers()[0]
    await worker.wait_state(WorkerState.READY)
    host, port = running.server.addresses[0][:2]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared
    print(
        f"Ready on http://{shown}:{port} (live page: /dashboard, metrics: port {running.metrics_server.port}). Try:\n\n"
        f"  curl -N http://{shown}:{port}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f'    -d \'{{"model": "{DEMO_NAME}", "stream": true, "messages": [{{"role": "user", "content": "Hi!"}}]}}\'\n\n'
        "Stop with Ctrl-C.",
        flush=True,
    )
