"""The reference gateway's flags start us: those we have, and those that have no effect here."""

from __future__ import annotations

from pathlib import Path

import pytest

from smg_trio.cli.main import make_parser
from smg_trio.launcher.serve_options import parse_serve
from smg_trio.settings.settings import Settings
from smg_trio.settings.smg_flags import (
    NOTE,
    SWITCHES,
    WITH_VALUE,
    WITH_VALUES,
    add_smg_flags,
    given_smg_flags,
    settings_with,
)

LINES = (Path(__file__).parent / "flags-smg-1.13.0.txt").read_text(encoding="utf-8").splitlines()
"""Each flag of SMG 1.13's ``launch`` (those of 1.11 are among them) with a value; ``LIST``: it takes several."""
NO_EFFECT = {f"--{name}" for name in (*SWITCHES, *WITH_VALUE, *WITH_VALUES)}


def words_of(line: str, prefix: str = "--") -> list[str]:
    flag, _, value = line.partition(" ")
    flag = prefix + flag.removeprefix("--")
    return [flag, *(["a=1", "b=2"] if value == "LIST" else [value] if value else [])]


@pytest.mark.parametrize("line", LINES)
def test_every_flag_of_the_reference_parses(line: str) -> None:
    if line.startswith("--backend "):  # the one whose values name engines that this gateway does not speak to
        line = "--backend vllm"
    parsed = make_parser().parse_args(["launch", *words_of(line)])
    flag = line.split()[0]
    assert given_smg_flags(parsed) == ([flag] if flag in NO_EFFECT else [])


def test_all_that_have_no_effect_are_the_references() -> None:
    assert {line.split()[0] for line in LINES} >= NO_EFFECT


def test_serve_takes_them_behind_its_prefix() -> None:
    lines = [line for line in LINES if line.split()[0] in NO_EFFECT]
    words = [word for line in lines for word in words_of(line, "--router-")]
    serve = parse_serve(["--model", "m", *words, "--servicer-impl", "python"], {})
    assert set(serve.smg_flags) == NO_EFFECT
    assert serve.engine_words == ("--model", "m")


def test_the_help_names_them_with_the_note() -> None:
    parser = make_parser()
    add_smg_flags(parser)
    shown = " ".join(parser.format_help().split())
    assert NOTE in shown
    assert all(flag in shown for flag in NO_EFFECT)


def test_what_was_given_is_said_once() -> None:
    parsed = make_parser().parse_args(["launch", "--enable-igw", "--kv-index", "x", "--kv-index=y"])
    settings, notes = settings_with(Settings(), given_smg_flags(parsed))
    assert settings == Settings()
    assert notes == ["No effect here, accepted for compatibility with SMG: --enable-igw, --kv-index"]
    assert settings_with(Settings(), []) == (Settings(), [])


def test_keys_by_jwt_leave_the_control_plane_closed() -> None:
    settings, notes = settings_with(Settings(), ["--jwt-issuer"])
    [entry] = settings.control_plane_api_keys
    assert entry.startswith("unused:")
    assert len(entry.rpartition(":")[2]) > 30
    assert "--control-plane-api-keys" in notes[1]
    own = Settings(control_plane_api_keys=("a:b:admin:c",))
    assert settings_with(own, ["--jwt-issuer"])[0] == own
