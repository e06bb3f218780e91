"""``config check``, ``config show``, and how a command line complains."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from smg_trio.cli.main import main
from smg_trio.settings.help_text import EXIT_CODES
from smg_trio.settings.settings import options

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command with these words and variables, and none of the suite's own: exit code, stdout, stderr."""

    def run_one(*words: str, **variables: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("SMG_TRIO_")]:
                patch.delenv(name)
            for name, text in variables.items():
                patch.setenv(name, text)
            code = main(words)
        return code, *capsys.readouterr()

    return run_one


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "smg.toml"
    file.write_text(text)
    return str(file)


def test_a_good_file_is_good(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, "port = 8000\nlog_json = true\n")
    assert run("config", "check", file) == (0, f"{file}: 2 settings, valid\n", "")


def test_every_problem_of_a_file_is_named(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, "prot = 8000\nlog_json = 'yes'\n")
    code, out, err = run("config", "check", file)
    assert (code, out) == (2, "")
    assert "Did you mean port?" in err
    assert "--log-json" in err


def test_a_file_is_checked_as_launch_would_run_with_it(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, 'worker_urls = ["ipc:///a"]\n')
    code, _, err = run("config", "check", file)
    assert code == 2
    assert "--model-path" in err
    assert run("config", "check", file, "--model-path", "m")[0] == 0
    assert run("config", "check", file, SMG_TRIO_MODEL_PATH="m")[0] == 0
    code, _, err = run("config", "check", file, SMG_TRIO_PORT="x")
    assert code == 2
    assert "from SMG_TRIO_PORT" in err


@pytest.mark.parametrize(
    "words", [("config", "check", "/nowhere.toml"), ("config", "show", "--config", "/nowhere.toml")]
)
def test_a_missing_file_is_named(run: Run, words: tuple[str, ...]) -> None:
    code, _, err = run(*words)
    assert code == 2
    assert "--config: cannot read /nowhere.toml: No such file or directory." in err


def test_every_effective_setting_is_shown_with_its_origin_and_can_be_fed_back(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, "port = 8000\nqueue_size = 3\n")
    code, out, err = run("config", "show", "--config", file, "--queue-size", "4", SMG_TRIO_LOG_LEVEL="warn")
    assert (code, err) == (0, "")
    assert f"port = 8000  # {file}: port" in out
    assert "queue_size = 4  # --queue-size" in out
    assert 'log_level = "warn"  # SMG_TRIO_LOG_LEVEL' in out
    for option in options():
        assert option.name in out
    (tmp_path / "again.toml").write_text(out)
    again = run("config", "show", "--config", str(tmp_path / "again.toml"))[1]
    assert tomllib.loads(again) == tomllib.loads(out)


def test_the_variable_names_the_file_unless_the_command_line_does(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, "port = 8000\n")
    (tmp_path / "other.toml").write_text("port = 9000\n")
    assert "port = 8000" in run("config", "show", SMG_TRIO_CONFIG=file)[1]
    assert "port = 9000" in run("config", "show", "--config", str(tmp_path / "other.toml"), SMG_TRIO_CONFIG=file)[1]


def test_several_keys_and_several_flags_add_up_and_no_key_is_shown(run: Run) -> None:
    words = ["--api-key", "hunter2", "hunter3", "--api-key", "hunter4", "--model-alias", "a=b", "--model-alias", "c=d"]
    code, out, _ = run("config", "show", *words)
    assert code == 0
    assert "hunter" not in out
    assert 'model_alias = ["a=b", "c=d"]  # --model-alias' in out


def test_unknown_variables_are_warned_of(run: Run) -> None:
    code, _, err = run("config", "show", SMG_TRIO_PROT="1")
    assert code == 0
    assert "SMG_TRIO_PROT is not a setting" in err


def test_a_wrong_setting_ends_launch_with_2_and_one_line(run: Run, tmp_path: Path) -> None:
    code, out, err = run("launch", "--config", write(tmp_path, "port = 70000\n"))
    assert (code, out) == (2, "")
    assert err.startswith("smg-trio: error: --port (from ")
    assert err.count("\n") == 1


def test_the_help_of_launch_is_grouped_and_tells_of_the_sources(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["launch", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: smg-trio launch [options]\n")
    for group in {option.metadata["group"] for option in options()}:
        assert f"\n{group}:\n" in shown
    assert "SMG_TRIO_CONFIG" in shown


@pytest.mark.parametrize(
    "words",
    [(), ("launch",), ("serve",), ("config", "check"), ("config", "show"), ("demo",), ("fake-engine",), ("chat",),
     ("completion",), ("handshake-port",)],
    ids=" ".join,
)  # fmt: skip
def test_help_fits_a_terminal_and_breaks_no_flag(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if len(line) > 80] == []
    assert [line for line in shown if line.endswith("-")] == []


def test_a_switch_and_its_opposite_are_one_word_in_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["launch", "--help"])
    shown = capsys.readouterr().out
    assert "--[no-]log-json" in shown
    assert "--[no-]routing-key-override, --[no-]sticky-sessions" in shown
    assert "--no-" not in shown


def test_the_help_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in shown


def test_no_command_is_wrong_usage(run: Run) -> None:
    assert run()[0] == 2
