from __future__ import annotations

import sys
from pathlib import Path

import pytest

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import ConfigError
from smg_trio.launcher.serve_options import (
    ENGINE_ONLY,
    SERVE_DECIDES,
    SHARED,
    ServeOptions,
    ignored_by_serve,
    parse_serve,
    settings_of,
)
from smg_trio.settings.flags import flags_of
from smg_trio.settings.settings import options
from smg_trio.settings.sources import merged, read_environment, read_toml

FLAG_FILES = {
    EngineProtocol.VLLM: "flags-vllm-0.32.0.txt",
    EngineProtocol.TOKENSPEED: "flags-tokenspeed-0.1.1.txt",
}
GATEWAY_KEEPS = {"--api-key"}


def parse(*words: str, environment: dict[str, str] | None = None) -> ServeOptions:
    return parse_serve(["--model", "m", *words], environment or {})


def test_serve_has_the_defaults_of_the_reference() -> None:
    serve = parse()
    assert (serve.backend, serve.replicas, serve.engine_count) == (EngineProtocol.VLLM, 1, 1)
    assert (serve.worker_host, serve.worker_base_port) == ("127.0.0.1", 31000)
    assert serve.engine_python == sys.executable
    settings = settings_of(serve, ["ipc:///s/engine-31000"])
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert settings.worker_urls == ("ipc:///s/engine-31000",)


def test_one_model_reaches_the_engine_and_the_gateway() -> None:
    for words in (["--model", "dir"], ["--model=dir"], ["--model-path", "dir"], ["--x", "--model", "dir"]):
        serve = parse_serve(words, {})
        assert serve.model == "dir"
        assert settings_of(serve, ["ipc:///a"]).model_path == "dir"


def test_a_router_model_path_is_the_gateways_alone() -> None:
    serve = parse("--router-model-path", "local")
    assert serve.model == "m"
    assert settings_of(serve, ["ipc:///a"]).model_path == "local"


@pytest.mark.parametrize("words", [[], ["--router-model-path", "local"], ["--model"]])
def test_the_engines_model_is_required(words: list[str]) -> None:
    with pytest.raises((ConfigError, SystemExit)):
        parse_serve(words, {})


def test_what_serve_does_not_know_goes_to_the_engine_in_its_order() -> None:
    words = ["--enforce-eager", "--max-num-seqs", "8", "--override", '{"a b": 1}', "-O", "-1", "--seed=0"]
    assert parse(*words).engine_words == ("--model", "m", *words)


def test_router_flags_and_unambiguous_plain_ones_are_the_gateways() -> None:
    serve = parse("--router-request-timeout-secs", "5", "--x", "--shutdown-grace-period-secs", "7", "--port", "9")
    settings = settings_of(serve, ["ipc:///a"])
    assert (settings.request_timeout_secs, settings.shutdown_grace_period_secs, settings.port) == (5.0, 7.0, 9)
    assert serve.engine_words == ("--model", "m", "--x")


def test_a_flag_with_one_meaning_for_both_reaches_both() -> None:
    serve = parse("--served-model-name", "a", "b", "--max-logprobs", "5")
    settings = settings_of(serve, ["ipc:///a"])
    assert (settings.served_model_name, settings.max_logprobs) == (("a", "b"), 5)
    assert serve.engine_words == ("--model", "m", "--served-model-name", "a", "b", "--max-logprobs", "5")


def test_the_router_form_wins_for_the_gateway() -> None:
    serve = parse("--router-reasoning-parser", "qwen3", "--reasoning-parser", "engines_name")
    assert settings_of(serve, ["ipc:///a"]).reasoning_parser == "qwen3"
    assert serve.engine_words[-1] == "engines_name"


@pytest.mark.parametrize("backend", list(EngineProtocol))
def test_revision_and_tokenizer_are_the_engine_s_and_the_gateway_s(backend: EngineProtocol) -> None:
    words = ("--revision", "v1", "--tokenizer", "org/original")
    serve = parse("--backend", backend.value, *words)
    settings = settings_of(serve, ["ipc:///a"])
    assert (settings.revision, settings.tokenizer_path) == ("v1", "org/original")
    assert serve.engine_words[-4:] == words


def test_a_gateway_with_another_model_has_its_own_revision_and_tokenizer() -> None:
    words = ("--revision", "v1", "--tokenizer", "org/original", "--router-model-path")
    other = settings_of(parse(*words, "other"), ["ipc:///a"])
    assert (other.revision, other.tokenizer_path) == (None, None)
    same = settings_of(parse(*words, "m"), ["ipc:///a"])
    assert (same.revision, same.tokenizer_path) == ("v1", "org/original")
    own = settings_of(parse(*words, "other", "--router-revision", "v2"), ["ipc:///a"])
    assert own.revision == "v2"


def test_what_only_one_engine_has_is_the_gateways_with_the_other() -> None:
    vllm = parse("--tool-call-parser", "hermes")
    assert vllm.engine_words[-2:] == ("--tool-call-parser", "hermes")
    tokenspeed = parse("--backend", "tokenspeed", "--tool-call-parser", "hermes")
    assert tokenspeed.engine_words == ("--model", "m")
    for serve in (vllm, tokenspeed):
        assert settings_of(serve, ["ipc:///a"]).tool_call_parser == "hermes"


def test_the_api_key_never_shows_in_an_engines_command_line() -> None:
    serve = parse("--api-key", "secret")
    assert serve.engine_words == ("--model", "m")
    assert settings_of(serve, ["ipc:///a"]).api_key == ("secret",)


def test_a_flag_with_two_meanings_is_the_engines() -> None:
    serve = parse("--log-level", "error")
    assert serve.engine_words[-2:] == ("--log-level", "error")
    assert settings_of(serve, ["ipc:///a"]).log_level == "info"
    assert settings_of(parse("--router-log-level", "warn"), ["ipc:///a"]).log_level == "warn"


def test_an_unknown_router_flag_is_not_passed_to_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--router-nonsense=1")
    assert ended.value.code == 2
    assert "--router-nonsense is not an option of this gateway" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(SERVE_DECIDES - {"host", "port"}))
def test_what_serve_works_out_cannot_be_told_to_the_gateway(name: str) -> None:
    with pytest.raises(SystemExit):
        parse(f"--router-{name.replace('_', '-')}", "x")


def test_the_environment_names_the_backend_unless_the_command_line_does() -> None:
    environment = {"SMG_DEFAULT_BACKEND": "tokenspeed"}
    assert parse(environment=environment).backend is EngineProtocol.TOKENSPEED
    assert parse("--backend", "vllm", environment=environment).backend is EngineProtocol.VLLM
    with pytest.raises(ConfigError, match="only supported for the vllm and tokenspeed backends, not sglang"):
        parse(environment={"SMG_DEFAULT_BACKEND": "sglang"})


def test_only_zmq_is_a_connection_mode() -> None:
    assert parse("--connection-mode", "zmq").replicas == 1
    for mode in ("grpc", "http"):
        with pytest.raises(ConfigError, match=f"{mode} is not offered"):
            parse("--connection-mode", mode)


def test_data_parallel_size_means_replicas_and_never_reaches_the_engine() -> None:
    for flag in ("--data-parallel-size", "--dp-size", "-dp"):
        serve = parse(flag, "3")
        assert (serve.replicas, serve.engine_words) == (3, ("--model", "m"))
    with pytest.raises(ConfigError, match="at least 1"):
        parse("--data-parallel-size", "0")


def test_the_engines_own_data_parallel_size_is_said_after_dashes() -> None:
    serve = parse("--data-parallel-size", "2", "--", "--data-parallel-size", "4", "--port", "1")
    assert (serve.replicas, serve.engine_count) == (2, 4)
    assert serve.engine_words == ("--model", "m", "--data-parallel-size", "4", "--port", "1")
    assert settings_of(serve, ["ipc:///a", "ipc:///b"]).zmq_engine_count == 4


def test_ranks_per_engine_are_said_once() -> None:
    assert parse("--zmq-engine-count", "2").engine_count == 2
    assert parse("--zmq-engine-count", "2", "--", "-dp", "2").engine_count == 2
    with pytest.raises(ConfigError, match="is 2, but"):
        parse("--zmq-engine-count", "2", "--", "--data-parallel-size", "3")
    with pytest.raises(ConfigError, match="must be a number"):
        parse("--", "--data-parallel-size", "many")
    with pytest.raises(ConfigError, match="at least 1"):
        parse("--zmq-engine-count", "0")


def test_a_single_worker_leaves_nothing_to_choose_and_nowhere_else_to_try() -> None:
    one = settings_of(parse("--router-policy", "round_robin"), ["ipc:///a"])
    assert (one.policy, one.disable_retries, one.disable_circuit_breaker) == ("passthrough", True, True)
    group = settings_of(parse("--zmq-engine-count", "2"), ["ipc:///a"])
    assert (group.policy, group.disable_retries, group.disable_circuit_breaker) == ("passthrough", False, True)
    two = settings_of(parse("--router-policy", "round_robin", "--dp-size", "2"), ["ipc:///a", "ipc:///b"])
    assert (two.policy, two.disable_retries, two.disable_circuit_breaker) == ("round_robin", False, False)


def test_the_help_names_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_serve(["--help"], {})
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "--router-request-timeout-secs" in shown
    assert "--worker-base-port" in shown


@pytest.mark.parametrize("backend", list(EngineProtocol))
def test_every_flag_the_engine_has_too_was_thought_about(backend: EngineProtocol) -> None:
    engine_flags = set(Path(__file__).with_name(FLAG_FILES[backend]).read_text().split())
    for option in options():
        if option.name in SERVE_DECIDES | SHARED[backend]:
            continue
        both = set(flags_of(option)) & engine_flags
        assert both <= ENGINE_ONLY[backend] | GATEWAY_KEEPS, f"{both} would no longer reach {backend}"
    shared_flags = {flag for option in options() if option.name in SHARED[backend] for flag in flags_of(option)}
    assert shared_flags - engine_flags <= {"--model-path"}


def test_file_and_environment_lie_below_the_command_line_and_above_serve_s_defaults() -> None:
    layers = merged(
        read_toml("port = 1\nqueue_size = 1\nmodel_path = 'file'", "f").checked(),
        read_environment({"SMG_TRIO_HOST": "2.2.2.2", "SMG_TRIO_QUEUE_SIZE": "2"})[0].checked(),
    )
    settings = settings_of(parse("--queue-timeout-secs", "9"), ["ipc:///a"], layers)
    assert (settings.port, settings.host, settings.queue_size, settings.queue_timeout_secs) == (1, "2.2.2.2", 2, 9.0)
    assert settings.model_path == "m"
    assert settings_of(parse("--port", "3"), ["ipc:///a"], layers).port == 3


def test_what_serve_works_out_is_ignored_in_a_file_and_said_so() -> None:
    layers = read_toml('worker_urls = ["ipc:///x"]\nbackend = "tokenspeed"\nport = 1', "f").checked()
    settings = settings_of(parse(), ["ipc:///a"], layers)
    assert (settings.worker_urls, settings.backend) == (("ipc:///a",), "vllm")
    assert ignored_by_serve(layers) == [
        "f: backend: serve works this out itself; ignored",
        "f: worker_urls: serve works this out itself; ignored",
    ]


def test_the_gateway_s_file_is_named_without_taking_the_engine_s() -> None:
    serve = parse("--router-config", "gateway.toml", "--config", "engine.yaml")
    assert serve.config == "gateway.toml"
    assert serve.engine_words[-2:] == ("--config", "engine.yaml")
    assert parse("--backend", "tokenspeed", "--config", "gateway.toml").config == "gateway.toml"
    assert parse().config is None


@pytest.mark.parametrize(
    ("words", "limits"),
    [
        (["--limit-mm-per-prompt", '{"image": 4}'], ("image=4",)),
        (['--limit_mm_per_prompt={"image": {"count": 2, "width": 512}, "video": 0}'], ("image=2", "video=0")),
        (["--limit-mm-per-prompt.image", "3", "--limit-mm-per-prompt.video=2"], ("image=3", "video=2")),
        (["--", "--limit-mm-per-prompt", '{"vision_chunk": 4, "image": 1}'], ("image=1",)),
    ],
)
def test_the_engines_limits_of_media_are_the_gateways_too(words: list[str], limits: tuple[str, ...]) -> None:
    serve = parse(*words)
    assert settings_of(serve, ["ipc:///s/engine-31000"]).limit_mm == limits
    assert [word for word in words if word != "--"] == list(serve.engine_words)[2:], "the engine is told as before"


@pytest.mark.parametrize("value", ["image=4", "{", '{"image": "many"}'])
def test_limits_of_media_that_cannot_be_read_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="--limit-mm-per-prompt"):
        parse("--limit-mm-per-prompt", value)
