"""What the words after ``serve`` mean: serve's own flags, the gateway's, and the engine's. Pure.

Two passes, as users of such launchers know them. The first takes serve's own flags and the gateway's: each gateway
setting is ``--router-<name>``, and plain ``--<name>`` too unless the engine has a flag of that name. What is left
belongs to the engine, in its order. The second pass reads, without taking, those of the engine's flags that mean the
same to the gateway (the model, its revision, tokenizer, served name and parsers), so that they are given once;
``--router-<name>`` still wins for the gateway. Words after ``--`` are the engine's whatever they are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import ConfigError
from smg_trio.launcher.argv import flag_value
from smg_trio.launcher.media_limits import limits_of_engine
from smg_trio.settings.flags import argument_keywords, flag_of, flags_of
from smg_trio.settings.help_text import Parser, exit_codes
from smg_trio.settings.settings import Settings, options
from smg_trio.settings.smg_flags import NOTE, add_smg_flags, given_smg_flags

if TYPE_CHECKING:
    from smg_trio.settings.sources import Layer

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8080
DEFAULT_BASE_PORT: Final = 31000

SERVE_DECIDES: Final = frozenset(
    {"worker_urls", "backend", "zmq_engine_count", "zmq_handshake_address", "host", "port"}
)
"""Settings that have no ``--router-`` flag: serve works them out, or has a flag of its own for them."""

SHARED: Final[Mapping[EngineProtocol, frozenset[str]]] = {
    EngineProtocol.VLLM: frozenset(
        {
            "model_path",
            "revision",
            "served_model_name",
            "chat_template",
            "tool_call_parser",
            "reasoning_parser",
            "generation_config",
            "max_logprobs",
        }
    ),
    EngineProtocol.TOKENSPEED: frozenset({"model_path", "revision", "served_model_name", "reasoning_parser"}),
}
"""Settings whose plain flag the engine (vLLM 0.32, TokenSpeed 0.1.1) has too, with the same meaning: both get it."""

ENGINE_ONLY: Final[Mapping[EngineProtocol, frozenset[str]]] = {
    EngineProtocol.VLLM: frozenset({"--log-level", "--block-size", "--otlp-traces-endpoint"}),
    EngineProtocol.TOKENSPEED: frozenset({"--log-level", "--block-size"}),
}
"""Plain flags both sides have with meanings of their own: the engine gets them, as with the reference.

vLLM's ``--api-key`` is not among them: a headless engine has nothing to guard with it, so it is the gateway's alone
and never shows in the engine's command line.
"""

_ENGINES_TOKENIZER: Final = "--tokenizer"
"""What both engines call the gateway's ``--tokenizer-path``."""
_OF_THE_ENGINES_MODEL: Final = ("revision", "tokenizer_path")
"""Shared settings that mean nothing to a gateway that is given another model than the engine."""

_REPLICA_FLAGS: Final = ("--data-parallel-size", "--dp-size", "-dp")
_ENGINE_DP_FLAGS: Final = ("--data-parallel-size", "-dp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What one ``serve`` is told.

    Attributes:
        backend: which engine.
        model: the engine's model, as given.
        replicas: independent workers, each with an engine process of its own.
        engine_count: data-parallel ranks of each engine process.
        worker_host: where the engines run, for messages only.
        worker_base_port: first port tried for an engine.
        startup_timeout_s: how long an engine may take to become ready; None: without limit.
        engine_python: interpreter that has the engine installed.
        engine_words: the engine's flags as the user wrote them, in order.
        given: gateway settings the command line names, by field name.
        config: the gateway's settings file, if it names one.
        smg_flags: flags of the reference's gateway that have no effect (see `smg_flags`).
    """

    backend: EngineProtocol
    model: str
    replicas: int = 1
    engine_count: int = 1
    worker_host: str = DEFAULT_HOST
    worker_base_port: int = DEFAULT_BASE_PORT
    startup_timeout_s: float | None = None
    engine_python: str = sys.executable
    engine_words: tuple[str, ...] = ()
    given: Mapping[str, Any]
    config: str | None = None
    smg_flags: tuple[str, ...] = ()


def parse_serve(words: Sequence[str], environment: Mapping[str, str]) -> ServeOptions:
    """Read a command line.

    Args:
        words: everything after ``serve``.
        environment: ``SMG_DEFAULT_BACKEND`` is what ``--backend`` defaults to.

    Raises:
        ConfigError: words that parse but cannot work. SystemExit: words that do not parse, or ``--help``.
    """
    words, verbatim = _split_at_dashes(words)
    backend = _backend(words, environment)
    parser = make_parser(backend)
    parsed, rest = parser.parse_known_args(words)
    _check_connection_mode(parsed.connection_mode)
    for word in rest:
        if word.startswith("--router-"):
            parser.error(f"{word.partition('=')[0]} is not an option of this gateway")
    engine_words = (*rest, *verbatim)
    shared, own = _shared_values(backend, engine_words), _given(parsed)
    if own.get("model_path", shared.get("model_path")) != shared.get("model_path"):
        shared = {name: value for name, value in shared.items() if name not in _OF_THE_ENGINES_MODEL}
    if backend is EngineProtocol.VLLM and (limits := limits_of_engine(engine_words)) is not None:
        shared["limit_mm"] = limits
    given = shared | own
    return ServeOptions(
        backend=backend,
        model=_model(backend, engine_words),
        replicas=_at_least_one(parsed.replicas, _REPLICA_FLAGS[0]),
        engine_count=_engine_count(parsed.engine_count, verbatim),
        worker_host=parsed.worker_host,
        worker_base_port=parsed.worker_base_port,
        startup_timeout_s=parsed.startup_timeout_s,
        engine_python=parsed.engine_python,
        engine_words=engine_words,
        given=given,
        config=parsed.config,
        smg_flags=tuple(given_smg_flags(parsed, "router-")),
    )


def ignored_by_serve(layers: Layer) -> list[str]:
    """Warnings about what file and environment say and serve works out itself."""
    return [
        f"{layers[name].origin}: serve works this out itself; ignored"
        for name in sorted(SERVE_DECIDES - {"host", "port"})
        if name in layers
    ]


def settings_of(serve: ServeOptions, worker_urls: Sequence[str], layers: Layer | None = None) -> Settings:
    """The gateway's settings for these workers; `layers`: what file and environment say.

    As with the reference, one worker leaves nothing to choose (``passthrough`` whatever was asked), nothing to keep
    away from (no circuit breaker) and, if it is one engine, nowhere else to try again (no retries).
    """
    values: dict[str, Any] = {"host": DEFAULT_HOST, "port": DEFAULT_PORT, "model_path": serve.model}
    values |= {name: sourced.value for name, sourced in (layers or {}).items()}
    values |= serve.given
    values |= {
        "worker_urls": tuple(worker_urls),
        "backend": serve.backend.value,
        "zmq_engine_count": serve.engine_count,
    }
    if serve.replicas == 1:
        values |= {"policy": "passthrough", "disable_circuit_breaker": True}
        if serve.engine_count == 1:
            values["disable_retries"] = True
    return Settings(**values)


def make_parser(backend: EngineProtocol) -> argparse.ArgumentParser:
    """The first pass's parser, whose help lists what serve and its gateway take."""
    parser = Parser(
        prog="smg-trio serve",
        usage="smg-trio serve --model ID [options] [engine options] [-- engine options]",
        description="Start headless engines and the gateway in front of them. What is not listed here goes to the "
        "engines' command line as it is. What the gateway takes may also stand in a file (--router-config) or in the "
        "environment (SMG_TRIO_<NAME>).",
        epilog=exit_codes(),
        allow_abbrev=False,
    )
    _add_serve_flags(parser)
    config = ["--router-config"] if backend is EngineProtocol.VLLM else ["--router-config", "--config"]
    parser.add_argument(*config, dest="config", metavar="FILE", default=None, help="TOML file with gateway settings")
    groups: dict[str, Any] = {}
    for option in options():
        if option.name in SERVE_DECIDES:
            continue
        title = option.metadata["group"]
        groups[title] = group = groups.get(title) or parser.add_argument_group(f"Gateway: {title}")
        group.add_argument(*_gateway_flags(option, backend), **argument_keywords(option))
    add_smg_flags(parser, "router-")
    return parser


def _gateway_flags(option: Any, backend: EngineProtocol) -> list[str]:
    plain = flags_of(option)
    prefixed = [f"--router-{flag.removeprefix('--')}" for flag in plain]
    if option.name in SHARED[backend]:
        return prefixed
    return prefixed + [flag for flag in plain if flag not in ENGINE_ONLY[backend]]


def _add_serve_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("Serve").add_argument
    add("--backend", metavar="NAME", help="vllm or tokenspeed (default: $SMG_DEFAULT_BACKEND, or vllm)")
    add("--connection-mode", default="zmq", metavar="MODE", help="zmq, the only one (default: %(default)s)")
    add("--host", default=argparse.SUPPRESS, help=f"address to listen on (default: {DEFAULT_HOST})")
    add("--port", type=int, default=argparse.SUPPRESS, help=f"port to listen on (default: {DEFAULT_PORT})")
    add(*_REPLICA_FLAGS, dest="replicas", type=int, default=1, metavar="N",
        help="independent engines, each behind a worker of its own (default: %(default)s)")  # fmt: skip
    add("--zmq-engine-count", dest="engine_count", type=int, default=None, metavar="N",
        help="data-parallel ranks within each engine, one worker for all of them (default: 1)")  # fmt: skip
    add("--worker-host", default=DEFAULT_HOST, help="accepted; engines always run on this host")
    add("--worker-base-port", type=int, default=DEFAULT_BASE_PORT, metavar="PORT",
        help="where the search for free engine ports begins (default: %(default)s)")  # fmt: skip
    add("--worker-startup-timeout", dest="startup_timeout_s", type=float, default=None, metavar="S",
        help="an engine not ready after this long counts as failed (default: no limit)")  # fmt: skip
    add("--servicer-impl", metavar="NAME", help=NOTE)
    add("--enable-token-usage-details", action="store_true", help="accepted; usage details are always given")
    add("--engine-python", default=sys.executable, metavar="PATH",
        help="interpreter that has the engine installed (default: this one)")  # fmt: skip


def _split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(words)
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _backend(words: Sequence[str], environment: Mapping[str, str]) -> EngineProtocol:
    first = argparse.ArgumentParser(prog="smg-trio serve", add_help=False, allow_abbrev=False)
    first.add_argument("--backend", default=environment.get("SMG_DEFAULT_BACKEND") or EngineProtocol.VLLM.value)
    name = first.parse_known_args(words)[0].backend
    try:
        return EngineProtocol(name)
    except ValueError:
        raise ConfigError(
            "--backend", f"connection-mode zmq is only supported for the vllm and tokenspeed backends, not {name}"
        ) from None


def _check_connection_mode(mode: str) -> None:
    if mode != "zmq":
        raise ConfigError(
            "--connection-mode",
            f"{mode} is not offered: this gateway speaks to engines over ZMQ only.",
            "Leave the option out, or say zmq.",
        )


def _given(parsed: argparse.Namespace) -> dict[str, Any]:
    names = {option.name for option in options()} - SERVE_DECIDES | {"host", "port"}
    return {name: _frozen(value) for name, value in vars(parsed).items() if name in names}


def _shared_values(backend: EngineProtocol, engine_words: Sequence[str]) -> dict[str, Any]:
    second = argparse.ArgumentParser(prog="smg-trio serve", add_help=False, allow_abbrev=False)
    for option in options():
        if option.name in SHARED[backend]:
            second.add_argument(*flags_of(option), **argument_keywords(option))
    second.add_argument(_ENGINES_TOKENIZER, dest="tokenizer_path", default=argparse.SUPPRESS)
    return {name: _frozen(value) for name, value in vars(second.parse_known_args(engine_words)[0]).items()}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _model(backend: EngineProtocol, engine_words: Sequence[str]) -> str:
    model = _shared_values(backend, engine_words).get("model_path")
    if not model:
        raise ConfigError("--model", "is required: it names the model for the engines and for the gateway.")
    return str(model)


def _engine_count(asked: int | None, verbatim: Sequence[str]) -> int:
    """Ranks per engine: the flag, or the engine's own one after ``--`` (before it, it means replicas)."""
    value = flag_value(verbatim, _ENGINE_DP_FLAGS)
    if value is None:
        return _at_least_one(1 if asked is None else asked, flag_of("zmq_engine_count"))
    try:
        count = int(value)
    except ValueError:
        raise ConfigError("--data-parallel-size", f"after -- must be a number, got {value!r}.") from None
    if asked is not None and asked != count:
        raise ConfigError(
            "--zmq-engine-count", f"is {asked}, but the engine's --data-parallel-size after -- is {count}."
        )
    return _at_least_one(count, "--data-parallel-size")


def _at_least_one(count: int, flag: str) -> int:
    if count < 1:
        raise ConfigError(flag, f"must be at least 1, got {count}.")
    return count
