"""Tokens to text through the whole gateway: split characters, ends, stop strings. Scripts are those of known bugs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from .harness import (
    ENDLESS,
    PATIENCE_S,
    TOKENSPEED,
    VLLM,
    Bench,
    chat_body,
    connect,
    events,
    open_gateway,
    post,
    read_until,
)

both = pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])


# ---- characters --------------------------------------------------------------------------------------------


TEXTS = [
    ('E["<0xF0>"|"<0x9F>"|"<0x98>"|"<0x80>"|" ok"|"<EOS>"]', "😀 ok"),
    ('E["<0xF0>","<0x9F>"|"<0x98>","<0x80>"," ok","<EOS>"]', "😀 ok"),
    ('E["a"|"<0xFF>"|"b"|"<EOS>"]', "a\ufffdb"),
    ('E["x"|"<0xE4>"] fin=length', "x\ufffd"),
    ('E["x"|"<0xE4>"|"<EOS>"]', "x\ufffd"),
    ('E["👨‍👩‍👧"|"!"|"<EOS>"]', "👨‍👩‍👧!"),
    ('E["<0xC5>"|"<0x99>"|"e"|"<0xE5>","<0x8C>"|"<0x97>"|"<EOS>"]', "ře北"),
    ("E[] fin=length", ""),
    ('E["<EOS>"]', ""),
    ('E["\\n"|"  "|"\\t"|"<EOS>"]', "\n  \t"),
    ('E["a"|"\\"quoted\\" \\\\ back"|"<EOS>"]', 'a"quoted" \\ back'),
    ('E["data: x"|"\\n\\n"|"data: [DONE]"|"\\n\\n"|"<EOS>"]', "data: x\n\ndata: [DONE]\n\n"),
    ('E["\u2028"|"\u0085"|"\\r"|"\\r\\n"|"\u0000"|"<EOS>"]', "\u2028\u0085\r\r\n\u0000"),
]


@both
async def test_characters_come_whole(tmp_path: Path, protocol: Any) -> None:
    words = "".join(says for says, _ in TEXTS)
    async with open_gateway(tmp_path, words=words, protocol=protocol, engine={"step_time_s": 0.001}) as bench:
        for says, text in TEXTS:
            bench.say(says)
            assert (await bench.chat_text())[0] == text, says
        await bench.wait_idle()
        assert bench.engine.aborts == []


async def test_no_delta_holds_half_a_character(tmp_path: Path) -> None:
    says = 'E["<0xF0>"|"<0x9F>"|"<0x98>"|"<0x80>"|" ok"|"<EOS>"]'
    async with open_gateway(tmp_path, says, engine={"step_time_s": 0.01}) as bench:
        stream = await bench.chat(stream=True)
        deltas = [chunk["choices"][0]["delta"].get("content") for chunk in events(stream.text)[:-1]]
        assert "".join(text or "" for text in deltas) == "😀 ok"
        assert deltas[1][0] == "😀"  # the steps of a busy machine may come in one delta


async def test_bytes_of_one_character_have_logprobs_of_their_own(tmp_path: Path) -> None:
    says = 'E["<0xF0>"|"<0x9F>"|"<0x98>"|"<0x80>"|"<EOS>"]'
    async with open_gateway(tmp_path, says, engine={"step_time_s": 0.005}) as bench:
        whole = (await bench.chat(logprobs=True, top_logprobs=1)).json()["choices"][0]["logprobs"]["content"]
        assert [entry["bytes"] for entry in whole[:4]] == [[0xF0], [0x9F], [0x98], [0x80]]
        assert [entry["token"] for entry in whole[:4]] == ["", "", "", "😀"]
        streamed = [
            entry
            for chunk in events((await bench.chat(logprobs=True, top_logprobs=1, stream=True)).text)[:-1]
            for entry in (chunk["choices"][0]["logprobs"] or {}).get("content", [])
        ]
        assert streamed == whole


# ---- ends ----------------------------------------------------------------------------------------------------


@both
async def test_the_reason_of_a_stop_is_the_client_s_own_or_none(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, 'E["Hi"|"<EOS>"]', protocol=protocol) as bench:
        _, choice = await bench.chat_text()
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
        hi = bench.model.id_of("Hi")
        text, choice = await bench.chat_text(stop_token_ids=[hi])
        assert (text, choice["finish_reason"], choice["stop_reason"]) == ("", "stop", hi)
        text, choice = await bench.chat_text(stop=["Hi"])
        assert (text, choice["finish_reason"], choice["stop_reason"]) == ("", "stop", "Hi")
        text, choice = await bench.chat_text(stop_token_ids=[hi], include_stop_str_in_output=True)
        assert (text, choice["stop_reason"]) == ("Hi", hi)


@both
async def test_further_end_tokens_of_the_model_are_no_stop_reason_either(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, 'E["Hi"|"<|endoftext|>"]', protocol=protocol) as bench:
        text, choice = await bench.chat_text()
        assert (text, choice["finish_reason"], choice["stop_reason"]) == ("Hi", "stop", None)


@both
async def test_the_end_token_s_text_is_never_shown_unasked(tmp_path: Path, protocol: Any) -> None:
    says = 'E["a"|"<|im_start|>"|"Hi","<EOS>"]'
    async with open_gateway(tmp_path, says, protocol=protocol) as bench:
        assert (await bench.chat_text())[0] == "aHi"
        assert (await bench.chat_text(skip_special_tokens=False))[0] == "a<|im_start|>Hi"
        shown = await bench.chat_text(skip_special_tokens=False, include_stop_str_in_output=True)
        assert shown[0] == "a<|im_start|>Hi<|im_end|>"


@both
async def test_max_tokens_ends_with_length(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, ENDLESS, protocol=protocol) as bench:
        text, choice = await bench.chat_text(max_tokens=5)
        assert (text, choice["finish_reason"], choice["stop_reason"]) == ("abbbb", "length", None)
        assert choice["usage"]["completion_tokens"] == 5
        await bench.wait_idle()
        assert bench.engine.aborts == []


# ---- stop strings ----------------------------------------------------------------------------------------------

STOPS = [
    ('E["ABC"|"DEF"|"G"|"HI"|"J"|"K"|…]', ["DEFGHIJ"], "ABC", "DEFGHIJ", 5),
    ('E["ABC"|"DEF"|"x"|…]', ["DE"], "ABC", "DE", 2),
    ('E["大"|"<0xE6>"|"<0xB5>"|"<0xB7>"|"X"|"风"|…]', ["海X"], "大", "海X", 5),
    ('E["a "|"hello"|" world"|" x"|…]', ["hello world"], "a ", "hello world", 3),
    ('E["ab"|"c"|"d"|…]', ["abcd", "abc"], "", "abc", 2),
    ('E["x"|"aab"|"y"|…]', ["ab", "b"], "xa", "ab", 2),
    ('E["a"|"a"|"a"|"b"|"c"|…]', ["aab"], "a", "aab", 4),
    ('E["one\\n\\ntwo"|"x"|…]', ["\n"], "one", "\n", 1),
]


NO_STOPS = [
    ('E["ABC"|"DE"|"F"] fin=length', ["DEX"], "ABCDEF"),
    ('E["ABC"|"DE"] fin=length', ["DEX"], "ABCDE"),
    ('E["ABC"|"DE"|"<EOS>"]', ["DEX"], "ABCDE"),
    ('E["大"|"<0xE6>"|"<0xB5>"|"<0xB7>"|"风"|"<EOS>"]', ["海X"], "大海风"),
    ('E["a"|"<0xE6>"|"<0xB5>"] fin=length', ["海X"], "a\ufffd"),
]


@both
async def test_a_stop_string_ends_the_answer_and_the_engine_s_work(tmp_path: Path, protocol: Any) -> None:
    words = "".join(case[0] for case in STOPS)
    async with open_gateway(tmp_path, words=words, protocol=protocol, engine={"step_time_s": 0.005}) as bench:
        for says, stop, text, matched, counted in STOPS:
            bench.say(says)
            found, choice = await bench.chat_text(stop=stop)
            assert (found, choice["finish_reason"], choice["stop_reason"]) == (text, "stop", matched), says
            assert choice["usage"]["completion_tokens"] == counted, says
            with_stop, _ = await bench.chat_text(stop=stop, include_stop_str_in_output=True)
            assert with_stop == text + matched, says
        await bench.wait_idle()
        ids = [request.request_id for request in bench.engine.received]
        with trio.fail_after(PATIENCE_S):
            await bench.engine.wait_until(lambda: len(bench.engine.aborts) >= len(ids))
        assert bench.engine.aborts == ids


@both
async def test_text_that_only_looked_like_a_stop_is_given_back(tmp_path: Path, protocol: Any) -> None:
    words = "".join(case[0] for case in NO_STOPS)
    async with open_gateway(tmp_path, words=words, protocol=protocol, engine={"step_time_s": 0.002}) as bench:
        for says, stop, text in NO_STOPS:
            bench.say(says)
            assert (await bench.chat_text(stop=stop))[0] == text, says
        await bench.wait_idle()
        assert bench.engine.aborts == []


async def test_a_stop_within_a_burst_of_tokens_counts_up_to_its_message(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["a"|"b",".","c","d"|"e"|…]', engine={"step_time_s": 0.01}) as bench:
        text, choice = await bench.chat_text(stop=["."], include_stop_str_in_output=True)
        assert (text, choice["stop_reason"]) == ("ab.", ".")


async def test_a_stop_in_the_last_message_wins_over_the_engine_s_own_end(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["a"|"b.c","<EOS>"]') as bench:
        text, choice = await bench.chat_text(stop=["."])
        assert (text, choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", ".")
        await bench.wait_idle()
        assert bench.engine.aborts == []  # it had ended there by itself


@both
async def test_min_tokens_holds_stops_back(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, 'E["a"|"."|"b"|"."|"c"|…]', protocol=protocol) as bench:
        text, choice = await bench.chat_text(stop=["."], min_tokens=3, max_tokens=20)
        assert (text, choice["finish_reason"], choice["stop_reason"]) == ("a.b", "stop", ".")
    (tmp_path / "2").mkdir()
    async with open_gateway(tmp_path / "2", 'E["a",".","b",".","c"|"d"|…]', protocol=protocol) as bench:
        text, _ = await bench.chat_text(stop=["."], min_tokens=3, max_tokens=20)
        assert text == "a.b"


async def test_the_abort_after_a_stop_string_is_prompt(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["a"|"b"|"."|"c"|…]', engine={"step_time_s": 0.005}) as bench:
        # A busy machine is slow now and then; the gateway may not be slow each time.
        delays: list[float] = []
        while min(delays, default=1) >= 0.1 and len(delays) < 10:
            delays.append(await _abort_delay(bench))
        assert min(delays) < 0.1, delays


async def _abort_delay(bench: Bench) -> float:
    before = len(bench.engine.aborts)
    async with await connect(bench.port) as stream:
        await stream.send_all(post("/v1/chat/completions", chat_body(stream=True, stop=["."])))
        with trio.fail_after(PATIENCE_S):
            await read_until(stream, b"[DONE]")
            ended = trio.current_time()
            await bench.engine.wait_until(lambda: len(bench.engine.aborts) > before)
    return trio.current_time() - ended


async def test_logprobs_of_tokens_whose_text_is_held_are_not_lost(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["A"|"D"|"E"|"F"|"<EOS>"]', engine={"step_time_s": 0.005}) as bench:
        streamed = [
            entry["token"]
            for chunk in events((await bench.chat(logprobs=True, stop=["DEX"], stream=True)).text)[:-1]
            for entry in (chunk["choices"][0]["logprobs"] or {}).get("content", [])
        ]
        assert streamed == ["A", "D", "E", "F", "<|im_end|>"]


async def test_the_stream_s_usage_after_an_engine_error_is_absent(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["a"|"b"] fin=error', engine={"step_time_s": 0.1}) as bench:
        stream = await bench.chat(stream=True, stream_options={"include_usage": True})
        found = events(stream.text)
        assert found[-1] == "[DONE]"
        assert "error" in found[-2]
        assert not any(chunk.get("usage") for chunk in found[:-1])
