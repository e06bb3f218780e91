"""Addresses, headers, usage and what servers say of themselves."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.events import Usage
from smg_trio.core.http_addresses import HttpAddress, is_http_url, parse_http_url
from smg_trio.upstream.discovery import BadBody, read_loads, read_metrics, read_models, read_refusal
from smg_trio.upstream.relay_headers import hops_of, request_headers, response_headers
from smg_trio.upstream.usage import UsageReader, usage_of_body


@pytest.mark.parametrize(
    ("url", "address", "authority"),
    [
        ("http://h", HttpAddress("http", "h", 80), "h"),
        ("https://h/", HttpAddress("https", "h", 443), "h"),
        ("http://1.2.3.4:8000/base/", HttpAddress("http", "1.2.3.4", 8000, "/base"), "1.2.3.4:8000"),
        ("http://[::1]:81", HttpAddress("http", "::1", 81), "[::1]:81"),
        ("https://h:80", HttpAddress("https", "h", 80), "h:80"),
    ],
)
def test_addresses(url: str, address: HttpAddress, authority: str) -> None:
    assert parse_http_url(url) == address
    assert address.authority == authority
    assert is_http_url(url)


@pytest.mark.parametrize(
    "url",
    ["http://", "http:///p", "http://u@h", "http://u:p@h", "http://h?", "http://h/#", "http://h:0", "http://h:99999",
     "http://h:x", "ftp://h", "http://h h", "http://hé", "http://[::1", "http://h\n"],
)  # fmt: skip
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_http_url(url)


HEADER_NAMES = st.sampled_from(
    ["authorization", "cookie", "x-api-key", "x-foo", "accept", "content-type", "x-request-id", "x-smg-hops", "host"]
)


@given(st.dictionaries(HEADER_NAMES, st.text("abc 1", max_size=8)))
def test_only_named_headers_go_to_a_worker(headers: dict[str, str]) -> None:
    sent = dict(request_headers(headers, request_id="r", routing_key=None, trace=None))
    assert sent.keys() <= {"accept", "content-type", "accept-encoding", "x-request-id", "x-smg-hops"}
    assert sent["x-request-id"] == "r"


def test_trace_context_routing_key_and_further_headers() -> None:
    client = {"traceparent": "theirs", "tracestate": "s", "x-a": "1", "x-b": "2", "anthropic-version": "v"}
    ours = request_headers(client, request_id="", routing_key="k", trace={"traceparent": "ours"}, further=["x-a"])
    assert dict(ours) == {
        "traceparent": "ours", "x-a": "1", "anthropic-version": "v", "accept-encoding": "identity",
        "x-smg-routing-key": "k", "x-smg-hops": "1",
    }  # fmt: skip
    theirs = dict(request_headers(client, request_id="", routing_key=None, trace=None))
    assert (theirs["traceparent"], theirs["tracestate"]) == ("theirs", "s")


@pytest.mark.parametrize(("value", "hops"), [("2", 2), ("", 0), ("-1", 0), ("x", 0), ("9999", 0), ("²", 0)])
def test_hops(value: str, hops: int) -> None:
    assert hops_of({"x-smg-hops": value}) == hops


def test_response_headers() -> None:
    kept = [("content-type", "a"), ("set-cookie", "1"), ("set-cookie", "2"), ("retry-after", "3"), ("x-own", "4")]
    gone = [
        ("connection", "close, X-Hop"), ("x-hop", "1"), ("transfer-encoding", "chunked"), ("content-length", "5"),
        ("server", "s"), ("date", "d"), ("x-request-id", "i"), ("x-smg-error-code", "forged"), ("keep-alive", "5"),
        ("x-ratelimit-limit-tokens", "1"), ("access-control-allow-origin", "*"), ("www-authenticate", "Bearer"),
    ]  # fmt: skip
    assert response_headers([*gone, *kept]) == kept


OPENAI = {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 2}}
STREAM = (
    b'data: {"a":1,"usage":null}\n\n' * 30 + b"data: %s\n\ndata: [DONE]\n\n" % json.dumps({"usage": OPENAI}).encode()
)


@given(st.sets(st.integers(1, len(STREAM) - 1), max_size=14))
def test_usage_of_a_stream_however_it_was_read(cuts: set[int]) -> None:
    reader = UsageReader()
    edges = [0, *sorted(cuts), len(STREAM)]
    reader.begin(STREAM[: edges[1]])
    for low, high in pairwise(edges[1:]):
        reader.add(STREAM[low:high])
    assert reader.usage() == Usage(4, 5, 2)


def test_usage_of_anthropics_stream_comes_from_its_beginning_and_its_end() -> None:
    reader = UsageReader()
    reader.begin(b'event: message_start\ndata: {"message":{"usage":{"input_tokens":6,"output_tokens":1}}}\n\n')
    reader.add(b'event: message_delta\ndata: {"usage":{"output_tokens":8}}\n\n')
    assert reader.usage() == Usage(6, 8)


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (
            b'{"usage": {"input_tokens": 1, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}}',
            (1, 2, 1),
        ),
        (b'{"meta_info": {"prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 0}}', (3, 4, 0)),
        (b'{"usage": {"prompt_tokens": 9, "total_tokens": 9}}', (9, 0, None)),
        (b'{"text": "\\"usage\\": {\\"prompt_tokens\\": 9}"}', None),
        (b'{"usage": null}', None),
        (b'{"usage": {"prompt_tokens": "many"}}', None),
        (b'{"usage": {"prompt_tokens": 1', None),
        (b"", None),
    ],
)
def test_usage_of_a_body(body: bytes, usage: tuple[int, int, int | None] | None) -> None:
    assert usage_of_body(body) == (None if usage is None else Usage(*usage))


def test_models_say_what_kind_of_server_it_is() -> None:
    def runtime(**card: object) -> str:
        return read_models(json.dumps({"data": [{"id": "m", **card}]}).encode()).runtime

    assert runtime(owned_by="vllm") == "vllm"
    assert runtime(owned_by="nvidia") == "sglang"
    assert runtime(owned_by="self_hosted") == "generic"
    assert runtime(owned_by="self_hosted", files=None) == "smg-trio"
    assert runtime() == "generic"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data": 5}', b'{"data": [5]}', b'{"data": [{"id": ""}]}'])
def test_what_is_no_list_of_models(body: bytes) -> None:
    with pytest.raises(BadBody):
        read_models(body)


def test_loads_that_are_none() -> None:
    for read, body in ((read_loads, b'{"loads": [{}]}'), (read_loads, b"x"), (read_metrics, b"up 1\n")):
        with pytest.raises(BadBody):
            read(body)
    assert (
        read_metrics(b"sglang:num_running_reqs 2\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5\n").total.waiting == 1
    )
    assert read_loads(b'{"loads": []}').engines == 1


def test_refusals() -> None:
    assert read_refusal(b'{"error": {"message": "m", "code": "c"}}') == ("c", "m")
    assert read_refusal(b'{"reason": "draining"}') == ("", "draining")
    assert read_refusal(b"<html>") == read_refusal(b"[]") == ("", "")
