"""Cost of the parsers: microseconds per token while streaming, and linearity in the length of the text.

Run from the project root: ``python scripts/bench_parsers.py [--tokens N]``. Pure computing, no network.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from smg_trio.parsers.families import TOOL_PARSERS
from smg_trio.parsers.registry import make_answer_parser

if TYPE_CHECKING:
    from smg_trio.parsers.answer import AnswerParser

TOOLS = {"f": {"properties": {"a": {"type": "string"}, "b": {"type": "array"}}}}
CALLS = {
    "qwen": ('<tool_call>{"name":"f","arguments":{"a":"', '"}}</tool_call>'),
    "qwen_xml": ("<tool_call><function=f><parameter=a>", "</parameter></function></tool_call>"),
    "pythonic": ('[f(a="', '")]'),
    "kimik2": (
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a":"',
        '"}<|tool_call_end|><|tool_calls_section_end|>',
    ),
    "harmony": ('<|channel|>commentary to=functions.f<|message|>{"a":"', '"}<|call|>'),
}


def seconds(parser: AnswerParser, pieces: Sequence[str]) -> float:
    """Time to feed `pieces` one by one and finish."""
    began = time.perf_counter()
    for piece in pieces:
        parser.feed(piece)
    parser.finish()
    return time.perf_counter() - began


def report(what: str, make: Callable[[], AnswerParser], pieces: Sequence[str]) -> None:
    """One line: the best of three runs, per piece."""
    best = min(seconds(make(), pieces) for _ in range(3))
    print(f"{what:<44} {best / len(pieces) * 1e6:7.2f} us/token")


def bench_streaming(tokens: int) -> None:
    """Content, thought and arguments, a word per token."""
    words = ["word "] * tokens
    report("no parser: content", lambda: make_answer_parser(None, None), words)
    report("qwen3 + qwen: thought", lambda: make_answer_parser("qwen3", "qwen", TOOLS, True), words)
    report("qwen3 + qwen: content", lambda: make_answer_parser("qwen3", "qwen", TOOLS, False), words)
    for name in sorted(TOOL_PARSERS):
        report(f"{name}: content", lambda name=name: make_answer_parser(None, name, TOOLS), words)
    for name, (head, tail) in CALLS.items():
        pieces = [head, *words, tail]
        report(f"{name}: string argument", lambda name=name: make_answer_parser(None, name, TOOLS), pieces)


def bench_linearity() -> None:
    """Adversarial and long texts, at two sizes: the quotient of the costs should be the sizes' quotient."""
    for name, unit in (("qwen", "<"), ("qwen_xml", "<tool_call>"), ("llama", "{"), ("harmony", "<|channel|>")):
        small, large = (
            min(seconds(make_answer_parser("qwen3", name, TOOLS, False), [unit] * n) for _ in range(2))
            for n in (10_000, 100_000)
        )
        print(f"{name} fed {unit!r} x 100,000: {large:.2f} s, x 10 costs {large / small:.1f} times as much")
    megabyte = "word " * 200_000
    print(f"1 MB of content at once: {seconds(make_answer_parser('qwen3', 'qwen', TOOLS), [megabyte]):.4f} s")


def main() -> None:
    """Runs both parts."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tokens", type=int, default=20_000)
    bench_streaming(options.parse_args().tokens)
    bench_linearity()


if __name__ == "__main__":
    main()
