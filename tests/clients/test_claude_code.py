"""Claude Code as it is installed, told only where the gateway is.

It asks for Anthropic's models by name, for far more tokens than the window has, puts a system turn behind the first
user turn of every session, and has its tools called in rounds, on templates of many kinds. Templates other than the
demo model's are those beside the checkout; ``SMG_TRIO_CLIENTS_TEMPLATES`` names others of them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import shared_path

from .conftest import TEMPLATES, Served, run_command, serving

PACKAGE = "@anthropic-ai/claude-code@2.1"
RUN = '\nCall: Bash {"command": "echo ran-$((40 + 2))", "description": "Adds"}'


@pytest.fixture(scope="module")
def claude(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program, installed from npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    directory = tmp_path_factory.mktemp("npm")
    (directory / "package.json").write_text("{}")
    run_command([npm, "install", "--no-audit", "--no-fund", "--no-package-lock", PACKAGE], directory)
    run_command([node, "install.cjs"], directory / "node_modules" / "@anthropic-ai" / "claude-code")
    return str(directory / "node_modules" / ".bin" / "claude")


class Claude:
    """Runs prompts, each in a session of its own unless it goes on."""

    def __init__(self, program: str, directory: Path) -> None:
        self._program = program
        self._work = directory / "work"
        self._home = directory / "home"
        self._work.mkdir()
        self._home.mkdir()

    def ask(self, served: Served, prompt: str, *options: str, **environment: str) -> str:
        """What it printed."""
        command = [self._program, "--print", "--allowedTools=Bash", *options, prompt]
        return run_command(
            command,
            self._work,
            HOME=str(self._home),
            ANTHROPIC_BASE_URL=served.url,
            ANTHROPIC_API_KEY="none",
            **environment,
        )


@pytest.fixture
def agent(claude: str, tmp_path: Path) -> Claude:
    return Claude(claude, tmp_path)


def test_it_answers(agent: Claude, served: Served) -> None:
    assert agent.ask(served, "Think: hm\nSay: hello from here").strip() == "hello from here"


def test_it_runs_a_command_and_sees_what_came_of_it(agent: Claude, served: Served) -> None:
    assert "The tool says: ran-42" in agent.ask(served, RUN)


def test_it_goes_on_from_an_earlier_session(agent: Claude, served: Served) -> None:
    assert "ran-42" in agent.ask(served, RUN)
    assert agent.ask(served, "Say: and more", "--continue").strip() == "and more"


def test_it_finds_tools_by_search(agent: Claude, served: Served) -> None:
    said = agent.ask(served, '\nCall: ToolSearch {"query": "select:WebFetch"}', ENABLE_TOOL_SEARCH="true")
    assert "Tool loaded." in said  # what it adds to the result, which names the tool


@pytest.mark.parametrize("template", TEMPLATES)
def test_it_works_on_templates_of_every_kind(agent: Claude, template: str) -> None:
    with serving(str(shared_path("data", "chat_templates", f"{template}.jinja"))) as served:
        assert "ran-42" in agent.ask(served, RUN)
