"""What is fuzzed: functions of bytes that raise where the product breaks its word, and only there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any

import h11

from smg_trio.api.anthropic.messages import parse_count_tokens_request, parse_messages_request
from smg_trio.api.errors import MalformedJson, load_json
from smg_trio.api.generate import parse_generate_request
from smg_trio.api.openai.chat.request import parse_chat_request
from smg_trio.api.openai.completions.request import parse_completion_request
from smg_trio.api.openai.embeddings import parse_embeddings_request
from smg_trio.api.openai.responses.request import parse_responses_request
from smg_trio.api.openai.responses.socket import parse_socket_message
from smg_trio.api.openai.responses.stored import parse_conversation_request
from smg_trio.api.parse_tools import parse_function_call_request, parse_reasoning_request
from smg_trio.api.pooling import parse_classify_request, parse_rerank_request, parse_score_request
from smg_trio.api.tokenize import (
    parse_detokenize_batch_request,
    parse_detokenize_request,
    parse_tokenize_request,
    parse_tokenize_texts_request,
)
from smg_trio.api.worker_specs import parse_worker_body
from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import ClientFault, ProtocolViolation
from smg_trio.core.heavy_json import MAX_DEPTH, decode_heavy
from smg_trio.http.faults import RequestFault
from smg_trio.http.h1.framing import ChunkedBody, HeadFinder
from smg_trio.http.h1.head import read_head
from smg_trio.http.h1.parsers import HeadParser
from smg_trio.http.settings import ServerLimits
from smg_trio.parsers.families import TOOL_PARSERS
from smg_trio.parsers.reasoning.families import REASONING_FORMATS
from smg_trio.parsers.registry import make_answer_parser
from smg_trio.wire.codec import codec_for
from smg_trio.wire.handshake import decode_handshake, decode_registration, rank_of_identity
from tests.golden.loading import TOKENSPEED_VERSIONS, VLLM_VERSIONS, vectors
from tests.http.h1.h11_heads import H11HeadParser
from tests.parsers.sweep import corpus, run

from .choices import Choices, mutated
from .seeds import SEEDS

PARSERS: dict[str, Callable[[bytes], Any]] = {
    "/v1/chat/completions": parse_chat_request,
    "/v1/completions": parse_completion_request,
    "/v1/messages": parse_messages_request,
    "/v1/messages/count_tokens": parse_count_tokens_request,
    "/v1/responses": parse_responses_request,
    "/v1/conversations": parse_conversation_request,
    "/generate": parse_generate_request,
    "/v1/embeddings": parse_embeddings_request,
    "/v1/score": parse_score_request,
    "/v1/rerank": parse_rerank_request,
    "/classify": parse_classify_request,
    "/tokenize": parse_tokenize_request,
    "/detokenize": parse_detokenize_request,
    "/v1/tokenize": parse_tokenize_texts_request,
    "/v1/detokenize": parse_detokenize_batch_request,
    "/parse/function_call": parse_function_call_request,
    "/parse/reasoning": parse_reasoning_request,
    "/workers": parse_worker_body,
}
LIMITS = ServerLimits()
_BLANK_EXTENSION = re.compile(rb"[0-9A-Fa-f][ \t]+;")


def some_body(choices: Choices) -> tuple[str, bytes]:
    """An endpoint and a body that was valid for it before it was mutated."""
    path = choices.one_of(sorted(SEEDS))
    value = mutated(choices.one_of(SEEDS[path]), choices)
    return path, json.dumps(value).encode()


def bodies(data: bytes) -> None:
    """Whatever a body holds, reading it returns or says what is wrong."""
    path, body = some_body(Choices(data))
    for parse in (PARSERS[path], parse_socket_message):
        with suppress(ClientFault):
            parse(body)


def json_texts(data: bytes) -> None:
    """What is no JSON is refused, and heavy bodies are read as light ones are."""
    try:
        light: Any = load_json(data)
    except MalformedJson:
        light = MalformedJson
    try:
        text = data.decode()
        heavy = decode_heavy(text + " " * 70_000, json.JSONDecoder(), MAX_DEPTH)
    except (ValueError, RecursionError):
        return
    if light is not MalformedJson:
        assert heavy == light


@cache
def _frames() -> list[tuple[EngineProtocol, list[bytes]]]:
    """Messages of real engines, by the protocol they speak."""
    made = []
    for protocol, folders in ((EngineProtocol.VLLM, VLLM_VERSIONS), (EngineProtocol.TOKENSPEED, TOKENSPEED_VERSIONS)):
        for prefix in ("out_", "hs_", "registration"):
            made += [(protocol, vector.frames) for vector in vectors(prefix, folders)]
    return made


def wire(data: bytes) -> None:
    """Whatever frames come, decoding them returns or raises the one error that callers know."""
    choices = Choices(data)
    protocol, frames = choices.one_of(_frames())
    frames = [_spoilt(frame, choices) for frame in frames]
    if choices.below(4) == 0:
        frames.append(choices.rest())
    decode: list[Callable[[], Any]] = [
        lambda: codec_for(protocol).decode_outputs(frames),
        lambda: decode_handshake(frames[0]),
        lambda: decode_registration(frames[0], protocol),
        lambda: rank_of_identity(frames[0]),
    ]
    for one in decode:
        with suppress(ProtocolViolation):
            one()


def _spoilt(frame: bytes, choices: Choices) -> bytes:
    made = bytearray(frame)
    for _ in range(choices.below(6)):
        if not made:
            break
        at = choices.below(min(len(made), 65_536))
        way = choices.below(4)
        if way == 0:
            made[at] = choices.below(256)
        elif way == 1:
            del made[at : at + 1 + choices.below(8)]
        elif way == 2:
            made[at:at] = bytes([choices.one_of([0xC1, 0xDD, 0xDF, 0xC9, 0xD9, 0xFF, 0x80, 0x90, 0xA0])])
        else:
            made[at] ^= 1 << choices.below(8)
    return bytes(made)


@cache
def _said(kind: str) -> list[tuple[str, str]]:
    """Texts of models, each with the name of a parser."""
    names = TOOL_PARSERS if kind == "tool_calls" else REASONING_FORMATS
    return [(data["format"], sample["text"]) for data, sample in corpus(kind) if data["format"] in names]


def parsers(data: bytes) -> None:
    """No text makes a parser raise, and it reads the same whole and cut anywhere."""
    choices = Choices(data)
    kind = choices.one_of(["tool_calls", "reasoning"])
    name, text = choices.one_of(_said(kind))
    text = _spliced(text, _said(kind), choices)
    reasoning, tool = (None, name) if kind == "tool_calls" else (name, None)

    def make() -> Any:
        return make_answer_parser(reasoning, tool, {"get_weather": {"type": "object"}})

    bounds = sorted({0, len(text), *(choices.below(1 + len(text) % 60_000) for _ in range(6))})
    whole = run(make(), [text])
    assert run(make(), [text[start:end] for start, end in pairwise(bounds)]) == whole
    assert run(make(), list(text)) == whole


def _spliced(text: str, others: list[tuple[str, str]], choices: Choices) -> str:
    for _ in range(1 + choices.below(4)):
        at, end = choices.below(1 + len(text) % 60_000), choices.below(1 + len(text) % 60_000)
        other = choices.one_of(others)[1]
        start = choices.below(1 + len(other) % 60_000)
        piece = other[start : start + choices.below(40)]
        inserted = choices.one_of(["", "{", "}", '"', "\\", "<", "\n", "\ud800", piece])
        text = text[:at] + inserted + text[max(at, end) :]
    return text[:4000]


def heads(data: bytes) -> None:
    """A head that is taken is what an independent parser takes it for; and h11 in place of our parser takes it too."""
    finder = HeadFinder(buffer := bytearray(data), LIMITS.max_header_bytes)
    try:
        raw = finder.take()
    except RequestFault:
        return
    if raw is None:
        return
    read = []
    for parser in (H11HeadParser(), HeadParser()):
        try:
            head = read_head(raw, parser, LIMITS)
            # h11 writes this one value in lower case, whatever came.
            head.headers = [
                (name, value.lower() if name == b"transfer-encoding" else value) for name, value in head.headers
            ]
            read.append(head)
        except RequestFault:
            read.append(None)
    assert read[0] == read[1], (raw, read)
    if read[0] is None:
        return
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=len(raw) + 1)
    connection.receive_data(raw)
    event = connection.next_event()
    assert isinstance(event, h11.Request), raw
    assert event.method == read[0].method.encode()
    if read[0].chunked:
        _same_chunks(raw, bytes(buffer))


def chunks(data: bytes) -> None:
    """Bodies in chunked coding end where an independent parser sees them end, with the same data."""
    _same_chunks(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", data)


def _same_chunks(head: bytes, data: bytes) -> None:
    body = ChunkedBody(LIMITS.max_body_bytes, LIMITS.max_header_bytes)
    buffer = bytearray(data)
    taken = b""
    try:
        while piece := body.take(buffer):
            taken += piece
    except RequestFault:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head + data)
    connection.next_event()
    seen = b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            # It knows no blanks before an extension, which HTTP allows, and looks into trailers, which the server only
            # reads past: but for the former, all of the data must have come by then.
            if _BLANK_EXTENSION.search(data):
                return
            assert body.ended, (head, data)
            assert seen == taken
            return
        if not isinstance(event, h11.Data):
            break
        seen += bytes(event.data)
    assert seen == taken
    assert isinstance(event, h11.EndOfMessage) == body.ended
    if body.ended:
        assert connection.trailing_data[0] == bytes(buffer)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (bodies, json_texts, wire, parsers, heads, chunks)
}
BEGINNINGS: dict[str, list[bytes]] = {
    "json_texts": [json.dumps(seed).encode() for seeds in SEEDS.values() for seed in seeds],
    "heads": [
        b"POST /v1/x?a=b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Type: application/json\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        b"GET http://a/b HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"PUT /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n",
    ],
    "chunks": [b"3\r\nabc\r\n0\r\n\r\n", b"A;x=y\r\n0123456789\r\n00\r\nTrailer: a\r\n\r\nGET"],
}
"""What bytes begin with that are not only choices, for fuzzers that mutate a corpus."""
