"""What a shell offers after Tab, asked of the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smg_trio.cli.completion import SHELLS
from smg_trio.settings.flags import flags_of
from smg_trio.settings.settings import options

MAKE = [sys.executable, "-m", "smg_trio", "completion"]
_ASK_BASH = """
source "$1"
complete -p smg-trio || exit 3
shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_smg_trio
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the script of each shell, named after it."""
    directory = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        done = subprocess.run([*MAKE, shell], capture_output=True, text=True, timeout=30, check=True)
        (directory / shell).write_text(done.stdout)
    return directory


def program(shell: str) -> str:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed here")
    return path


def ask_bash(scripts: Path, *words: str, directory: Path | None = None) -> set[str]:
    """What bash offers for the last of the words."""
    command = [program("bash"), "--norc", "-c", _ASK_BASH, "ask", str(scripts / "bash"), "smg-trio", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True, cwd=directory)
    first, *offered = done.stdout.splitlines()
    assert first == "complete -o bashdefault -F _shtab_smg_trio smg-trio"
    # `compopt` cannot work outside a completion of readline's own.
    assert set(done.stderr.splitlines()) <= {line for line in done.stderr.splitlines() if "compopt" in line}
    return {word for word in offered if word}


def test_bash_offers_the_commands(scripts: Path) -> None:
    offered = ask_bash(scripts, "")
    assert offered == {
        "launch", "serve", "config", "doctor", "demo", "fake-engine", "handshake-port", "chat", "top", "completion",
        "plugins",
    }  # fmt: skip
    assert ask_bash(scripts, "config", "") == {"check", "show"}
    assert ask_bash(scripts, "completion", "") == set(SHELLS)


def test_bash_offers_every_flag_of_every_setting(scripts: Path) -> None:
    offered = ask_bash(scripts, "launch", "--")
    for option in options():
        assert set(flags_of(option)) <= offered
    assert ask_bash(scripts, "launch", "--queue-s") == {"--queue-size"}
    assert "--router-queue-size" in ask_bash(scripts, "serve", "--router-")


def test_bash_offers_choices_and_files(scripts: Path, tmp_path: Path) -> None:
    assert ask_bash(scripts, "launch", "--log-level", "") == {"debug", "info", "warn", "error"}
    assert ask_bash(scripts, "launch", "--backend", "") == {"vllm", "tokenspeed"}
    assert "hermes" in ask_bash(scripts, "launch", "--tool-call-parser", "")
    (tmp_path / "smg.toml").write_text("")
    (tmp_path / "model").mkdir()
    assert ask_bash(scripts, "launch", "--config", "smg", directory=tmp_path) == {"smg.toml"}
    assert ask_bash(scripts, "launch", "--model-path", "", directory=tmp_path) == {"model"}


_ASK_ZSH = """
autoload -Uz compinit
compinit -D -u
if [ "$2" = file ]; then fpath=("${1:h}/functions" $fpath); compinit -D -u; else eval "$(cat $1)"; fi
print $_comps[smg-trio]
"""


@pytest.mark.parametrize(("how", "function"), [("file", "_smg-trio"), ("eval", "_shtab_smg_trio")])
def test_zsh_takes_its_script_from_a_file_and_from_eval(scripts: Path, how: str, function: str) -> None:
    functions = scripts / "functions"
    functions.mkdir(exist_ok=True)
    (functions / "_smg-trio").write_text((scripts / "zsh").read_text())
    command = [program("zsh"), "-f", "-c", _ASK_ZSH, "ask", str(scripts / "zsh"), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert (done.stdout.strip(), done.stderr) == (function, "")


def test_fish_offers_commands_flags_and_choices(scripts: Path, tmp_path: Path) -> None:
    def ask(line: str) -> set[str]:
        command = [program("fish"), "-N", "-c", "source $argv[1]; complete -C $argv[2]", str(scripts / "fish"), line]
        environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True, env=environment)
        return {offered.partition("\t")[0] for offered in done.stdout.splitlines()}

    assert {"launch", "serve", "completion"} <= ask("smg-trio ")
    assert "--queue-size" in ask("smg-trio launch --queue")
    assert ask("smg-trio launch --log-level ") == {"debug", "info", "warn", "error"}
