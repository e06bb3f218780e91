"""Parsers and policies of plug-ins, from outside: named by flags and by labels, and where they fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from smg_trio.core.errors import ConfigError
from tests.plugins.conftest import FakeDistributions, distributions

from .answers import ok
from .harness import PATIENCE_S, Bench, join_chat, open_gateway

__all__ = ["distributions"]  # a fixture
PLUGIN = """
from smg_trio.plugins import ContentDelta, Policy, ReasoningDelta, ToolCallArguments, ToolCallStart, buffered
smg_trio_api = 1

def calls(text):
    before, found, name = text.partition("CALL ")
    return [ContentDelta(before), ToolCallStart(0, name.strip()), ToolCallArguments(0, "{}")] if found else [
        ContentDelta(text)]

class Thinks:
    needs_special_tokens = False
    def __init__(self, context): self.done = False
    def feed(self, text):
        if self.done:
            return [ContentDelta(text)]
        thought, self.done, rest = text.partition("|")
        return [*([ReasoningDelta(thought)] if thought else []), *([ContentDelta(rest)] if rest else [])]
    def finish(self): return []

class Breaks(Thinks):
    def feed(self, text):
        raise RuntimeError("cannot read")

class Last(Policy):
    broken = False
    def __init__(self, context): self.context = context
    def choose(self, candidates, context, now):
        if Last.broken:
            raise RuntimeError("cannot choose")
        return candidates[-1]

tool_parsers = {"lines": lambda context: buffered(calls)}
reasoning_parsers = {"bars": Thinks, "breaks": Breaks}
policies = {"last": Last}
"""
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
SAYS = 'E["think"|"|"|"Well. "|"CALL "|"f"|"<EOS>"]'


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    """The file of the plug-ins."""
    file = tmp_path / "plug_ins_of_a_test.py"
    file.write_text(PLUGIN)
    return str(file)


def message(answer: Any) -> tuple[str, str, list[str]]:
    told = answer["choices"][0]["message"]
    calls = [call["function"]["name"] for call in told.get("tool_calls") or ()]
    return told.get("reasoning_content") or "", (told["content"] or "").strip(), calls


async def test_parsers_that_flags_name_read_answers(tmp_path: Path, plugin: str) -> None:
    settings = {"plugin_file": (plugin,), "tool_call_parser": "lines", "reasoning_parser": "bars"}
    async with open_gateway(tmp_path, SAYS, **settings) as bench:
        answer = ok(await bench.chat(tools=TOOLS)).json()
        assert message(answer) == ("think", "Well.", ["f"])
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        assert message(ok(await bench.chat()).json()) == ("think", "Well. CALL f", [])
        streamed = ok(await bench.chat(stream=True))
        assert join_chat(streamed.text)["content"] == "Well. CALL f"
        # They are there for texts from elsewhere, too; one that no flag has named is not, whoever asks.
        asked = {"text": "x CALL g", "tool_call_parser": "lines", "tools": TOOLS}
        parsed = ok(await bench.http.post("/parse/function_call", json=asked)).json()
        assert parsed["tool_calls"][0]["function"]["name"] == "g"
        unknown = {"text": "x", "reasoning_parser": "breaks"}
        response = await bench.http.post("/parse/reasoning", json=unknown)
        assert response.status_code == 400


async def test_an_answer_goes_on_where_a_parser_fails(tmp_path: Path, plugin: str) -> None:
    settings = {"plugin_file": (plugin,), "reasoning_parser": "breaks"}
    async with open_gateway(tmp_path, SAYS, **settings) as bench:
        assert message(ok(await bench.chat()).json()) == ("", "think|Well. CALL f", [])
        assert join_chat(ok(await bench.chat(stream=True)).text)["content"] == "think|Well. CALL f"
        text = (await bench.http.get(bench.metrics_url)).text
        assert 'smg_plugin_faults_total{kind="reasoning parser",plugin="breaks"} 2.0' in text


async def test_a_policy_chooses_until_it_has_failed_too_often(tmp_path: Path, plugin: str) -> None:
    settings = {"plugin_file": (plugin,), "policy": "last"}
    async with open_gateway(tmp_path, workers=3, **settings) as bench:
        for _ in range(3):
            ok(await bench.chat())
        assert selections(bench) == [0, 0, 3]
        assert ok(await bench.http.get("/health")).text == "OK"
        policy = bench.gateway.plugins.policy
        assert policy is not None
        policy.factory.broken = True  # type: ignore[attr-defined]
        for _ in range(10):
            ok(await bench.chat())
        policy.factory.broken = False  # type: ignore[attr-defined]
        ok(await bench.chat())
        assert policy.calls.faults == 10, "it is not asked any more"
        health = ok(await bench.http.get("/health")).text.splitlines()
        assert health[0] == "OK"
        assert "policy last" in health[1]
        ready = ok(await bench.http.get("/readiness")).json()
        assert ready["status"] == "ready"
        assert "10 faults within 60 s" in ready["degraded"][0]


def selections(bench: Bench) -> list[int]:
    registry = bench.gateway.registry
    return [registry.selections(worker.spec.worker_id) for worker in registry.workers()]


@pytest.fixture
def installed(distributions: FakeDistributions) -> FakeDistributions:
    """A distribution with a parser, and one whose import fails."""
    groups = {"smg_trio.tool_parsers": {"lines": "lines_of_a_test:made"}}
    source = PLUGIN + 'made = tool_parsers["lines"]\n'
    distributions.install("lines-of-a-test", groups, lines_of_a_test=source)
    distributions.install("broken", {"smg_trio.tool_parsers": {"broken": "broken_one:x"}}, broken_one="1/0")
    return distributions


async def test_a_worker_s_label_names_one_too(tmp_path: Path, installed: FakeDistributions) -> None:
    async with open_gateway(tmp_path, SAYS) as bench:

        async def added(name: str, parser: str) -> dict[str, Any]:
            """The worker as it is, once its model has been looked at."""
            (tmp_path / name).symlink_to(bench.model.directory)  # a model of its own
            labels = {"model_path": str(tmp_path / name), "tool_parser": parser}
            body = {"url": f"ipc://{tmp_path}/s/{name}", "runtime_type": "vllm", "labels": labels}
            response = await bench.http.post("/workers", json=body)
            assert response.status_code == 202, response.text
            state: dict[str, Any] = {}
            with trio.fail_after(PATIENCE_S):
                while state.get("status", "pending") == "pending" and not state.get("labels"):
                    state = ok(await bench.http.get(f"/workers/{response.json()['worker_id']}")).json()
            return state

        for name, parser in (("by-name", "lines"), ("by-distribution", "lines-of-a-test:lines")):
            state = await added(name, parser)
            assert state["status"] != "failed", state
            model = bench.gateway.catalog.find(str(tmp_path / name))
            assert getattr(model.tool_parser, "name", "") == "lines"
        assert "ZeroDivisionError" in json.dumps(await added("broken", "broken"))
        assert "unknown tool_parser 'nobody'" in json.dumps(await added("none", "nobody"))


@pytest.mark.parametrize("flag", ["tool_call_parser", "reasoning_parser", "policy", "auth", "hook"])
async def test_a_gateway_does_not_start_without_what_is_named(tmp_path: Path, flag: str) -> None:
    value: Any = ("nobody",) if flag == "hook" else "nobody"
    with pytest.RaisesGroup(ConfigError, allow_unwrapped=True, flatten_subgroups=True):
        async with open_gateway(tmp_path, **{flag: value}):
            pass
