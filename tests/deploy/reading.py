"""Deployment files as the programs that use them read them, and what has to hold wherever a gateway is started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from smg_trio.cli.main import make_parser
from smg_trio.gateway.routes import ROUTES
from smg_trio.settings.settings import Settings
from smg_trio.settings.sources import defaults, layer_of_flags, merged, read_environment, read_toml, settings_of
from smg_trio.wire.addresses import handshake_port

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CUTTING_S = 5.0
"""What a gateway may take beyond its grace period: cutting connections, closing sockets."""
OPEN_PATHS = {route.path for route in ROUTES if route.public and route.method == "GET"}


def documents(path: Path) -> list[dict[str, Any]]:
    """Every document of a YAML file."""
    return list(yaml.safe_load_all(path.read_text()))


def gateway_settings(
    words: Sequence[str], *, files: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """What a gateway started with these words would run with: files are given by path, and nothing is unknown."""
    parsed = make_parser().parse_args(list(words))
    assert parsed.command == "launch"
    file = read_toml((files or {})[parsed.config], parsed.config) if parsed.config else None
    variables, warnings = read_environment(environment or {})
    assert warnings == []
    layers = [file.checked()] if file else []
    return settings_of(merged(defaults(), *layers, variables.checked(), layer_of_flags(vars(parsed))))


def check_engine(words: Sequence[str], url: str, flags_of_vllm: set[str]) -> None:
    """An engine's command line finds the worker at `url`, and vLLM knows every flag of it."""
    given = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    assert "--headless" in words
    assert given["--data-parallel-rpc-port"] == str(handshake_port(url.removeprefix("ipc://")))
    assert given["--data-parallel-address"] == "127.0.0.1"
    assert given["--data-parallel-size"] == given["--data-parallel-size-local"]
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= flags_of_vllm


def flags_of_vllm() -> set[str]:
    """Every flag of vLLM 0.32's `serve`."""
    return set(shlex.split((ROOT / "tests/launcher/flags-vllm-0.32.0.txt").read_text(), comments=True))
