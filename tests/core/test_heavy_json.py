from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.api.errors import MalformedJson, load_json
from smg_trio.core import heavy_json
from smg_trio.core.heavy_json import MAX_DEPTH, TooManyValues, check_counts, contains, decode_heavy, is_heavy

DECODER = json.JSONDecoder()
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([None, 1]), st.booleans(), st.integers(32, 300))
def test_it_reads_what_the_library_reads_whatever_the_window(
    value: Any, indent: int | None, ascii_only: bool, window: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heavy_json, "_WINDOW", window)
        patch.setattr(heavy_json, "_LONG_RUN", 4)
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
        assert decode_heavy(text, DECODER, MAX_DEPTH) == value


@given(st.data(), VALUES, st.integers(32, 120))
def test_it_refuses_what_the_library_refuses(data: st.DataObject, value: Any, window: int) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 3))
    broken = (
        text[:at]
        + data.draw(st.sampled_from(["", ",", "]", "}", '"', "\\", "\n", "1", "x", ":", "["]))
        + text[at + cut :]
    )
    try:
        expected: Any = DECODER.decode(broken)
    except ValueError as error:
        expected = error
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heavy_json, "_WINDOW", window)
        patch.setattr(heavy_json, "_LONG_RUN", 4)
        if isinstance(expected, ValueError):
            with pytest.raises(ValueError):  # noqa: PT011 - which kind is the library's choice
                decode_heavy(broken, DECODER, MAX_DEPTH)
        else:
            assert decode_heavy(broken, DECODER, MAX_DEPTH) == expected


@pytest.mark.parametrize(
    "item",
    [
        1,
        70_000,
        -2.5e-3,
        "",
        'a\n"b\\',
        "\U0001f600\ud800"[:1],
        [],
        {},
        [[1], {"a": [2]}],
        {"a": "},{", "b": "],["},
        None,
        True,
    ],
)
def test_long_arrays_of_anything_are_read(item: Any) -> None:
    # Two windows of the decoder full.
    count = 2 * heavy_json._WINDOW // (len(json.dumps(item)) + 2)
    value = {"a": [item] * count, "b": [item, [item] * count], "c": {f"k{i}": item for i in range(min(count, 10_000))}}
    text = json.dumps(value)
    assert decode_heavy(text, DECODER, MAX_DEPTH) == value
    assert load_json(text.encode()) == value


def test_long_texts_are_read_with_their_escapes() -> None:
    chooser = random.Random(1)
    parts = ["plain words " * 50, "\n", "\\", '"', "\u00e9", "\U0001f600", "\x07", "x"]
    value = {"text": "".join(chooser.choices(parts, k=20_000))}
    assert decode_heavy(json.dumps(value), DECODER, MAX_DEPTH) == value
    assert decode_heavy(json.dumps(value, ensure_ascii=False), DECODER, MAX_DEPTH) == value


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "' + b"x" * 300_000,
        b'{"a": "' + b"x" * 300_000 + b'\n"}',
        b'{"a": "' + b"x" * 300_000 + b'\\q"}',
        b'{"a": [' + b"1," * 300_000 + b"]}",
        b'{"a": [' + b"1 " * 300_000 + b"]}",
        b'{"a": [' + b"[]," * 300_000 + b"NaN]}",
        b'{"a": ' + b"1" * 300_000 + b"}",
        b'{"a": 0.' + b"1" * 300_000 + b"}",
        b'{"a": [' + b"1," * 300_000 + b"1]} x",
        b"[" * 300_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"a": "' + b"x" * 300_000 + b'\\ud800"}',
        b'{"a": "' + b"x" * 300_000 + b'", "\\udc00": 1}',
        b"[" + b"1," * 30_000 + b"1]",
        b'{"a": [' + b"1," * 30_000 + b"\xff]}",
    ],
)
def test_a_broken_heavy_body_is_malformed_json(body: bytes) -> None:
    with pytest.raises(MalformedJson):
        load_json(body + b" " * max(0, heavy_json.LIGHT_BYTES - len(body) + 1))


def test_too_many_values_are_refused_before_they_are_read() -> None:
    for item, count in ((b"[]", heavy_json.MAX_CONTAINERS + 1), (b"1", heavy_json.MAX_VALUES + 2)):
        body = b'{"a": [' + b",".join([item] * count) + b"]}"
        began = time.process_time()
        with pytest.raises(TooManyValues):
            load_json(body)
        assert time.process_time() - began < 1.0
    check_counts(b'{"a": [' + b",".join([b"1"] * 1000) + b"]}")


def test_short_bodies_and_long_texts_are_light() -> None:
    assert not is_heavy(b"[" * 20_000)
    assert not is_heavy(b'{"a": "' + b"x" * 900_000 + b'"}')
    assert is_heavy(b'{"a": "' + b"x" * 1_100_000 + b'"}')
    assert is_heavy(b"[]," * 20_000)


class _WatchedDecoder(json.JSONDecoder):
    """Notes how much text the library's decoder is given at once: for so long no other thread runs."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0
        self._scan = self.scan_once  # type: ignore[has-type]
        self.scan_once = self._watched_scan

    def decode(self, text: str, *rest: Any) -> Any:
        self.longest = max(self.longest, len(text))
        return DECODER.decode(text)

    def _watched_scan(self, text: str, at: int) -> Any:
        self.longest = max(self.longest, len(text))
        return self._scan(text, at)


@pytest.mark.parametrize(
    "text",
    [f"[{','.join([item] * 100_000)}]" for item in ("[]", '""', "7", '{"a":1}', '["],"]', '{"a": [1, {"b": "},"}]}')]
    + [json.dumps({"a": text * 300_000}) for text in ("word", '"', "\\\n", "\U0001f600", "\u00e9")]
    + [json.dumps({f"k{index}": [index] for index in range(50_000)})],
)
def test_the_decoder_is_never_given_much_at_once(text: str) -> None:
    decoder = _WatchedDecoder()
    assert decode_heavy(text, decoder, MAX_DEPTH) == json.loads(text)
    assert decoder.longest < 1_000_000


@given(st.binary(max_size=60), st.binary(min_size=1, max_size=4), st.binary(min_size=1, max_size=4), st.integers(4, 20))
def test_a_word_is_found_across_the_border_of_two_pieces(body: bytes, one: bytes, other: bytes, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heavy_json, "_COUNTED_AT_ONCE", piece)
        assert contains(body, one, other) is (one in body or other in body)


@pytest.mark.parametrize("filling", ["\\ud800", "x" * 30 + "\\uDFFF" + "y" * 30])
def test_lone_surrogates_of_heavy_bodies_are_refused(filling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heavy_json, "_COUNTED_AT_ONCE", 16)
    body = b'{"a": "' + b"z" * heavy_json.LIGHT_BYTES + filling.encode() + b'"}'
    assert is_heavy(body)
    with pytest.raises(MalformedJson, match="surrogate"):
        load_json(body)
