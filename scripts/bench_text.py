"""Cost of text: rendering and tokenizing prompts, and what becomes of a token between the engine and the client.

    python scripts/bench_text.py [--model-path DIR] [--json FILE]

Pure computing, no sockets; about ten seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from typing import TYPE_CHECKING

from bench.timing import Rows, cpu_us, parser
from smg_trio.api.chat_answer import ChatAnswer
from smg_trio.api.openai.chat.stream import ChatChunkWriter
from smg_trio.core.outputs import GenerationOutput, PositionLogprobs
from smg_trio.parsers.registry import make_answer_parser
from smg_trio.pipeline.decode import ChoiceDecoder, DecodeOptions
from smg_trio.text.detokenizer import Detokenizer
from smg_trio.text.model_files import ModelText, load_model_text

if TYPE_CHECKING:
    from smg_trio.parsers.answer import AnswerParser
    from smg_trio.text.chat_template import ChatTemplate
    from smg_trio.text.tokenizer import Tokenizer

DEMO_MODEL = Path(__file__).resolve().parents[1] / "smg_trio" / "testing" / "demo_model"
WORDS = "The wind over the sea carries salt and the cries of gulls, and in the evening it turns. "
TOKENS = 400


def render(template: ChatTemplate, messages: list[dict[str, str]]) -> str:
    """A prompt, as a request pays for it."""
    return template.render(template.fit(messages).messages)


def encode_by_library(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """What `Tokenizer.encode` does with a text that only the library knows how to cut."""
    ids: list[int] = tokenizer.backend.encode_batch_fast([prompt], add_special_tokens=False)[0].ids
    return ids


def encode_with_new_words(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Tokenizing where no word was met before."""
    assert tokenizer.words is not None, "the model's tokenizer is of a known kind"
    tokenizer.words.forget()
    return tokenizer.encode(prompt)


def measure_prompts(rows: Rows, text: ModelText) -> None:
    """Rendering and tokenizing, for three lengths."""
    for name, repeats in (("short", 1), ("1k words", 60), ("8k words", 470)):
        messages = [{"role": "user", "content": WORDS * repeats}]
        template = text.template_for(tools=False)
        assert template is not None, "the model has a chat template"
        prompt = render(template, messages)
        count = len(text.tokenizer.encode(prompt))
        rows.add(f"render, {name}", cpu_us(partial(render, template, messages)), "request")
        rows.add(f"tokenize, {name} ({count} tokens)", cpu_us(partial(text.tokenizer.encode, prompt)), "request")
        rows.add("  by the library", cpu_us(partial(encode_by_library, text.tokenizer, prompt)), "request")
        rows.add("  with nothing remembered", cpu_us(partial(encode_with_new_words, text.tokenizer, prompt)), "request")


def decode_streamed(
    tokenizer: Tokenizer, ids: Sequence[int], options: DecodeOptions, parser: AnswerParser | None, logprobs: bool
) -> None:
    """A streamed answer from outputs to bytes, a token at a time."""
    decoder = ChoiceDecoder(0, tokenizer, (), options, parser)
    writer = ChatChunkWriter(ChatAnswer(response_id="chatcmpl-1", model="demo", created=1, top_logprobs=5))
    for place, token_id in enumerate(ids):
        output = GenerationOutput([token_id])
        if logprobs:
            rivals = [ids[(place + step) % len(ids)] for step in range(5)]
            output.logprobs = [PositionLogprobs([token_id, *rivals], [-1.0] * 6, 1)]
        writer.update(decoder.push([output]))


def plain_streamed(tokenizer: Tokenizer, ids: Sequence[int]) -> None:
    """The same on the short way of plain text."""
    decoder = ChoiceDecoder(0, tokenizer, (), DecodeOptions())
    writer = ChatChunkWriter(ChatAnswer(response_id="chatcmpl-1", model="demo", created=1))
    for token_id in ids:
        writer.text(*decoder.push_plain([(0, GenerationOutput([token_id]))]) or ("", None))


def detokenize(tokenizer: Tokenizer, ids: Sequence[int]) -> None:
    """Detokenizing alone."""
    detokenizer = Detokenizer(tokenizer, ())
    for token_id in ids:
        detokenizer.push([token_id])


def measure_answers(rows: Rows, tokenizer: Tokenizer) -> None:
    """A token's cost, by what its request asked for."""
    ids = tokenizer.encode(WORDS * 40)[:TOKENS]
    plain, stops = DecodeOptions(), DecodeOptions(stop=("gulls over", "\n\n", "</end>"))
    tools = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}}
    count = len(ids)

    def add(what: str, options: DecodeOptions, parsed: bool = False, logprobs: bool = False) -> None:
        def work() -> None:
            answer_parser = make_answer_parser("qwen3", "qwen", tools, False) if parsed else None
            decode_streamed(tokenizer, ids, options, answer_parser, logprobs)

        rows.add(what, cpu_us(work, count), "token")

    rows.add("detokenize", cpu_us(lambda: detokenize(tokenizer, ids), count), "token")
    rows.add("output to bytes, plain", cpu_us(lambda: plain_streamed(tokenizer, ids), count), "token")
    add("output to bytes, as update", plain)
    add("output to bytes, stops", stops)
    add("output to bytes, reasoning and tool parser", plain, parsed=True)
    add("output to bytes, 5 logprobs", DecodeOptions(logprobs=5), logprobs=True)


def main() -> None:
    """Measure and show."""
    command_line = parser("CPU cost of text")
    command_line.add_argument("--model-path", type=Path, default=DEMO_MODEL, metavar="DIR")
    options = command_line.parse_args()
    text = load_model_text(options.model_path)
    rows = Rows()
    measure_prompts(rows, text)
    measure_answers(rows, text.tokenizer)
    rows.show(options.json)


if __name__ == "__main__":
    main()
