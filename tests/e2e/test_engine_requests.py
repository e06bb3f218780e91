"""What a client asks for arrives at the engine, and what it leaves out is filled in as vLLM's own server does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smg_trio.testing.tensors import chosen_logprob, sampled_logprob

from .harness import HELLO, HI, MODEL, TOKENSPEED, VLLM, error_of, open_gateway

SHARED = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 7,
    "min_p": 0.125,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.25,
    "seed": 42,
    "min_tokens": 2,
    "max_tokens": 9,
    "stop_token_ids": [5, 6],
}
PATHS = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])


def body(path: str, **fields: Any) -> dict[str, Any]:
    return ({"messages": HI} if "chat" in path else {"prompt": "hi"}) | fields


@PATHS
async def test_every_sampling_field_arrives_at_a_vllm_engine(tmp_path: Path, path: str) -> None:
    async with open_gateway(tmp_path, HELLO, allow_kv_transfer_params=True) as bench:
        eos, endoftext = bench.model.id_of("<EOS>"), bench.model.id_of("<|endoftext|>")
        asked = SHARED | {
            "logit_bias": {"7": 3.5, "8": -100},
            "priority": -3,
            "bad_words": ["the"],
            "cache_salt": "abc",
            "thinking_token_budget": 5,
            "prompt_logprobs": 1,
            "vllm_xargs": {"a": 1},
            "kv_transfer_params": {"b": [2]},
            "repetition_detection": {"max_pattern_size": 3, "min_pattern_size": 1, "min_count": 9},
            "allowed_token_ids": [9, 10],
        }
        logprobs = {"logprobs": True, "top_logprobs": 2} if "chat" in path else {"logprobs": 2}
        answer = await bench.http.post(path, json=body(path, **asked, **logprobs))
        assert answer.status_code == 200, answer.text
        request = bench.engine.received[-1]
        sampling = request.sampling
        for name in set(SHARED) - {"stop_token_ids"}:
            assert sampling[name] == SHARED[name], name
        assert sampling["stop_token_ids"] == [5, 6, endoftext]
        assert set(sampling["_all_stop_token_ids"]) == {5, 6, eos, endoftext}
        assert request.eos_token_id == eos
        assert sampling["logit_bias"] == {7: 3.5, 8: -100.0}
        assert request.priority == -3
        assert sampling["_bad_words_token_ids"]
        assert request.cache_salt == "abc"
        assert sampling["thinking_token_budget"] == 5
        assert (sampling["logprobs"], sampling["prompt_logprobs"]) == (2, 1)
        assert sampling["extra_args"] == {"a": 1, "kv_transfer_params": {"b": [2]}}
        assert sampling["repetition_detection"] == asked["repetition_detection"]
        assert sampling["allowed_token_ids"] == [9, 10]
        await bench.wait_idle()


async def test_every_shared_sampling_field_arrives_at_a_tokenspeed_engine(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=TOKENSPEED) as bench:
        answer = await bench.chat(**SHARED, logit_bias={"7": 3.5})
        assert answer.status_code == 200, answer.text
        sampling = bench.engine.received[-1].sampling
        renamed = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
        for name in set(SHARED) - {"stop_token_ids"}:
            assert sampling[renamed.get(name, name)] == SHARED[name], name
        assert {5, 6} <= set(sampling["stop_token_ids"])
        assert {int(key): bias for key, bias in sampling["logit_bias"].items()} == {7: 3.5}


@pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])
async def test_ignore_eos_goes_on_past_the_end_token(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, 'E["a"|"<EOS>"|"b"] fin=length', protocol=protocol) as bench:
        text, choice = await bench.chat_text(ignore_eos=True, max_tokens=3)
        assert (text, choice["finish_reason"]) == ("ab", "length")
        assert choice["usage"]["completion_tokens"] == 3
        text, choice = await bench.chat_text(ignore_eos=True, max_tokens=3, skip_special_tokens=False)
        assert text == "a<|im_end|>b"
        text, choice = await bench.chat_text(max_tokens=3)
        assert (text, choice["finish_reason"], choice["stop_reason"]) == ("a", "stop", None)


async def test_the_model_s_generation_config_fills_in_what_the_client_leaves_out(tmp_path: Path) -> None:
    defaults: dict[str, object] = {
        "temperature": 0.625, "top_p": 0.75, "top_k": 20, "repetition_penalty": 1.125, "max_new_tokens": 3,
    }  # fmt: skip
    async with open_gateway(tmp_path, HELLO, model_defaults=defaults) as bench:
        answer = (await bench.chat()).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        sampling = bench.engine.received[-1].sampling
        assert sampling["max_tokens"] == 3
        for name in ("temperature", "top_p", "top_k", "repetition_penalty"):
            assert sampling[name] == defaults[name]
        await bench.chat(temperature=1.0, top_k=0, max_tokens=2)
        sampling = bench.engine.received[-1].sampling
        assert sampling.get("temperature", 1.0) == 1.0
        assert sampling.get("top_k", 0) == 0
        assert sampling["top_p"] == 0.75
        assert sampling["max_tokens"] == 2


async def test_generation_config_can_be_switched_off_but_not_its_end_tokens(tmp_path: Path) -> None:
    defaults: dict[str, object] = {"temperature": 0.25, "max_new_tokens": 3}
    settings = {"generation_config": "vllm"}
    async with open_gateway(tmp_path, HELLO, model_defaults=defaults, **settings) as bench:
        await bench.chat()
        request = bench.engine.received[-1]
        assert request.sampling.get("temperature", 1.0) == 1.0
        assert request.max_tokens == 8192 - 13
        assert request.eos_token_id == bench.model.id_of("<EOS>")
        assert bench.model.id_of("<|endoftext|>") in request.stop_token_ids


async def test_numbers_are_read_as_generously_as_vllm_reads_them(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        for value in ("5", 5.0, 5):
            assert (await bench.chat(max_tokens=value)).status_code == 200
            assert bench.engine.received[-1].max_tokens == 5


async def test_a_bad_max_tokens_is_refused_by_its_name(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        for name in ("max_tokens", "max_completion_tokens"):
            for value in (0, -1, "x", 1.5, True, 10**30, 10**9, [], {}):
                error = error_of(await bench.chat(**{name: value}), 400)
                assert error["param"] == name, value
        assert bench.engine.received == []


async def test_max_completion_tokens_wins_over_max_tokens(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        await bench.chat(max_tokens=7, max_completion_tokens=2)
        assert bench.engine.received[-1].max_tokens == 2


@pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])
async def test_prompts_up_to_the_context_window_are_taken_and_no_longer_ones(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol, engine={"max_model_len": 2048}) as bench:
        for length in (2045, 2046, 2047, 2048, 2049, 5000):
            before = len(bench.engine.received)
            answer = await bench.completion(prompt=[7] * length, max_tokens=None)
            # TokenSpeed's engine keeps one position to itself.
            room = 2048 - length - (protocol is TOKENSPEED)
            if room > 0:
                assert answer.status_code == 200, (length, answer.text)
                assert bench.engine.received[-1].max_tokens == min(16, room)
            else:
                error = error_of(answer, 400)
                assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
                assert "2048" in error["message"]
                assert str(length) in error["message"]
                assert len(bench.engine.received) == before
        assert (await bench.completion()).status_code == 200


async def test_a_chat_without_max_tokens_may_fill_the_context_window(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"max_model_len": 100}) as bench:
        await bench.chat()
        assert bench.engine.received[-1].max_tokens == 100 - 13
        await bench.chat(max_tokens=95)  # more than fits: cut, as vLLM's server does
        assert bench.engine.received[-1].max_tokens == 100 - 13
        error = error_of(await bench.chat(max_tokens=101), 400)
        assert error["param"] == "max_tokens"
        assert "100" in error["message"]
        too_long = await bench.chat(messages=[{"role": "user", "content": "hi " * 200}])
        error = error_of(too_long, 400)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"logit_bias": {"191222": -100}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": [1]}, "stop"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 2.5}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": "x"}, "n"),
    ({"n": 10**9}, "n"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"priority": 2**64}, "priority"),
    ({"prompt_logprobs": -2}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages"),
    ({"messages": ["x"]}, "messages"),
    ({"stream": "perhaps"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"model": 7}, "model"),
    ({"vllm_xargs": {"a": 2**64}}, "vllm_xargs"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"response_format": {"type": "nonsense"}}, "response_format"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
]
PROMPTS: list[Any] = [
    [999999], [-1], [[1, 2], [999999]], [], "", [[]], [1, "a"], {"a": 1}, 7, None, [1.5], [True], [2**70], [None],
]  # fmt: skip


async def test_what_the_engine_could_not_take_is_refused_by_name(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        for fields, param in REFUSED:
            error = error_of(await bench.chat(**fields), 400)
            assert error["type"] == "invalid_request_error"
            assert (error["param"] or "").split(".")[0].split("[")[0] == param, (fields, error)
        assert bench.engine.received == []
        assert (await bench.chat()).status_code == 200
        await bench.wait_idle()


async def test_prompts_outside_the_vocabulary_or_empty_are_refused(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        for prompt in PROMPTS:
            error = error_of(await bench.completion(prompt=prompt), 400)
            assert (error["param"] or "").split("[")[0] == "prompt", prompt
        assert bench.engine.received == []


async def test_seeds_wrap_within_64_bits(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        assert (await bench.chat(n=2, seed=2**63 - 1)).status_code == 200
        assert [request.seed for request in bench.engine.received] == [2**63 - 1, -(2**63)]


async def test_a_request_id_of_the_client_is_never_the_engine_s_key(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        for _ in range(3):
            answer = await bench.http.post("/v1/chat/completions", json=body("chat"), headers={"x-request-id": "same"})
            assert answer.json()["id"] == "chatcmpl-same"
        assert len({request.request_id for request in bench.engine.received}) == 3


async def test_the_template_gets_its_arguments_and_the_last_message_can_be_continued(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        decode = bench.gateway.catalog.find("").text.tokenizer.decode

        def prompt() -> str:
            return decode(bench.engine.received[-1].prompt_token_ids, skip_special_tokens=False)

        await bench.chat()
        assert prompt() == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        await bench.chat(chat_template_kwargs={"enable_thinking": False})
        assert prompt().endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
        await bench.chat(add_generation_prompt=False)
        assert prompt() == "<|im_start|>user\nhi<|im_end|>\n"
        started = [*HI, {"role": "assistant", "content": "1, 2,"}]
        fields: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
        answer = await bench.chat(messages=started, **fields)
        assert prompt().endswith("<|im_start|>assistant\n1, 2,")
        assert answer.json()["choices"][0]["message"]["content"] == "Hello world"
        answer = await bench.chat(messages=started, echo=True, **fields)
        assert answer.json()["choices"][0]["message"]["content"] == "1, 2,Hello world"
        streamed = await bench.chat_text(messages=started, echo=True, **fields)
        assert streamed[0] == "1, 2,Hello world"
        parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
        await bench.chat(messages=[{"role": "user", "content": parts}])
        assert "[{" not in prompt()
        assert "A" in prompt()


async def test_a_template_that_refuses_is_the_client_s_fault(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        answer = await bench.chat(messages=[{"role": "wizard", "content": "x"}])
        assert error_of(answer, 400)["param"] == "messages"


REFUSING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 5},
    "/generate": {"text": "hi"},
}


async def test_no_client_hands_an_engine_kv_transfer_parameters_unless_that_is_allowed(tmp_path: Path) -> None:
    parked = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]]}
    async with open_gateway(tmp_path, HELLO) as bench:
        for path, base in REFUSING.items():
            fields = [{"kv_transfer_params": parked}, {"vllm_xargs": {"kv_transfer_params": parked}}]
            if path == "/generate":
                fields.append({"sampling_params": {"kv_transfer_params": parked}})
            for field in fields:
                answer = await bench.http.post(path, json=base | field)
                # An API that does not know a field ignores it.
                refused = answer.status_code == 400 and "--allow-kv-transfer-params" in answer.text
                assert refused or answer.status_code == 200, (path, field)
        assert all(not request.sampling.get("extra_args") for request in bench.engine.received)
        await bench.wait_idle()


# ---- log probabilities of tokens named by their ids --------------------------------------------------------------


@PATHS
async def test_the_log_probabilities_of_named_tokens_all_come_however_many_best_ones_were_asked_for(
    tmp_path: Path, path: str
) -> None:
    """vLLM's servers show the sampled token and every named one; `top_logprobs` does not count then."""
    async with open_gateway(tmp_path, 'E["a"|"<EOS>"]') as bench:
        sampled = bench.model.id_of("a")
        others = [token for token in range(300, 330) if token != sampled]
        for named in (others[:1], others[:3], others[:25], [*others[:2], sampled], others[:2] * 2):
            expected = {token: chosen_logprob(token) for token in named} | {sampled: sampled_logprob(sampled)}
            for top in (0, 1, 3, 20):
                fields = {"logprobs": True, "top_logprobs": top} if "chat" in path else {"logprobs": top}
                asked = {"logprob_token_ids": named, "return_tokens_as_token_ids": True, "max_tokens": 1, **fields}
                answer = await bench.http.post(path, json=body(path, **asked))
                assert answer.status_code == 200, answer.text
                shown = answer.json()["choices"][0]["logprobs"]
                first = shown["content"][0]["top_logprobs"] if "chat" in path else shown["top_logprobs"][0]
                pairs = [(entry["token"], entry["logprob"]) for entry in first] if "chat" in path else first.items()
                assert {int(name.removeprefix("token_id:")): value for name, value in pairs} == expected
                assert len(pairs) == len(expected)
        sampling = bench.engine.received[-1].sampling
        assert sampling["logprob_token_ids"] == others[:2]
        assert sampling.get("logprobs") is None
        streamed = await bench.http.post(path, json=body(path, **asked, stream=True))
        assert streamed.text.count("token_id:") >= len(expected)


async def test_named_tokens_work_for_generate_and_responses_too(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["a"|"<EOS>"]') as bench:
        named = [300, 301, 302]
        sampling = {"max_new_tokens": 1, "logprob_token_ids": named}
        asked = {"text": "hi", "sampling_params": sampling, "return_logprob": True}
        [answer] = (await bench.http.post("/generate", json=asked)).json()
        [first] = answer["meta_info"]["output_top_logprobs"]
        assert [(token, value) for value, token, _ in first] == [(token, chosen_logprob(token)) for token in named]
        asked = {"model": MODEL, "input": "hi", "logprob_token_ids": named, "max_output_tokens": 1, "top_logprobs": 1}
        asked["include"] = ["message.output_text.logprobs"]
        response = (await bench.http.post("/v1/responses", json=asked)).json()
        [entry] = response["output"][-1]["content"][0]["logprobs"]
        assert len(entry["top_logprobs"]) == 4
        assert response["top_logprobs"] == 1
