"""The generate API: bodies, answers, and the law that a stream and its fold say the same."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.api.generate import GenerateRequest, parse_generate_request
from smg_trio.api.generate_answer import GenerateAnswer, GenerateEventWriter, GenerateFold
from smg_trio.api.sse import DONE
from smg_trio.core.errors import InvalidRequest, SmgError, UnsupportedContent
from smg_trio.core.events import ChoiceFinish, ChoiceUpdate, ContentDelta, TokenLogprob, Usage
from smg_trio.core.outputs import FinishReason
from tests.api.openai.updates import completion_updates, payloads, strict_json

STOP = ChoiceFinish(FinishReason.STOP)


def parse(**fields: Any) -> GenerateRequest:
    return parse_generate_request(json.dumps({"text": "hi", **fields}).encode())


def answer(**changes: Any) -> GenerateAnswer:
    facts: dict[str, Any] = {"response_id": "r1", "prompts": [[1, 2, 3]], "elapsed_s": lambda: 0.5}
    return GenerateAnswer(**{**facts, **changes})


def fold(shape: GenerateAnswer, *updates: ChoiceUpdate, usage: Usage | None = None) -> list[dict[str, Any]]:
    folder = GenerateFold(shape)
    for update in updates:
        folder.feed(update)
    return strict_json(folder.body(usage or Usage(3, 4, 2, 1)))  # type: ignore[no-any-return]


def test_sampling_parameters_have_names_of_their_own() -> None:
    completion = parse(
        model="m",
        rid="r1",
        stream=True,
        priority=3,
        sampling_params={
            "max_new_tokens": 5,
            "min_new_tokens": 2,
            "no_stop_trim": True,
            "sampling_seed": 7,
            "stop": "x",
            "temperature": 0,
            "n": 2,
            "regex": "a+",
            "unknown": None,
        },
    ).completion
    sampling = completion.sampling
    assert completion.prompts == ["hi"]
    assert (completion.model, completion.request_id, completion.stream, completion.n) == ("m", "r1", True, 2)
    assert (sampling.max_tokens, sampling.min_tokens, sampling.seed, sampling.temperature) == (5, 2, 7, 0)
    assert (sampling.stop, sampling.include_stop_str_in_output, sampling.priority) == (("x",), True, 3)
    assert sampling.structured_output is not None
    assert sampling.structured_output.kind == "regex"
    assert parse().completion.sampling.max_tokens is None


def test_prompts_are_text_or_ids_one_or_many() -> None:
    assert parse(text=["a", "b"]).completion.prompts == ["a", "b"]
    assert parse(text=None, input_ids=[1, 2]).completion.prompts == [[1, 2]]
    assert parse(text=None, input_ids=[[1], [2, 3]]).completion.prompts == [[1], [2, 3]]
    assert parse(n=3).completion.n == 3


def test_logprobs_are_asked_for_by_number_and_position() -> None:
    request = parse(return_logprob=True, top_logprobs_num=2, logprob_start_len=1)
    sampling = request.completion.sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == (2, 2)
    assert (request.input_logprobs, request.logprob_start_len) == (True, 1)
    only_output = parse(return_logprob=True)
    assert (only_output.completion.sampling.logprobs, only_output.completion.sampling.prompt_logprobs) == (0, None)
    assert parse(top_logprobs_num=2).completion.sampling.logprobs is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": None}, "text"),
        ({"input_ids": [1]}, "text"),
        ({"text": ""}, "text"),
        ({"text": [1, 2]}, "text"),
        ({"text": None, "input_ids": "a"}, "input_ids"),
        ({"text": None, "input_ids": [-1]}, "input_ids"),
        ({"sampling_params": [{}]}, "sampling_params"),
        ({"sampling_params": {"max_new_tokens": 0}}, "sampling_params.max_new_tokens"),
        ({"sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"sampling_params": {"stop": ["a", ""]}}, "sampling_params.stop[1]"),
        ({"sampling_params": {"logit_bias": {"x": 1}}}, "sampling_params.logit_bias.x"),
        ({"sampling_params": {"no_stop_trim": 3}}, "sampling_params.no_stop_trim"),
        ({"return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"return_logprob": True, "logprob_start_len": 0, "stream": True}, "logprob_start_len"),
        ({"rid": ["a"]}, "rid"),
    ],
)
def test_refusals_name_the_parameter(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("name", ["audio_data", "video_data", "input_embeds"])
def test_media_that_are_not_read_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedContent) as caught:
        parse(**{name: "x"})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("text", "data", "found"),
    [
        ("a", "AA==", [[("AA==", True, "image_data")]]),
        ("a", ["data:,", {"url": "http://x"}],
         [[("data:,", False, "image_data[0]"), ("http://x", False, "image_data[1]")]]),
        ("a", [["AA=="]], [[("AA==", True, "image_data[0][0]")]]),
        (["a", "b", "c"], ["AA==", None, ["B", "C"]],
         [[("AA==", True, "image_data[0]")], [], [("B", True, "image_data[2][0]"), ("C", True, "image_data[2][1]")]]),
    ],
)  # fmt: skip
def test_image_data_belongs_to_its_prompt(text: Any, data: Any, found: Any) -> None:
    media = parse(text=text, image_data=data).completion.media
    seen = [[(source.location, source.bare_base64, source.where) for source in each] for each in media]
    assert seen == found


@pytest.mark.parametrize(
    ("text", "data", "param"),
    [
        (["a", "b"], "AA==", "image_data"),
        (["a", "b"], ["AA=="], "image_data"),
        ("a", [[], []], "image_data"),
        ("a", [5], "image_data[0]"),
        ("a", [""], "image_data[0]"),
        ("a", {"data": "x"}, "image_data"),
    ],
)
def test_image_data_of_another_shape_is_refused(text: Any, data: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(text=text, image_data=data)
    assert caught.value.param == param


def test_an_answer_is_a_list_in_the_reference_shape() -> None:
    assert fold(
        answer(),
        ChoiceUpdate(0, (ContentDelta("Hi"),), (5,)),
        ChoiceUpdate(0, (), (6,), finish=ChoiceFinish(FinishReason.LENGTH)),
    ) == [
        {
            "text": "Hi",
            "output_ids": [5, 6],
            "meta_info": {
                "id": "r1",
                "finish_reason": {"type": "length", "length": 2},
                "prompt_tokens": 3,
                "weight_version": "default",
                "completion_tokens": 2,
                "cached_tokens": 2,
                "reasoning_tokens": 1,
                "e2e_latency": 0.5,
            },
        }
    ]


def test_a_matched_stop_is_named() -> None:
    (entry,) = fold(
        answer(), ChoiceUpdate(0, finish=ChoiceFinish(FinishReason.STOP, "END"), kv_transfer_params={"a": 1})
    )
    assert entry["meta_info"]["finish_reason"] == {"type": "stop", "matched": "END"}
    assert entry["meta_info"]["matched_stop"] == "END"
    assert entry["meta_info"]["kv_transfer_params"] == {"a": 1}
    (aborted,) = fold(answer(), ChoiceUpdate(0, finish=ChoiceFinish(FinishReason.ABORT)))
    assert aborted["meta_info"]["finish_reason"] == {"type": "abort"}


def test_text_is_cumulative_and_ids_are_new() -> None:
    writer = GenerateEventWriter(answer())
    updates = [
        ChoiceUpdate(0, (ContentDelta("a"),), (5,)),
        ChoiceUpdate(0, (), ()),
        ChoiceUpdate(0, (), (6,)),
        ChoiceUpdate(0, (ContentDelta("b"),), (7,), finish=STOP),
    ]
    stream = b"".join([writer.update(update, Usage(3, 1, 2)) for update in updates])
    events = payloads(stream + writer.usage_chunk(Usage(3, 1)) + DONE)
    assert [(event["text"], event["output_ids"], event["index"]) for event in events] == [
        ("a", [5], 0),
        ("a", [6], 0),
        ("ab", [7], 0),
    ]
    assert events[0]["meta_info"]["finish_reason"] is None
    assert events[0]["meta_info"]["cached_tokens"] == 2
    assert "e2e_latency" not in events[0]["meta_info"]
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "stop"}


def test_the_prompts_logprobs_begin_where_they_were_asked_to() -> None:
    def entry(token_id: int, *top: TokenLogprob) -> TokenLogprob:
        return TokenLogprob(token_id, f"t{token_id}", b"", -0.5, top=top)

    first = ChoiceUpdate(
        0, (), (9,), [entry(9, entry(8))], prompt_logprobs=[None, entry(2, entry(4), entry(5)), entry(3)], finish=STOP
    )
    shape = answer(return_logprob=True, top_logprobs=1, input_logprobs=True)
    meta = fold(shape, first)[0]["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 1, None], [-0.5, 2, "t2"], [-0.5, 3, "t3"]]
    assert meta["input_top_logprobs"] == [None, [[-0.5, 4, "t4"]], []]
    assert meta["output_token_logprobs"] == [[-0.5, 9, "t9"]]
    assert meta["output_top_logprobs"] == [[[-0.5, 8, "t8"]]]
    later = fold(answer(return_logprob=True, input_logprobs=True, logprob_start=2), first)[0]["meta_info"]
    assert later["input_token_logprobs"] == [[-0.5, 3, "t3"]]
    assert "input_top_logprobs" not in later


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_stream_and_its_fold_say_the_same(data: st.DataObject) -> None:
    n, prompts = data.draw(st.integers(1, 2)), [[1, 2], [3, 4]][: data.draw(st.integers(1, 2))]
    with_logprobs = data.draw(st.booleans())
    updates = data.draw(completion_updates(n * len(prompts), logprobs=with_logprobs, prompt_len=2))
    shape = answer(prompts=prompts, n=n, return_logprob=with_logprobs, top_logprobs=data.draw(st.integers(0, 2)))
    usage = Usage(3, 4, 2, 1)
    writer = GenerateEventWriter(shape)
    events = payloads(b"".join([writer.update(update, usage) for update in updates]) + DONE)
    streamed: dict[int, dict[str, Any]] = {}
    for event in events:
        before = streamed.get(event["index"])
        if before is not None:
            assert before["meta_info"]["finish_reason"] is None, "an event after the finish"
            event["output_ids"] = before["output_ids"] + event["output_ids"]
            for name, column in before["meta_info"].items():
                if name.startswith("output_"):
                    event["meta_info"][name] = column + event["meta_info"][name]
        streamed[event["index"]] = event
    folded = fold(shape, *updates, usage=usage)
    assert [streamed[index] for index in range(len(folded))] == [
        {**entry, "index": index} for index, entry in enumerate(folded)
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["max_new_tokens", "stop", "n", "regex", "json_schema", "temperature"]), inner
        )
    ),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["text", "input_ids", "sampling_params", "stream", "rid", "n", "return_logprob", "model"]),
        json_values,
    )
)
def test_any_json_is_read_or_refused(fields: dict[str, Any]) -> None:
    with contextlib.suppress(SmgError):
        parse_generate_request(json.dumps(fields).encode())
