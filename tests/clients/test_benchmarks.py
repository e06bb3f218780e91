"""Load generators: each sends a few requests over every API of ours that it speaks, and none may fail."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .conftest import Served, find_program, run_command

COUNT = 6
PROMPT, ANSWER = 32, 16


@pytest.mark.parametrize(
    ("backend", "path", "options"),
    [
        ("openai-chat", "/v1/chat/completions", ()),
        ("openai", "/v1/completions", ("--logprobs", "2")),
        ("openai-responses", "/v1/responses", ()),
    ],
)
def test_vllm_bench_serve(served: Served, tmp_path: Path, backend: str, path: str, options: tuple[str, ...]) -> None:
    python = os.environ.get("SMG_TRIO_INTEROP_PYTHON")
    if python is None:
        pytest.skip("SMG_TRIO_INTEROP_PYTHON does not name a python with vLLM")
    command = [python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", backend]
    command += ["--base-url", served.url, "--endpoint", path, "--model", served.model]
    command += ["--tokenizer", served.model_directory, "--dataset-name", "random", "--num-prompts", str(COUNT)]
    command += ["--random-input-len", str(PROMPT), "--random-output-len", str(ANSWER), *options]
    run_command([*command, "--save-result", "--result-filename", "result.json"], tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (COUNT, 0)
    assert result["total_output_tokens"] == COUNT * ANSWER


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_guidellm(served: Served, tmp_path: Path, path: str) -> None:
    command = [find_program("guidellm"), "run", "--disable-progress"]
    command += ["--backend", f"kind=openai_http,target={served.url},request_format={path}"]
    command += ["--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={COUNT}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={served.model_directory}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={ANSWER}"]
    run_command([*command, "--output", "kind=json,path=result.json"], tmp_path)
    [benchmark] = json.loads((tmp_path / "result.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (COUNT, 0)
    assert all(request["output_metrics"]["text_tokens"] == ANSWER for request in benchmark["requests"]["successful"])


@pytest.mark.parametrize("endpoint", ["chat", "completions", "responses"])
def test_aiperf(served: Served, tmp_path: Path, endpoint: str) -> None:
    command = [find_program("aiperf"), "profile", "--ui", "none", "--artifact-dir", str(tmp_path / "out")]
    command += ["--model", served.model, "--url", served.url, "--endpoint-type", endpoint, "--streaming"]
    command += ["--tokenizer", served.model_directory, "--concurrency", "2", "--request-count", str(COUNT)]
    command += ["--isl", str(PROMPT), "--osl", str(ANSWER)]
    # Told to be offline it takes a directory for the name of a model; it fetches nothing for one that is there.
    run_command(command, tmp_path, HF_HUB_OFFLINE="", TRANSFORMERS_OFFLINE="")
    result = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert result["request_count"]["avg"] == COUNT
    assert result["error_summary"] == []
    if (
        endpoint == "responses"
    ):  # it reads no usage from ``response.incomplete``, with which an answer of full length ends
        assert result["output_sequence_length"]["count"] == COUNT
    else:
        assert result["total_usage_completion_tokens"]["avg"] == COUNT * ANSWER
