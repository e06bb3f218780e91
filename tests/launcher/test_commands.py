from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.errors import ConfigError
from smg_trio.launcher.commands import (
    device_slice,
    devices_per_engine,
    plan_engines,
    reject_collisions,
    store_port,
    worker_url,
)
from smg_trio.launcher.serve import plan_serve
from smg_trio.launcher.serve_options import ServeOptions, parse_serve
from smg_trio.wire.addresses import handshake_port
from smg_trio.worker.socket_directory import default_socket_directory

DIRECTORY = "/tmp/smg-zmq-0"


def options(*words: str) -> ServeOptions:
    return parse_serve(["--model", "M", "--engine-python", "py", *words], {})


def lines(serve: ServeOptions, *ports: int, environment: dict[str, str] | None = None) -> list[str]:
    return [shlex.join(command.words) for command in plan_engines(serve, ports, DIRECTORY, environment or {})]


def test_a_vllm_command_is_the_references() -> None:
    port = handshake_port("/tmp/smg-zmq-0/engine-31000")
    assert lines(options("--enforce-eager", "--seed", "0"), 31000) == [
        "py -m vllm.entrypoints.cli.main serve M --headless --data-parallel-size 1 --data-parallel-size-local 1 "
        f"--data-parallel-address 127.0.0.1 --data-parallel-rpc-port {port} --enforce-eager --seed 0"
    ]


def test_a_tokenspeed_command_is_the_references_as_observed() -> None:
    words = (
        "--data-parallel-size",
        "2",
        "--tensor-parallel-size",
        "2",
        "--grammar-backend",
        "outlines",
        "--foo",
        "bar",
    )
    serve = options("--backend", "tokenspeed", *words)
    [first, second] = plan_engines(serve, [31000, 31003], DIRECTORY, {})
    assert shlex.join(first.words) == (
        "py -m tokenspeed.cli serve --headless --model M --port 31000 --dist-init-addr 127.0.0.1:31233 "
        "--data-parallel-address 127.0.0.1 --data-parallel-rpc-port 27937 --zmq-engine-index 0 "
        "--enable-output-logprobs --tensor-parallel-size 2 --grammar-backend outlines --foo bar"
    )
    assert first.environment == {"PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert second.environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "31003" in second.words
    assert (first.name, first.url) == ("engine-0", "ipc:///tmp/smg-zmq-0/engine-31000")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "--grammar-backend xgrammar --enable-output-logprobs"),
        (("--grammar-backend=none",), "--enable-output-logprobs --grammar-backend=none"),
        (("--enable-output-logprobs",), "--grammar-backend xgrammar --enable-output-logprobs"),
        (("--enable_output_logprobs",), "--grammar-backend xgrammar --enable_output_logprobs"),
    ],
)
def test_tokenspeed_defaults_give_way_to_the_users_flags(words: tuple[str, ...], expected: str) -> None:
    [line] = lines(options("--backend", "tokenspeed", *words), 31000)
    assert line.endswith(f"--zmq-engine-index 0 {expected}")


@pytest.mark.parametrize(
    "words",
    [
        "--headless",
        "--model=other",
        "--data-parallel-address 1.2.3.4",
        "--data-parallel-rpc-port=9",
        "--data-parallel-size-local 7",
        "-dpa 1.2.3.4 -dpp 9 -dpl 7",
        "--data_parallel_rpc_port 9",
        "-- --data-parallel-size 1",
    ],
)
def test_flags_that_would_unwire_a_vllm_engine_are_dropped(words: str) -> None:
    [line] = lines(options(*words.split()), 31000)
    assert line.partition("serve ")[2].partition(" ")[2] == lines(options(), 31000)[0].partition("serve M ")[2]


@pytest.mark.parametrize(
    "words", ["--headless", "--dist-init-addr h:1", "--data-parallel-address h", "--zmq-engine-index=3"]
)
def test_flags_that_would_unwire_a_tokenspeed_engine_are_dropped(words: str) -> None:
    serve, wired = options("--backend", "tokenspeed"), options("--backend", "tokenspeed", *words.split())
    assert lines(wired, 31000) == lines(serve, 31000)


def test_a_group_is_one_process_with_its_ranks() -> None:
    [vllm] = plan_engines(options("--zmq-engine-count", "2"), [31000], DIRECTORY, {})
    assert "--data-parallel-size 2 --data-parallel-size-local 2" in shlex.join(vllm.words)
    assert vllm.devices == "0,1"
    serve = options("--backend", "tokenspeed", "--", "--data-parallel-size", "2")
    assert lines(serve, 31000)[0].count("--data-parallel-size 2") == 1


def test_workers_with_one_handshake_port_are_refused_by_name() -> None:
    taken: dict[int, int] = {}
    for port in range(31000, 65536):
        derived = handshake_port(f"{DIRECTORY}/engine-{port}")
        if derived in taken:
            break
        taken[derived] = port
    first, second = worker_url(DIRECTORY, taken[derived]), worker_url(DIRECTORY, port)
    with pytest.raises(ConfigError) as refused:
        plan_engines(options("--dp-size", "2"), [taken[derived], port], DIRECTORY, {})
    assert (
        f"ZMQ handshake port collision on {derived}: {first} and {second} derive the same port. "
        "Adjust --worker-base-port so the worker ipc paths differ." in refused.value.message
    )
    reject_collisions([first])


def test_a_socket_directory_too_long_for_sockets_is_refused() -> None:
    with pytest.raises(ConfigError, match="SMG_ZMQ_SOCKET_DIR"):
        plan_engines(options(), [31000], "/" + "d" * 120, {})


def test_the_socket_directory_is_private_unless_named() -> None:
    assert default_socket_directory({}, 7) == "/tmp/smg-zmq-7"
    assert default_socket_directory({"SMG_ZMQ_SOCKET_DIR": "/s"}, 7) == "/s"
    assert worker_url("/s/", 1) == "ipc:///s/engine-1"


@pytest.mark.parametrize(
    ("port", "store"), [(31000, 31233), (65302, 65535), (65303, 65070), (19800, 30033), (29800, 30033), (29700, 39933)]
)
def test_the_store_port_stays_clear_of_handshake_ports(port: int, store: int) -> None:
    assert store_port(port) == store


@given(st.integers(1, 65535))
def test_every_store_port_is_a_port_outside_the_handshake_range(port: int) -> None:
    store = store_port(port)
    assert 0 < store <= 65535
    assert not 20000 <= store < 30000
    assert store != port


@pytest.mark.parametrize(
    ("words", "devices"),
    [
        ("", 1),
        ("--tensor-parallel-size 4", 4),
        ("-tp 2 -pp 3", 6),
        ("--tensor_parallel_size=2 --pipeline-parallel-size=2 -pcp 2", 8),
        ("-tp 2 --zmq-engine-count 2", 4),
        ("--backend tokenspeed --tp 4", 4),
        ("--backend tokenspeed --attn-tp-size 2", 2),
    ],
)
def test_an_engine_takes_as_many_gpus_as_its_parallel_sizes_say(words: str, devices: int) -> None:
    assert devices_per_engine(options(*words.split())) == devices


@pytest.mark.parametrize(("words", "problem"), [("-tp 0", "must be positive, got 0"), ("-tp x", "must be a number")])
def test_sizes_that_are_none_are_refused(words: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        devices_per_engine(options(*words.split()))


def test_gpus_come_from_the_pool_or_by_number() -> None:
    assert device_slice(1, 2, None) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert device_slice(1, 2, "GPU-a, GPU-b,4,7") == {"CUDA_VISIBLE_DEVICES": "4,7"}
    assert device_slice(0, 1, "") == {}
    with pytest.raises(ConfigError, match=r"has 3 GPU\(s\) but dp_rank=1 with tp_size=2 requires index 2..3"):
        device_slice(1, 2, "0,1,2")


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 40))
def test_no_gpu_is_given_twice(engines: int, each: int, spare: int) -> None:
    pool = [f"g{number}" for number in range(engines * each + spare)]
    slices = [device_slice(index, each, ",".join(pool))["CUDA_VISIBLE_DEVICES"].split(",") for index in range(engines)]
    assert [device for part in slices for device in part] == pool[: engines * each]


@pytest.mark.parametrize(
    ("model", "words", "engine", "gateway"),
    [
        ("org/model@v1", (), ("org/model", ["--revision", "v1"]), ("org/model@v1", None)),
        ("org/model@v1", ("--revision", "v1"), ("org/model", ["--revision", "v1"]), ("org/model@v1", "v1")),
        ("org/model", ("--revision", "v1"), ("org/model", ["--revision", "v1"]), ("org/model", "v1")),
        ("org/model", (), ("org/model", []), ("org/model", None)),
    ],
)
def test_the_revision_in_a_model_s_name_is_the_engine_s_flag(
    model: str, words: tuple[str, ...], engine: tuple[str, list[str]], gateway: tuple[str, str | None], tmp_path: Path
) -> None:
    environment = {"SMG_ZMQ_SOCKET_DIR": str(tmp_path)}
    plan = plan_serve(parse_serve(["--model", model, *words], {}), environment)
    [command] = plan.commands
    named = command.words[command.words.index("serve") + 1]
    assert (named, list(command.words[command.words.index("--data-parallel-rpc-port") + 2 :])) == engine
    assert (plan.settings.model_path, plan.settings.revision) == gateway


def test_a_directory_may_be_called_like_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models/m@v1").mkdir(parents=True)
    plan = plan_serve(parse_serve(["--model", "models/m@v1"], {}), {"SMG_ZMQ_SOCKET_DIR": str(tmp_path)})
    assert "models/m@v1" in plan.commands[0].words


def test_the_gateways_limits_of_media_are_the_engines_unless_these_have_their_own() -> None:
    [command] = plan_engines(options("--limit-mm", "image=4"), [31000], DIRECTORY, {})
    words = list(command.words)
    assert words[words.index("--limit-mm-per-prompt") + 1] == '{"image":4,"video":1,"audio":0}'
    own = options("--limit-mm", "image=4", "--limit-mm-per-prompt", '{"image":8}')
    [command] = plan_engines(own, [31000], DIRECTORY, {})
    assert list(command.words).count("--limit-mm-per-prompt") == 1
    assert own.given["limit_mm"] == ("image=4",)
    [command] = plan_engines(options(), [31000], DIRECTORY, {})
    assert "--limit-mm-per-prompt" not in command.words
