"""Codex CLI as it is installed, told only where the gateway is.

It talks over a WebSocket, first without a generation (a "prewarm"), and sends tools of every type: functions,
namespaces, hosted ones. Unless it is told of another model it asks for one of OpenAI's, which gets its tools in an item
of the input, the shell as a custom tool with a grammar. Commands run outside Codex's own sandbox, which not every
container allows.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import shared_path

from .conftest import TEMPLATES, Served, run_command, serving

PACKAGE = "@openai/codex@0.171.0"
MCP_SERVER = Path(__file__).parent / "codex" / "mcp_server.py"


@pytest.fixture(scope="module")
def codex(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program, installed from npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    directory = tmp_path_factory.mktemp("npm")
    (directory / "package.json").write_text("{}")
    run_command([npm, "install", "--no-audit", "--no-fund", "--no-package-lock", PACKAGE], directory)
    return str(directory / "node_modules" / ".bin" / "codex")


class Codex:
    """Runs prompts; each in a session of its own."""

    def __init__(self, program: str, url: str, directory: Path) -> None:
        self._program = program
        self._url = url
        self._work = directory / "work"
        self._home = directory / "home"
        self._work.mkdir()
        self._home.mkdir()

    def ask(self, prompt: str, model: str | None, *settings: str) -> str:
        """What it printed, with the gateway's address as its only setting but for `model` and `settings`."""
        address = settings or (f"openai_base_url={json.dumps(self._url)}",)
        options = [word for setting in address for word in ("-c", setting)]
        command = [self._program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        said = run_command(
            [*command, *options, *(["-m", model] if model else []), prompt],
            self._work,
            CODEX_HOME=str(self._home),
            CODEX_API_KEY="none",
        )
        assert "ERROR" not in said
        assert "Reconnecting" not in said
        return said


@pytest.fixture
def agent(codex: str, served: Served, tmp_path: Path) -> Codex:
    return Codex(codex, served.v1, tmp_path)


def test_a_text_is_answered(agent: Codex, served: Served) -> None:
    assert agent.ask("Say: hello from here", served.model).endswith("hello from here\n")


def test_a_function_is_called_and_its_output_read(agent: Codex, served: Served) -> None:
    said = agent.ask('Call: exec_command {"cmd": "echo ran-$((40 + 2))"}', served.model)
    assert "The tool says: " in said
    assert "ran-42" in said


def test_a_tool_of_an_mcp_server_is_called_by_its_namespace(agent: Codex, served: Served) -> None:
    arguments = json.dumps([str(MCP_SERVER)])
    server = f"mcp_servers.geo={{command={json.dumps(sys.executable)},args={arguments}}}"
    address = f"openai_base_url={json.dumps(served.v1)}"
    said = agent.ask('Call: mcp__geo__locate {"city": "Oslo"}', served.model, address, server)
    assert "The tool says: " in said
    assert "Oslo is in the north" in said


def test_without_any_other_setting_its_custom_tool_with_a_grammar_is_called(agent: Codex) -> None:
    script = 'const run = await tools.exec_command({cmd: "echo ran-$((40 + 2))"}); text(run.output);'
    said = agent.ask(f"Call: functions__exec {json.dumps({'input': script})}", None)
    assert "The tool says: Script completed" in said
    assert "ran-42" in said


def test_an_agent_of_its_own_is_started(agent: Codex) -> None:
    task = json.dumps({"task_name": "helper", "message": "Say: from the helper"})
    # Codex names an agent below the one that started it, as /NAME/helper.
    assert re.search(r"/\w+/helper\b", agent.ask(f"Call: collaboration__spawn_agent {task}", None))


def test_a_thought_and_a_call_over_server_sent_events(agent: Codex, served: Served) -> None:
    provider = f'{{name="gateway",base_url={json.dumps(served.v1)},wire_api="responses"}}'
    settings = ('model_provider="gateway"', f"model_providers.gateway={provider}")
    prompt = 'Think: let me look\nCall: exec_command {"cmd": "echo ran-$((40 + 2))"}'
    said = agent.ask(prompt, served.model, *settings)
    assert "The tool says: " in said
    assert "ran-42" in said


@pytest.mark.parametrize("template", TEMPLATES)
def test_it_works_on_templates_of_every_kind(codex: str, template: str, tmp_path: Path) -> None:
    with serving(str(shared_path("data", "chat_templates", f"{template}.jinja"))) as served:
        agent = Codex(codex, served.v1, tmp_path)
        assert "ran-42" in agent.ask('\nCall: exec_command {"cmd": "echo ran-$((40 + 2))"}', served.model)
