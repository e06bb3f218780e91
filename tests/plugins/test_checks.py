"""``smg-trio plugins`` and ``plugins check``: what keeps its contract passes, what breaks it is told how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smg_trio.cli.main import main
from smg_trio.plugins import buffered
from smg_trio.plugins.kinds import REASONING_PARSER, TOOL_PARSER
from smg_trio.plugins.loading import Loaded
from smg_trio.testing.plugin_checks import check_plugin

from .conftest import FakeDistributions
from .test_parsers import Calls, Plain

GOOD = """
from smg_trio.plugins import (
    Changes, ContentDelta, Identity, Policy, ReasoningDelta, Refuse, ToolCallArguments, ToolCallStart, buffered,
)
smg_trio_api = 1

class First(Policy):
    def __init__(self, context): self.random = context.random
    def choose(self, candidates, context, now): return candidates[0]

async def door(credentials): return Identity(name="alice") if credentials.token == "made-up" else None

class Hook:
    def on_request(self, view): return Changes(routing_key=view.identity)
    async def on_answer(self, view): ...

tool_parsers = {"good": lambda context: buffered(lambda text: [ContentDelta(text)])}
reasoning_parsers = dict(tool_parsers)
policies = {"good": First}
auth = {"good": door}
hooks = {"good": Hook}
"""

BROKEN = {
    "tool_parser": {
        "the same events come out": "return type('P', (), dict(needs_special_tokens=False, "
        "feed=lambda s, t: [ContentDelta(t.strip())] if t.strip() else [], finish=lambda s: []))()",
        "no text is lost": "return buffered(lambda text: [])",
        "random text is read": "return buffered(lambda text: [ContentDelta(text)] if '🌊' not in text or 'sea' in text "
        "or 'Box' in text else 1/0)",
        "the arguments of calls": "return buffered(lambda text: [ToolCallStart(0, 'f'), ToolCallArguments(0, '{')] "
        "if 'SAMPLE' in text else [ContentDelta(text)])",
        "a parser can be fed again": "return buffered(lambda text, seen=[]: seen.append(1) or [ContentDelta(text)] "
        "if not seen else [])",
        "two parsers share nothing": "return SHARED",
        "needs_special_tokens is decided": "return buffered(lambda text: [ContentDelta(text)], needs_special_tokens=0)",
    },
    "policy": {
        "the choice is one of the candidates": "return candidates[0].spec",
        "one seed gives one sequence": "import random; return random.choice(candidates)",
        "forget drops all": "self.seen = [*getattr(self, 'seen', []), *candidates]; return candidates[0]",
        "statistics has its form": "self.statistics = lambda: 5; return candidates[0]",
    },
    "auth": {"answered in time": "import time; time.sleep(0.2)", "nobody gave out": "return credentials.token or 5"},
    "hook": {"answered in time": "view.body['x'] = 1", "requests of every API": "return view.body['model'] and None"},
}  # fmt: skip
FRAMES = {
    "tool_parser": "def made(context):\n    {}\ntool_parsers = {{'bad': made}}",
    "policy": "class Bad(First):\n    def choose(self, candidates, *rest):\n        {}\npolicies = {{'bad': Bad}}",
    "auth": "async def bad(credentials):\n    {}\nauth = {{'bad': bad}}",
    "hook": "class Bad:\n    def on_request(self, view):\n        {}\nhooks = {{'bad': Bad}}",
}


def run(*words: str) -> int:
    return main(["plugins", *words])


@pytest.mark.parametrize("kind", ["tool_parser", "reasoning_parser", "policy", "auth", "hook"])
def test_what_keeps_its_contract_passes(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "good.py"
    file.write_text(GOOD)
    assert run("check", kind, "good", "--plugin-file", str(file)) == 0
    said = capsys.readouterr().out
    assert "All checks passed." in said
    assert "FAILED" not in said


@pytest.mark.parametrize(("kind", "check"), [(kind, check) for kind, checks in BROKEN.items() for check in checks])
def test_what_breaks_it_is_told(kind: str, check: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, sample = tmp_path / "bad.py", tmp_path / "sample.txt"
    sample.write_text("SAMPLE")
    shared = "SHARED = buffered(lambda text: [ContentDelta(text)])\n"
    file.write_text(GOOD + shared + FRAMES[kind].format(BROKEN[kind][check]))
    assert run("check", kind, "bad", "--plugin-file", str(file), "--sample", str(sample)) == 1
    said = capsys.readouterr().out
    [line] = [line for line in said.splitlines() if check in line]
    assert "FAILED" in line, said


def test_parsers_written_by_the_book_pass_whole() -> None:
    for kind, factory in ((TOOL_PARSER, lambda context: Calls()), (REASONING_PARSER, lambda context: Plain())):
        outcomes = list(check_plugin(Loaded(kind, "x", factory, "tests", 1), {}, ["a <<f>> b <<g>>"]))
        assert len(outcomes) == 7
        assert [one for one in outcomes if one.problem] == []


def test_what_does_not_load_is_an_error_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], distributions: FakeDistributions
) -> None:
    assert run("check", "policy", "nobody") == 2
    assert "smg_trio.policies:nobody" in capsys.readouterr().err
    assert run("check", "policy", "round_robin") == 2
    assert "is built in" in capsys.readouterr().err
    distributions.install("d", {"smg_trio.policies": {"x": "of_d:x"}}, of_d="smg_trio_api = 1\nx = print")
    assert run("check", "policy", "x", "--sample", str(tmp_path / "none")) == 2
    assert "--sample: cannot read" in capsys.readouterr().err


def test_the_list_says_what_is_installed_and_what_of_it_loads(
    distributions: FakeDistributions, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    assert "No plug-ins are installed." in capsys.readouterr().out
    distributions.install("good-one", {"smg_trio.tool_parsers": {"good": "good_one:made"}}, version="1.2",
                          good_one=GOOD + "made = tool_parsers['good']\n")  # fmt: skip
    distributions.install("bad-one", {"smg_trio.hooks": {"bad": "bad_one:Hook"}}, bad_one="import missing_thing")
    assert run() == 0
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["good"].split() == ["smg_trio.tool_parsers", "good", "good-one", "1.2", "1", "yes"]
    assert "no: the plug-in 'bad' of bad-one 1.0 cannot be loaded: ModuleNotFoundError" in lines["bad"]
    assert run("--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["api_version"] == 1
    assert {row["name"]: row["loads"] for row in told["plugins"]} == {"good": True, "bad": False}


def test_a_buffered_parser_says_nothing_before_the_end() -> None:
    parser = buffered(lambda text: [])
    assert parser.feed("a") == []
    assert parser.finish() == []
