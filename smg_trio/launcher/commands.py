"""The command line and environment of each engine process. Pure.

Lines and defaults are the reference launcher's: the flags that wire an engine to its worker come first, then what the
user wrote, without the flags that would unwire it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import ConfigError, InvalidRequest
from smg_trio.launcher.argv import drop_flags, flag_value, has_flag
from smg_trio.launcher.media_limits import limits_for_engine, limits_of_engine
from smg_trio.wire.addresses import WorkerAddresses, parse_worker_url

if TYPE_CHECKING:
    from smg_trio.launcher.serve_options import ServeOptions

_DIAL_HOST: Final = "127.0.0.1"
_MODEL_FLAGS: Final = ("--model", "--model-path")
_VLLM_WIRED: Final = frozenset(
    {
        *_MODEL_FLAGS,
        "--headless",
        "--data-parallel-size", "-dp",
        "--data-parallel-size-local", "-dpl",
        "--data-parallel-address", "-dpa",
        "--data-parallel-rpc-port", "-dpp",
    }
)  # fmt: skip
_TOKENSPEED_WIRED: Final = frozenset(
    {
        *_MODEL_FLAGS,
        "--headless",
        "--port",
        "--dist-init-addr",
        "--data-parallel-size",
        "--data-parallel-address",
        "--data-parallel-rpc-port",
        "--zmq-engine-index",
    }
)
_TOKENSPEED_DEFAULTS: Final = (("--grammar-backend", "xgrammar"), ("--enable-output-logprobs",))
_DEVICE_FACTORS: Final[Mapping[EngineProtocol, tuple[tuple[str, ...], ...]]] = {
    EngineProtocol.VLLM: (
        ("--tensor-parallel-size", "-tp"),
        ("--pipeline-parallel-size", "-pp"),
        ("--prefill-context-parallel-size", "-pcp"),
    ),
    EngineProtocol.TOKENSPEED: (("--tensor-parallel-size", "--tp", "--attn-tp-size"),),
}
"""Engine flags whose product is the number of devices one rank takes."""
_STORE_PORT_DISTANCE: Final = 233
_LAST_PORT: Final = 65535
_HANDSHAKE_PORTS: Final = range(20000, 30000)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """One engine process to start.

    Attributes:
        index: 0.., its name in messages.
        backend: which engine it is.
        port: the worker port its names derive from.
        url: its worker's URL.
        words: program and arguments.
        environment: variables to set beside the inherited ones.
    """

    index: int
    backend: EngineProtocol
    port: int
    url: str
    words: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"engine-{self.index}"

    @property
    def devices(self) -> str:
        """Its GPUs, for messages."""
        return self.environment.get("CUDA_VISIBLE_DEVICES", "as inherited")


def worker_url(directory: str, port: int) -> str:
    """The URL of the worker at `port`."""
    return f"ipc://{PurePath(directory) / f'engine-{port}'}"


def worker_addresses(url: str) -> WorkerAddresses:
    """What the URL stands for. Raises ConfigError where the socket directory's name is too long for sockets."""
    try:
        return parse_worker_url(url)
    except InvalidRequest as error:
        raise ConfigError("SMG_ZMQ_SOCKET_DIR", error.message) from None


def remote_engine_commands(addresses: WorkerAddresses) -> str:
    """How engines on other hosts are started for a ``tcp://`` worker: text for the terminal.

    vLLM 0.27 to 0.33 ignores ``--data-parallel-address`` where the size is 1 (``vllm/config/parallel.py``) and takes
    the variable instead.
    """
    host, port = addresses.advertised.strip("[]"), addresses.handshake.rpartition(":")[2]
    serve = "vllm serve MODEL --headless"
    return f"""\
One vLLM engine:
  VLLM_DP_MASTER_IP={host} {serve} --data-parallel-size 1 --data-parallel-size-local 1 \\
    --data-parallel-rpc-port {port}

A group of N vLLM engines behind this worker (--zmq-engine-count N), L of them on each host, the first of them number R:
  {serve} --data-parallel-size N --data-parallel-size-local L --data-parallel-start-rank R \\
    --data-parallel-address {host} --data-parallel-rpc-port {port}

TokenSpeed:
  python -m tokenspeed.cli serve --headless --model MODEL --zmq-engine-index 0 --grammar-backend xgrammar \\
    --enable-output-logprobs --data-parallel-address {host} --data-parallel-rpc-port {port}
"""


def plan_engines(
    serve: ServeOptions, ports: Sequence[int], directory: str, environment: Mapping[str, str]
) -> tuple[EngineCommand, ...]:
    """What to start for `serve`, one command per port.

    Args:
        serve: what was asked.
        ports: as many free worker ports as there are replicas.
        directory: where the sockets go.
        environment: ``CUDA_VISIBLE_DEVICES`` is the pool that is shared out.

    Raises:
        ConfigError: two workers derive the same handshake port, or there are too few GPUs.
    """
    urls = [worker_url(directory, port) for port in ports]
    reject_collisions(urls)
    pool = environment.get("CUDA_VISIBLE_DEVICES")
    each = devices_per_engine(serve)
    return tuple(
        EngineCommand(
            index=index,
            backend=serve.backend,
            port=port,
            url=url,
            words=engine_words(serve, port, handshake_port(url)),
            environment={"PYTHONUNBUFFERED": "1", **device_slice(index, each, pool)},
        )
        for index, (port, url) in enumerate(zip(ports, urls, strict=True))
    )


def handshake_port(url: str) -> int:
    """The port on which the engines of `url` dial in."""
    return int(worker_addresses(url).handshake.rpartition(":")[2])


def reject_collisions(urls: Sequence[str]) -> None:
    """Refuse workers that derive the same handshake port. Raises ConfigError naming both."""
    seen: dict[int, str] = {}
    for url in urls:
        port = handshake_port(url)
        if port in seen:
            raise ConfigError(
                "--worker-base-port",
                f"ZMQ handshake port collision on {port}: {seen[port]} and {url} derive the same port.",
                "Adjust --worker-base-port so the worker ipc paths differ.",
            )
        seen[port] = url


def engine_words(serve: ServeOptions, port: int, dial_port: int) -> tuple[str, ...]:
    """Program and arguments of the engine at worker port `port`, which dials in at `dial_port`."""
    if serve.backend is EngineProtocol.VLLM:
        return tuple(_vllm_words(serve, dial_port))
    return tuple(_tokenspeed_words(serve, port, dial_port))


def _vllm_words(serve: ServeOptions, dial_port: int) -> list[str]:
    count = str(serve.engine_count)
    return [
        serve.engine_python, "-m", "vllm.entrypoints.cli.main", "serve", serve.model, "--headless",
        "--data-parallel-size", count,
        "--data-parallel-size-local", count,
        "--data-parallel-address", _DIAL_HOST,
        "--data-parallel-rpc-port", str(dial_port),
        *_media_words(serve),
        *drop_flags(serve.engine_words, _VLLM_WIRED),
    ]  # fmt: skip


def _media_words(serve: ServeOptions) -> list[str]:
    """The gateway's limits of media, for engines that were not given their own."""
    limits = serve.given.get("limit_mm")
    return [] if limits is None or limits_of_engine(serve.engine_words) is not None else limits_for_engine(limits)


def _tokenspeed_words(serve: ServeOptions, port: int, dial_port: int) -> list[str]:
    own = drop_flags(serve.engine_words, _TOKENSPEED_WIRED)
    group = ["--data-parallel-size", str(serve.engine_count)] if serve.engine_count > 1 else []
    return [
        serve.engine_python, "-m", "tokenspeed.cli", "serve", "--headless",
        "--model", serve.model,
        "--port", str(port),
        "--dist-init-addr", f"{_DIAL_HOST}:{store_port(port)}",
        "--data-parallel-address", _DIAL_HOST,
        "--data-parallel-rpc-port", str(dial_port),
        "--zmq-engine-index", "0",
        *group,
        *(word for default in _TOKENSPEED_DEFAULTS if not has_flag(own, default[:1]) for word in default),
        *own,
    ]  # fmt: skip


def store_port(port: int) -> int:
    """Where TokenSpeed's ranks of the worker at `port` meet, clear of the ports that handshakes derive."""
    store = port + _STORE_PORT_DISTANCE
    if store > _LAST_PORT:
        store = port - _STORE_PORT_DISTANCE
    return store + len(_HANDSHAKE_PORTS) if store in _HANDSHAKE_PORTS else store


def devices_per_engine(serve: ServeOptions) -> int:
    """How many GPUs one engine process takes. Raises ConfigError for sizes that are no positive numbers."""
    devices = serve.engine_count
    for flags in _DEVICE_FACTORS[serve.backend]:
        devices *= _size(serve.engine_words, flags)
    return devices


def _size(words: Sequence[str], flags: tuple[str, ...]) -> int:
    value = flag_value(words, flags)
    if value is None:
        return 1
    try:
        size = int(value)
    except ValueError:
        raise ConfigError(flags[0], f"must be a number, got {value!r}.") from None
    if size < 1:
        raise ConfigError(flags[0], f"must be positive, got {size}.")
    return size


def device_slice(index: int, each: int, pool: str | None) -> dict[str, str]:
    """The GPUs of engine `index`, as the variable that says so.

    Args:
        index: 0..
        each: GPUs per engine.
        pool: ``CUDA_VISIBLE_DEVICES`` as inherited; None: all, by number; empty: none are wanted, nothing is set.

    Raises:
        ConfigError: the pool is too small.
    """
    first, last = index * each, index * each + each - 1
    if pool is None:
        return {"CUDA_VISIBLE_DEVICES": ",".join(str(device) for device in range(first, last + 1))}
    devices = [device.strip() for device in pool.split(",") if device.strip()]
    if not devices:
        return {}
    if last >= len(devices):
        raise ConfigError(
            "--data-parallel-size",
            f"CUDA_VISIBLE_DEVICES has {len(devices)} GPU(s) but dp_rank={index} with tp_size={each} requires index "
            f"{first}..{last}",
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices[first : last + 1])}
