"""Evaluation harnesses: lm-eval with log likelihoods (texts and token ids) and generation, Inspect with tools."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from .conftest import Served, find_program, run_command

TASKS = Path(__file__).parent / "tasks"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tasks, with the paths of their data filled in."""
    directory = tmp_path_factory.mktemp("tasks")
    shutil.copytree(TASKS, directory, dirs_exist_ok=True)
    for task in directory.glob("*.yaml"):
        task.write_text(task.read_text().replace("DIRECTORY", str(directory)))
    return directory


def evaluate(served: Served, tasks: Path, task: str, model: str, path: str, **options: Any) -> tuple[Any, list[Any]]:
    """Metrics and samples of one task."""
    name = f"{model}-{'-'.join(map(str, options.values()))}".replace("/", "_")
    output = tasks / "out" / task / name
    chosen = {"model": served.model, "base_url": f"{served.url}/v1/{path}", "num_concurrent": 2, "max_retries": 1}
    arguments = ",".join(f"{key}={value}" for key, value in (chosen | options).items())
    command = [find_program("lm_eval"), "run", "--model", model, "--model_args", arguments, "--tasks", task]
    command += ["--include_path", str(tasks), "--output_path", str(output), "--log_samples", "--batch_size", "1"]
    if path.startswith("chat"):
        command.append("--apply_chat_template")
    run_command(command, tasks)
    [results] = output.rglob("results_*.json")
    [samples] = output.rglob("samples_*.jsonl")
    return json.loads(results.read_text())["results"][task], [json.loads(line) for line in samples.open()]


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"tokenizer_backend": "remote", "tokenized_requests": False},
        {"tokenizer_backend": "remote", "tokenized_requests": True},
        {"tokenizer_backend": "huggingface", "tokenized_requests": True},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_lm_eval_compares_log_likelihoods(served: Served, tasks: Path, tokenizer: dict[str, Any]) -> None:
    if tokenizer["tokenizer_backend"] == "huggingface":
        pytest.importorskip("transformers", reason="transformers is not installed")
        tokenizer = tokenizer | {"tokenizer": served.model_directory}
    results, samples = evaluate(served, tasks, "smg_choice", "local-completions", "completions", **tokenizer)
    assert 0 <= results["acc,none"] <= 1
    answers = [float(answer[0][0]) for sample in samples for answer in sample["resps"]]
    assert len(answers) == 6
    assert all(math.isfinite(answer) and answer < 0 for answer in answers)


@pytest.mark.parametrize(
    ("model", "path"), [("local-completions", "completions"), ("local-chat-completions", "chat/completions")]
)
def test_lm_eval_generates(served: Served, tasks: Path, model: str, path: str) -> None:
    results, samples = evaluate(served, tasks, "smg_generate", model, path)
    assert results["exact_match,none"] == 1.0, samples


def test_inspect_runs_a_task_with_tools(served: Served, tasks: Path) -> None:
    program = find_program("inspect")
    log = tasks / "logs"
    command = [program, "eval", "inspect_task.py", "--model", f"openai-api/smg/{served.model}", "--log-dir", str(log)]
    environment = {"SMG_BASE_URL": served.v1, "SMG_API_KEY": "none", "INSPECT_DISPLAY": "plain"}
    run_command([*command, "--log-format", "json"], tasks, **environment)
    [written] = log.glob("*.json")
    found = json.loads(written.read_text())
    assert found["status"] == "success"
    assert found["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 1.0
