"""What is read of a body that is relayed, and the one edit of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.errors import InvalidRequest
from smg_trio.gateway.relay.body import MAX_ROUTING_BYTES, read_body, routing_text, with_model

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "b\"'"]), inner, max_size=3),
    max_leaves=8,
)
OTHERS = st.dictionaries(st.sampled_from(["a", "b", "mo"]), JSON)
NAMES = st.text('aé"\\ 😀', min_size=1)


@given(OTHERS, NAMES, NAMES, st.booleans(), st.sampled_from([None, 2]))
def test_only_the_model_changes(
    other: dict[str, object], old: str, new: str, ascii_only: bool, indent: int | None
) -> None:
    value = {"first": {"model": old}, **other, "model": old, "last": [{"model": old}]}
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    changed = with_model(body, new)
    assert json.loads(changed) == value | {"model": new}
    assert with_model(changed, old) == with_model(body, old)


def test_of_several_models_the_last_one_counts() -> None:
    body = b' { "model":"a" ,"x": "}" , "model" : "b"}'
    assert with_model(body, "c") == b' { "model":"a" ,"x": "}" , "model" : "c"}'
    assert read_body(body).model == "b"


def test_a_body_without_a_model_stays() -> None:
    assert with_model(b'{"a": 1}', "c") == b'{"a": 1}'


@pytest.mark.parametrize(
    ("body", "asked", "stream"),
    [
        (b'{"max_tokens": 5, "stream": true}', 5, True),
        (b'{"max_completion_tokens": 6, "max_tokens": 5, "stream": "true"}', 6, False),
        (b'{"sampling_params": {"max_new_tokens": 7}}', 7, False),
        (b'{"max_tokens": "x", "sampling_params": []}', 0, False),
        (b'{"max_tokens": -1}', 0, False),
    ],
)
def test_figures(body: bytes, asked: int, stream: bool) -> None:
    read = read_body(body)
    assert (read.model, read.asked_tokens, read.stream) == ("", asked, stream)


@pytest.mark.parametrize("body", [b"", b"5", b'{"model": 1}', b"\xff", b'{"a": NaN}'])
def test_what_is_no_body(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_body(body)


def test_texts_that_begin_alike_have_keys_that_begin_alike() -> None:
    def key(*turns: str) -> bytes:
        return routing_text("m", {"messages": [{"role": "user", "content": one} for one in turns], "seed": len(turns)})

    assert key("a", "b").startswith(key("a"))
    assert not key("b").startswith(key("a"))
    assert len(routing_text("m", {"prompt": "x" * 10**6})) == MAX_ROUTING_BYTES
    assert routing_text("a", {"input": ["x", [1, 2]]}) != routing_text("b", {"input": ["x", [1, 2]]})
