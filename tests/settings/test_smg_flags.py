"""The reference gateway's flags start us: those we have, and those that have no effect here."""

from __future__ import annotations

from pathlib import Path

import pytest

from smg_trio.cli.main import make_parser
from smg_trio.launcher.serve_options import parse_serve
from smg_trio.settings.settings import Settings, options
from smg_trio.settings.smg_flags import (
    NOTE,
    SWITCHES,
    TRANSLATED,
    WITH_VALUE,
    WITH_VALUES,
    add_smg_flags,
    given_smg_flags,
    notes_on,
)
from smg_trio.settings.sources import defaults, layer_of_flags, merged, settings_of

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
    [note] = notes_on(given_smg_flags(parsed))
    assert note == "No effect here, accepted for compatibility with SMG: --enable-igw, --kv-index"
    assert notes_on([]) == []


TRANSLATIONS: list[tuple[str, dict[str, object]]] = [
    ("--mm-allowed-media-domains a.example,b.example", {
        "mm_fetch": "allowlist", "mm_fetch_allow": ("a.example", "b.example"),
    }),
    ("--mm-fetch public --mm-allowed-media-domains a.example", {
        "mm_fetch": "public", "mm_fetch_allow": ("a.example",),
    }),
    ("--mm-allowed-media-domains a.example --mm-fetch off", {"mm_fetch": "off", "mm_fetch_allow": ("a.example",)}),
    ("--mm-fetch-allow b.example --mm-allowed-media-domains a.example", {
        "mm_fetch": "allowlist", "mm_fetch_allow": ("b.example", "a.example"),
    }),
    ("--mm-per-request-image-limit 4", {"limit_mm": ("image=4",)}),
    ("--limit-mm video=2 --mm-per-request-image-limit 4", {"limit_mm": ("video=2", "image=4")}),
    ("--mm-pixel-cache-mb 3", {"mm_cache_bytes": 3 << 20}),
    ("--multimodal-max-inflight-bytes 2048", {"mm_max_inflight_bytes": 2048}),
    ("--mm-allow-private-media-hosts", {"mm_fetch_private": True}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), TRANSLATIONS)
def test_what_ours_say_in_other_words_has_effect(line: str, expected: dict[str, object]) -> None:
    parsed = make_parser().parse_args(["launch", *line.split()])
    settings = settings_of(merged(defaults(), layer_of_flags(vars(parsed))))
    assert settings == Settings(**expected)  # type: ignore[arg-type]
    assert given_smg_flags(parsed) == []
    serve = parse_serve(["--model", "m", *line.replace("--", "--router-").split()], {})
    assert {name: sourced.value for name, sourced in layer_of_flags(serve.given).items()} == {
        "model_path": "m",
        **expected,
    }


def test_a_translated_number_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["launch", "--mm-per-request-image-limit", "many"])
    assert "--mm-per-request-image-limit: invalid int value: 'many'" in capsys.readouterr().err


def test_every_translation_sets_what_there_is() -> None:
    fields = {option.name for option in options()}
    for translation in TRANSLATED.values():
        assert set(translation.settings(translation.kind("1"))) <= fields
