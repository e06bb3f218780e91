"""``smg-trio fake-engine``: one or more fake engines in one process, on real sockets.

A stand-in for ``vllm serve --headless`` in demos and a load generator in benchmarks. SIGTERM and SIGINT end it
without a goodbye to the gateway, like a real launcher; if one engine dies, the others of the group end too.
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING, Any

import trio

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import ConfigError
from smg_trio.hub.download import Progress
from smg_trio.hub.locating import Wanted, fetch, find
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.script import EchoScript, LengthScript, Script, ScriptChooser, text_script
from smg_trio.testing.vision import VisionModel

if TYPE_CHECKING:
    from smg_trio.testing.commands import EngineRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the ``fake-engine`` command to ``parser``."""

    def add(flag: str, **keywords: Any) -> None:
        if keywords.get("default") not in (None, ""):
            keywords["help"] += " (default: %(default)s)"
        parser.add_argument(flag, **keywords)

    add("--handshake", required=True, metavar="tcp://HOST:PORT", help="the gateway's handshake address")
    add("--protocol", choices=[protocol.value for protocol in EngineProtocol], default="vllm", help="what it speaks")
    add("--ranks", type=int, default=1, help="engines to run, as one data-parallel group")
    add("--lockstep", action="store_true", help="ranks run in waves, like a mixture-of-experts group (vLLM)")
    add("--engine-version", default="", help="version to pose as, for example 0.27.1")
    add("--step-ms", type=float, default=10.0, help="duration of a step; each step is one token per sequence")
    add("--prefill-ms", type=float, default=0.0, help="added to the step that admits a request")
    add("--prefill-token-us", type=float, default=0.0, help="added per prompt token that is not cached")
    add("--load-s", type=float, default=0.0, help="how long loading the model takes")
    add("--max-model-len", type=int, default=8192, help="context window, in tokens")
    add("--max-num-seqs", type=int, default=1024, help="sequences that run at once")
    add("--vocab-size", type=int, default=0, help="0: that of the tokenizer, or 32000")
    add("--eos-token-id", type=int, default=None, help="the model's EOS (TokenSpeed engines know their own)")
    add("--block-size", type=int, default=16, help="tokens per block of the KV cache")
    add("--vision", action="store_true", help="take pictures and video as a Qwen2-VL does; else it dies of them (vLLM)")
    add("--prefix-caching", action="store_true", help="report prefix cache hits")
    add("--no-stats", action="store_true", help="no load statistics on outputs")
    add("--tokens-per-step", type=int, default=1, help="tokens of a sequence per step")
    add("--crash-after-outputs", type=int, default=None, help="die with the sentinel after so many outputs")
    add("--answer", default="count", help="echo, count, E[...] notation, or a text (needs --model-path)")
    add("--model-path", default=None, help="directory or file with tokenizer.json, or a name on the hub (ORG/NAME)")


async def main(args: argparse.Namespace) -> int:
    """Run until a signal (0) or until an engine dies (1)."""
    tokenizer = await _load_tokenizer(args.model_path)
    choose_script = script_chooser(args.answer, tokenizer, tokens_per_step=args.tokens_per_step)
    deaths: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_on_signal, nursery.cancel_scope)
        for engine in _engines(args, tokenizer, choose_script):
            nursery.start_soon(_run_one, engine, deaths, nursery.cancel_scope)
    return 1 if deaths else 0


def script_chooser(answer: str, tokenizer: Any, *, tokens_per_step: int = 1) -> ScriptChooser:
    """What ``--answer`` means. Raises ConfigError if a tokenizer is missing or lacks a token."""
    if answer == "echo":
        return lambda request: EchoScript(tokens_per_tick=tokens_per_step)
    if answer == "count":
        return lambda request: LengthScript(tokens_per_tick=tokens_per_step)
    if tokenizer is None:
        raise ConfigError("--answer", "with a text needs --model-path (a directory with tokenizer.json).")
    if answer.startswith("E["):
        return _notation_chooser(answer, tokenizer)
    ids = tokenizer.encode(answer, add_special_tokens=False).ids

    def say_text(request: EngineRequest) -> Script:
        return text_script(ids, tokens_per_tick=tokens_per_step, eos_token_id=request.eos_token_id)

    return say_text


def _notation_chooser(answer: str, tokenizer: Any) -> ScriptChooser:
    from smg_trio.testing.notation import parse_script

    def token_id(text: str) -> int:
        known = tokenizer.token_to_id(text)
        ids = [known] if known is not None else tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) != 1:
            raise ConfigError("--answer", f"{text!r} is not one token of this tokenizer.")
        return int(ids[0])

    script = parse_script(answer, token_id)
    return lambda request: script


async def _load_tokenizer(model: str | None) -> Any:
    if model is None:
        return None
    from tokenizers import Tokenizer

    wanted = Wanted(text=model, only_tokenizer=True)
    found = await trio.to_thread.run_sync(find, wanted) or await fetch(wanted, Progress(model))
    file = found.path / "tokenizer.json" if found.path.is_dir() else found.path
    if not file.is_file():
        raise ConfigError(
            "--model-path", f"{file} is not a file.", "Name a tokenizer.json or a directory that has one."
        )
    return Tokenizer.from_file(str(file))


def _engines(args: argparse.Namespace, tokenizer: Any, choose_script: ScriptChooser) -> list[Any]:
    from smg_trio.testing.lockstep import LockstepGroup
    from smg_trio.testing.zmq_engine import zmq_engine

    group = LockstepGroup(args.ranks) if args.lockstep else None
    vocab_size = args.vocab_size or (tokenizer.get_vocab_size() if tokenizer is not None else 32000)
    return [
        zmq_engine(_options(args, rank, vocab_size), args.handshake, choose_script=choose_script, group=group)
        for rank in range(args.ranks)
    ]


def _options(args: argparse.Namespace, rank: int, vocab_size: int) -> EngineOptions:
    return EngineOptions(
        protocol=EngineProtocol(args.protocol),
        rank=rank,
        group_size=args.ranks,
        lockstep=args.lockstep,
        version=args.engine_version,
        max_model_len=args.max_model_len,
        vocab_size=vocab_size,
        eos_token_id=args.eos_token_id,
        max_num_seqs=args.max_num_seqs,
        block_size=args.block_size,
        vision=VisionModel() if args.vision else None,
        step_time_s=args.step_ms / 1000,
        prefill_time_s=args.prefill_ms / 1000,
        prefill_token_time_s=args.prefill_token_us / 1e6,
        prefix_caching=args.prefix_caching,
        stats=not args.no_stats,
        load_time_s=args.load_s,
        crash_after_outputs=args.crash_after_outputs,
    )


async def _run_one(engine: Any, deaths: list[str], scope: trio.CancelScope) -> None:
    rank = engine.options.rank
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_say_connected, engine)
        reason = await engine.run()
        nursery.cancel_scope.cancel()
    deaths.append(reason)
    print(f"fake engine {rank}: dead: {reason}", file=sys.stderr, flush=True)
    scope.cancel()


async def _say_connected(engine: Any) -> None:
    await engine.wait_connected()
    print(f"fake engine {engine.options.rank}: connected", file=sys.stderr, flush=True)


async def _cancel_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()
            return
