"""Engines on this host: connected to a worker, about to dial in, or dialling in where nobody listens. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from smg_trio.doctor.findings import Check, Finding, Status
from smg_trio.launcher.argv import flag_value

if TYPE_CHECKING:
    from smg_trio.doctor.host import Host, Process
    from smg_trio.settings.settings import Settings
    from smg_trio.wire.addresses import WorkerAddresses


def dialled_port(words: Sequence[str]) -> int | None:
    """The handshake port that an engine with this command line dials; None if it is no headless engine."""
    if "--headless" in words:
        port = flag_value(words, ("--data-parallel-rpc-port",))
    elif "fake-engine" in words:
        port = (flag_value(words, ("--handshake",)) or "").rpartition(":")[2]
    else:
        return None
    return int(port) if port and port.isdecimal() else None


def dialling(host: Host) -> dict[int, list[Process]]:
    """The headless engines that run here, by the port they dial."""
    found: dict[int, list[Process]] = {}
    for process in host.processes.values():
        port = dialled_port(process.words)
        if port is not None:
            found.setdefault(port, []).append(process)
    return found


def connected(addresses: WorkerAddresses, host: Host) -> int:
    """How many connections the worker's input socket has; an engine has one per rank."""
    return sum(not one.listening and one.path == addresses.input_path for one in host.unix)


def check_engines(url: str, addresses: WorkerAddresses, settings: Settings, host: Host, served: bool) -> Finding:
    """Whether a worker has its engines. `served`: a gateway listens on its sockets now."""
    expected, there = settings.zmq_engine_count, connected(addresses, host)
    port = handshake_port(addresses)
    if there >= expected:
        text = f"{there} connected" if expected == 1 else f"{there} connections for {expected} ranks"
        return Finding(Check.ENGINES, Status.OK, url, text)
    start = f"Start one: {start_command(settings, port)}"
    if there:
        text = f"{there} of {expected} ranks are connected"
        return Finding(Check.ENGINES, Status.WARNING, url, text, "Look at the log of the engine that is missing.")
    starting = dialling(host).get(port, [])
    if starting:
        who = ", ".join(map(str, starting))
        wait = "is not connected yet" if served else "waits for a gateway"
        return Finding(Check.ENGINES, Status.NOTE, url, f"{who} dials in at port {port} and {wait}")
    if served:
        text = f"none is connected, and none that can be seen here dials in at port {port}."
        return Finding(Check.ENGINES, Status.PROBLEM, url, text, start)
    return Finding(Check.ENGINES, Status.NOTE, url, f"none that can be seen here dials in at port {port}", start)


def check_lost_engines(host: Host, ports: Sequence[int]) -> Iterator[Finding]:
    """Engines that dial a port where nobody listens and that is of none of the workers: the likeliest mistake."""
    for port, processes in sorted(dialling(host).items()):
        if port not in ports and not host.listeners(port):
            for process in processes:
                wanted = " or ".join(map(str, sorted(ports))) or "what `smg-trio handshake-port URL` prints"
                yield Finding(
                    Check.ENGINES, Status.WARNING, str(process), f"dials port {port}, where nobody listens",
                    f"Start it with the handshake port of its worker: {wanted}.",
                )  # fmt: skip


def handshake_port(addresses: WorkerAddresses) -> int:
    """The port of a worker's handshake address, 0 if it names none."""
    port = addresses.handshake.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def start_command(settings: Settings, port: int) -> str:
    """The command that starts the engine of a worker, as the guides have it."""
    model = settings.model_path or "MODEL"
    dial = f"--data-parallel-address 127.0.0.1 --data-parallel-rpc-port {port}"
    if settings.backend == "tokenspeed":
        ranks = f" --data-parallel-size {settings.zmq_engine_count}" if settings.zmq_engine_count > 1 else ""
        own = "--zmq-engine-index 0 --grammar-backend xgrammar --enable-output-logprobs"
        return f"python -m tokenspeed.cli serve --headless --model {model} {own} {dial}{ranks}"
    count = settings.zmq_engine_count
    return f"vllm serve {model} --headless --data-parallel-size {count} --data-parallel-size-local {count} {dial}"
