"""Defaults, file, environment and command line: which wins, and what is said of a wrong one."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from smg_trio.core.errors import ConfigError
from smg_trio.settings.settings import Settings, options
from smg_trio.settings.sources import (
    Layer,
    Sourced,
    defaults,
    layer_of_flags,
    merged,
    read_environment,
    read_toml,
    settings_of,
    variable_of,
)
from smg_trio.settings.text import settings_text


def environment(**variables: str) -> Layer:
    reading, warnings = read_environment(variables)
    assert warnings == []
    return reading.checked()


def file(text: str) -> Layer:
    return read_toml(text, "smg.toml").checked()


def problem_of(text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        file(text)
    return raised.value.message


def complaint(**variables: str) -> str:
    with pytest.raises(ConfigError) as raised:
        environment(**variables)
    return raised.value.message


# ---- which wins -------------------------------------------------------------------------------------------


def test_the_command_line_wins_over_the_environment_over_the_file_over_the_defaults() -> None:
    layers = merged(
        defaults(),
        file("port = 1\nhost = '1.1.1.1'\nqueue_size = 1"),
        environment(SMG_TRIO_PORT="2", SMG_TRIO_HOST="2.2.2.2"),
        layer_of_flags({"port": 3}),
    )
    chosen = settings_of(layers)
    assert (chosen.port, chosen.host, chosen.queue_size, chosen.log_level) == (3, "2.2.2.2", 1, "info")
    origins = [layers[name].origin for name in ("port", "host", "queue_size", "log_level")]
    assert origins == ["--port", "SMG_TRIO_HOST", "smg.toml: queue_size", "default"]


def test_nothing_said_makes_the_default_settings() -> None:
    assert settings_of(defaults()) == Settings()


def test_a_command_line_s_other_words_are_no_settings() -> None:
    layer = layer_of_flags({"port": 1, "config": "x", "run": print, "api_key": ["a", "b"]})
    assert {name: sourced.value for name, sourced in layer.items()} == {"port": 1, "api_key": ("a", "b")}


# ---- environment ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("SMG_TRIO_PORT", " 8000 ", "port", 8000),
        ("SMG_TRIO_QUEUE_TIMEOUT_SECS", "2", "queue_timeout_secs", 2.0),
        ("SMG_TRIO_LOG_JSON", "TRUE", "log_json", True),
        ("SMG_TRIO_ACCESS_LOG", "off", "access_log", False),
        ("SMG_TRIO_WORKER_URLS", "ipc:///a, ipc:///b", "worker_urls", ("ipc:///a", "ipc:///b")),
        ("SMG_TRIO_WORKER_URLS", "ipc:///a ipc:///b,", "worker_urls", ("ipc:///a", "ipc:///b")),
        ("SMG_TRIO_MODEL_PATH", "/models/with a space", "model_path", "/models/with a space"),
        ("SMG_TRIO_POLICY", "random", "policy", "random"),
    ],
)
def test_a_variable_is_read_as_its_field_s_type(variable: str, text: str, name: str, value: Any) -> None:
    assert environment(**{variable: text}) == {name: Sourced(value, variable)}


@pytest.mark.parametrize("option", options(), ids=lambda option: option.name)
def test_every_option_has_a_variable(option: Any) -> None:
    text = {bool: "true", int: "7", float: "7.5"}.get(type(option.default), "x")
    if option.metadata["choices"]:
        text = option.metadata["choices"][-1]
    assert set(environment(**{variable_of(option.name): text})) == {option.name}


def test_a_wrong_variable_is_named_with_its_value_and_what_to_do() -> None:
    said = complaint(SMG_TRIO_PORT="eighty")
    assert said.startswith("--port (from SMG_TRIO_PORT): must be a whole number, got 'eighty'.")
    assert "Change SMG_TRIO_PORT or unset it." in said
    assert "true or false, got 'maybe'" in complaint(SMG_TRIO_LOG_JSON="maybe")
    assert "Did you mean debug?" in complaint(SMG_TRIO_LOG_LEVEL="debgu")


def test_a_value_that_cannot_work_is_complained_of_with_its_origin() -> None:
    for layer, origin in (
        (environment(SMG_TRIO_PORT="70000"), "SMG_TRIO_PORT"),
        (file("port = 70000"), "smg.toml: port"),
    ):
        with pytest.raises(ConfigError) as raised:
            settings_of(merged(defaults(), layer))
        said = f"--port (from {origin}): must be 0..65535, got 70000. Change {origin}."
        assert (raised.value.message, raised.value.origin) == (said, origin)
    with pytest.raises(ConfigError, match=r"^--port: must be 0\.\.65535, got 70000\.$"):
        settings_of(merged(defaults(), environment(SMG_TRIO_PORT="1"), layer_of_flags({"port": 70000})))


def test_an_empty_variable_is_unset_but_for_what_guards_the_door() -> None:
    assert environment(SMG_TRIO_PORT="", SMG_TRIO_MODEL_PATH=" ", SMG_TRIO_CONFIG="") == {}
    assert "--api-key (from SMG_TRIO_API_KEY): is empty" in complaint(SMG_TRIO_API_KEY="")
    assert "--api-key-file (from SMG_TRIO_API_KEY_FILE): is empty" in complaint(SMG_TRIO_API_KEY_FILE=" ")
    assert "--tls-cert-path (from SMG_TRIO_TLS_CERT_PATH): is empty" in complaint(SMG_TRIO_TLS_CERT_PATH="")
    assert "is empty" in complaint(SMG_TRIO_CONTROL_PLANE_API_KEYS="")


def test_unknown_variables_are_warned_of_with_the_nearest_name() -> None:
    reading, warnings = read_environment({"SMG_TRIO_PROT": "1", "SMG_TRIO_port": "2", "SMG_TRIO_ZZZ": "3", "HOME": "/"})
    assert reading.layer == {}
    assert len(warnings) == 3
    assert any("SMG_TRIO_PROT is not a setting" in line and "Did you mean SMG_TRIO_PORT?" in line for line in warnings)
    assert any("SMG_TRIO_port is not a setting" in line and "Did you mean SMG_TRIO_PORT?" in line for line in warnings)


def test_what_kubernetes_sets_for_a_service_named_smg_trio_is_no_port() -> None:
    reading, warnings = read_environment(
        {
            "SMG_TRIO_SERVICE_HOST": "10.0.0.7",
            "SMG_TRIO_SERVICE_PORT": "80",
            "SMG_TRIO_SERVICE_PORT_HTTP": "80",
            "SMG_TRIO_PORT": "tcp://10.0.0.7:80",
            "SMG_TRIO_PORT_80_TCP": "tcp://10.0.0.7:80",
            "SMG_TRIO_PORT_80_TCP_ADDR": "10.0.0.7",
        }
    )
    assert reading.checked() == {}
    assert len(warnings) == 1
    assert "enableServiceLinks: false" in warnings[0]


# ---- file -------------------------------------------------------------------------------------------------


def test_a_file_may_write_names_with_dashes_and_whole_numbers_for_fractions() -> None:
    layer = file('queue-timeout-secs = 3\nworker_urls = ["ipc:///a"]\nlog-json = true')
    assert [sourced.value for sourced in layer.values()] == [3.0, ("ipc:///a",), True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = 'x'", "--port (from smg.toml: port): must be a whole number, got 'x'. For example port = 30000."),
        ("port = true", "must be a whole number, got True"),
        ("port = 1.0", "must be a whole number, got 1.0"),
        ("log_json = 1", "must be true or false, got 1"),
        ("host = 1", "must be a text, got 1"),
        ("worker_urls = 'ipc:///a'", "must be a list of texts, got 'ipc:///a'. For example worker_urls = [\"text\"]."),
        ("worker_urls = [1]", "must be a list of texts, got [1]"),
        ("log_level = 'inf'", "'inf' is not among its values. Did you mean info? It is one of debug, info, "),
        ("prot = 1", "smg.toml has the unknown key 'prot'. Did you mean port?"),
        ("model = 'm'", "smg.toml has the unknown key 'model'. Did you mean model_path?"),
        ("qqqqqq = 1", "unknown key 'qqqqqq'. `config show` lists all settings."),
        ("[http]\nport = 1", "unknown key 'http'. There are no tables"),
        ("queue-size = 1\nqueue_size = 2", "--queue-size (from smg.toml: queue_size): is given twice"),
        (
            "port = 1x",
            "smg.toml is not valid TOML: Expected newline or end of document after a statement (at line 1, column 9)",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_key_value_and_remedy(text: str, words: str) -> None:
    assert words in problem_of(text)


def test_every_problem_of_a_file_is_found() -> None:
    reading = read_toml("prot = 1\nhost = 2\nqueue_size = 3\nlog_level = 'loud'", "f")
    assert len(reading.problems) == 3
    assert set(reading.layer) == {"queue_size"}


def test_a_secret_is_never_part_of_a_complaint() -> None:
    assert "hunter2" not in problem_of('api_key = "hunter2"')
    assert "hunter2" not in problem_of('api_key = [["hunter2"]]')


# ---- showing ----------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def _values(option: Any) -> st.SearchStrategy[Any]:
    if option.metadata["choices"]:
        return st.sampled_from(option.metadata["choices"])
    default = option.default
    if isinstance(default, bool):
        return st.booleans()
    if isinstance(default, int):
        return st.integers(-(2**62), 2**62)
    if isinstance(default, float):
        return st.floats(allow_nan=False)
    return st.lists(TEXT, max_size=3).map(tuple) if isinstance(default, tuple) else TEXT


@st.composite
def some_layers(draw: st.DrawFn) -> dict[str, Sourced]:
    chosen = draw(st.lists(st.sampled_from(options()), unique_by=lambda option: option.name, max_size=6))
    return {option.name: Sourced(draw(_values(option)), draw(TEXT)) for option in chosen}


@settings(max_examples=60)
@given(some_layers())
@example({"api_key": Sourced(("secret",), "a\nb"), "model_path": Sourced(None, "\x1f")})
def test_what_is_shown_can_be_fed_back(said: dict[str, Sourced]) -> None:
    layers = merged(defaults(), said)
    fed = read_toml(settings_text(layers), "shown").checked()
    again = {name: sourced.value for name, sourced in merged(defaults(), fed).items()}
    expected = {name: sourced.value for name, sourced in layers.items()}
    secrets = {
        option.name: option.default for option in options() if option.metadata["secret"] and expected[option.name]
    }
    assert again == expected | secrets


def test_secrets_are_shown_as_there_but_not_as_values() -> None:
    shown = settings_text(merged(defaults(), environment(SMG_TRIO_API_KEY="hunter2,hunter3")))
    assert "hunter" not in shown
    assert '# api_key = ["********"]  # SMG_TRIO_API_KEY; not shown' in shown
    assert "api_key" not in tomllib.loads(shown)
    url = "postgresql://smg:hunter2@db/smg"
    shown = settings_text(merged(defaults(), environment(SMG_TRIO_HISTORY_URL=url)))
    assert '# history_url = "********"  # SMG_TRIO_HISTORY_URL; not shown' in shown
    assert "hunter" not in shown


def test_undecodable_words_of_a_command_line_are_shown_as_valid_toml() -> None:
    shown = settings_text(merged(defaults(), layer_of_flags({"model_path": "/m\udcff"})))
    assert tomllib.loads(shown)["model_path"] == "/m\N{REPLACEMENT CHARACTER}"
