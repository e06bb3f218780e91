"""The example package: it keeps its contracts, imports the public module alone, and its entry points are there."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from smg_trio import plugins
from smg_trio.cli.main import main
from smg_trio.plugins.kinds import KINDS

from .conftest import FakeDistributions

EXAMPLE = Path(__file__).parents[2] / "examples" / "smg-trio-shouting"
NAMES = {"tool_parser": "shout", "reasoning_parser": "aside", "policy": "first", "auth": "users", "hook": "sessions"}
SAMPLE = 'Let me look.\nGET_WEATHER! {"city": "Rome"}\nF! {"a": 1}\nSo be it.'


@pytest.fixture
def example(distributions: FakeDistributions) -> None:
    """The example, installed by its own pyproject."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    source = (EXAMPLE / "smg_trio_shouting.py").read_text()
    distributions.install(
        project["name"], project["entry-points"], version=project["version"], smg_trio_shouting=source
    )


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize("kind", NAMES)
def test_each_of_its_plug_ins_keeps_its_contract(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = tmp_path / "sample"
    sample.write_text(SAMPLE)
    assert main(["plugins", "check", kind, NAMES[kind], "--sample", str(sample)]) == 0, capsys.readouterr().out


@pytest.mark.usefixtures("example")
def test_it_has_one_of_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    said = capsys.readouterr().out
    for kind, name in zip(KINDS, NAMES.values(), strict=True):
        assert any(line.split()[:2] == [kind.group, name] and line.endswith("yes") for line in said.splitlines()), said


def test_it_imports_of_us_the_public_module_alone() -> None:
    tree = ast.parse((EXAMPLE / "smg_trio_shouting.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert {module for module in modules if module and module.startswith("smg_trio")} == {"smg_trio.plugins"}


def test_what_the_public_module_exports_is_kept() -> None:
    """Frozen for API 1: names may be added here, with a line in the changelog; none may go."""
    assert plugins.API_VERSION == 1
    assert set(plugins.__all__) >= {
        "API_VERSION", "AnswerView", "CacheStatistics", "Candidate", "Changes", "ContentDelta", "Credentials",
        "Identity", "Parser", "ParserContext", "ParserEvent", "Policy", "PolicyContext", "PolicyStatistics",
        "ReasoningDelta", "Refuse", "RequestView", "RoutingContext", "ToolCallArguments", "ToolCallStart", "buffered",
    }  # fmt: skip
    assert all(hasattr(plugins, name) for name in plugins.__all__)


FIELDS = {
    "ParserContext": "tools model_name starts_in_reasoning json_answer tokenizer_has prompt_end options",
    "PolicyContext": "random options",
    "Credentials": "token headers method path options",
    "Identity": "name id scopes max_concurrent_requests tokens_per_minute ttl_s",
    "RequestView": "request_id path model body headers identity options",
    "AnswerView": "request_id endpoint model identity status error streaming prompt_tokens completion_tokens "
    "cached_tokens reasoning_tokens started first_output_s duration_s workers text options",
    "Refuse": "status code message",
    "Changes": "model body remove routing_key",
    "ContentDelta": "text",
    "ReasoningDelta": "text",
    "ToolCallStart": "index name call_id",
    "ToolCallArguments": "index delta",
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_are_kept(name: str) -> None:
    """The same of fields; those that are added have defaults."""
    found = getattr(plugins, name).__dataclass_fields__
    wanted = FIELDS[name].split()
    assert [field for field in found if field in wanted] == wanted


def test_the_guide_s_examples_keep_their_contracts(tmp_path: Path) -> None:
    """Those of its blocks that are whole; the first parser is run as a command by the tests of the guides."""
    guide = (Path(__file__).parents[2] / "docs" / "howto" / "plugins.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    tables = {"whole": "tool_parsers", "Cheapest": "policies", "Sessions": "hooks"}
    kinds = {"tool_parsers": "tool_parser", "policies": "policy", "hooks": "hook"}
    checked = []
    for number, block in enumerate(blocks):
        assert "smg_trio_api = 1" in block
        assert len(block.splitlines()) <= 20
        for name, table in tables.items():
            if re.search(rf"^(class|def) {name}\b", block, re.MULTILINE):
                file = tmp_path / f"block{number}.py"
                file.write_text(f"{block}\n{table} = {{'x': {name}}}\n")
                assert main(["plugins", "check", kinds[table], "x", "--plugin-file", str(file)]) == 0, name
                checked.append(name)
    assert checked == list(tables)
