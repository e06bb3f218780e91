"""What a worker URL stands for: two data sockets and a handshake port that the gateway binds and engines connect to.

``ipc://<path>`` is for engines on this host. The derivation is the one users of same-host workers know, so that engines
started for another gateway find this one: input ``<path>-in.sock``, output ``<path>-out.sock``, handshake
``tcp://127.0.0.1:(20000 + FNV-1a-64(path) mod 10000)`` unless stated.

``tcp://<host>:<port>`` is for engines on other hosts: the host is an address of this one that they can reach, the port
that of the handshake (vLLM's ``--data-parallel-rpc-port``), the two after it are input and output. Fixed, so that a
gateway that restarts finds its engines again: they reconnect, and never ask anew.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from smg_trio.core.errors import InvalidRequest

_SCHEME: Final = "ipc://"
TCP_SCHEME: Final = "tcp://"
_LAST_PORT: Final = 65535
_INPUT_SUFFIX: Final = "-in.sock"
_OUTPUT_SUFFIX: Final = "-out.sock"
# sockaddr_un holds 108 bytes with the closing NUL (Linux unix(7)).
MAX_SOCKET_PATH_BYTES: Final = 107
_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_U64: Final = (1 << 64) - 1
_FIRST_PORT: Final = 20000
_PORT_SPAN: Final = 10000


@dataclass(frozen=True, slots=True)
class SocketPair:
    """Where one process receives from engines, and sends to them: the paths of two socket files."""

    input_path: str
    output_path: str

    @property
    def input(self) -> str:
        """ZMQ endpoint of the request ROUTER."""
        return _SCHEME + self.input_path

    @property
    def output(self) -> str:
        """ZMQ endpoint of the output PULL."""
        return _SCHEME + self.output_path


@dataclass(frozen=True, slots=True)
class WorkerAddresses:
    """The three addresses the gateway binds for one worker.

    Attributes:
        path: the path of the URL, the common stem of both socket files; of a ``tcp://`` worker a file name that is
            unique to it.
        input: ZMQ endpoint of the request ROUTER.
        output: ZMQ endpoint of the output PULL.
        input_path, output_path: their socket files; empty for a ``tcp://`` worker.
        handshake: ZMQ endpoint of the handshake ROUTER, always tcp (engines dial nothing else).
        advertised: host of the data sockets as engines are told it; empty for sockets in files.
    """

    path: str
    input: str
    output: str
    input_path: str
    output_path: str
    handshake: str
    advertised: str = ""

    @property
    def remote(self) -> bool:
        """Whether its engines may be on other hosts."""
        return bool(self.advertised)

    def told(self, pairs: int) -> tuple[list[str], list[str]]:
        """Input and output endpoints that INIT names, for so many socket pairs."""
        if self.remote:
            return [self._advertise(self.input)], [self._advertise(self.output)]
        known = [self.pair(index) for index in range(pairs)]
        return [pair.input for pair in known], [pair.output for pair in known]

    def _advertise(self, endpoint: str) -> str:
        return f"{TCP_SCHEME}{self.advertised}:{endpoint.rpartition(':')[2]}"

    def pair(self, index: int) -> SocketPair:
        """The data sockets of one process of a gateway of several; those of process 0 are the worker's own."""
        if index == 0:
            return SocketPair(self.input_path, self.output_path)
        return SocketPair(f"{self.path}-in-{index}.sock", f"{self.path}-out-{index}.sock")


def parse_worker_url(
    url: str, handshake: str | None = None, *, pairs: int = 1, advertise: str | None = None
) -> WorkerAddresses:
    """Derive the addresses of a worker.

    Args:
        url: ``ipc://<path>``, where the path may be relative, or ``tcp://<host>:<port>``.
        handshake: ``zmq_handshake_address``, used verbatim, or None to derive it from the URL.
        pairs: how many socket pairs there will be, see `WorkerAddresses.pair`; their paths are longer.
        advertise: ``zmq_advertise_host``, the host by which engines reach a ``tcp://`` worker where it is not that of
            the URL: a name or an address, IPv6 with or without brackets.

    Raises:
        InvalidRequest: neither an ipc nor a tcp URL, no path, an abstract address, a path too long for a socket, a
            host or port that engines could not connect to, several pairs for a tcp URL, or not a tcp handshake.
    """
    if url.startswith(TCP_SCHEME):
        return _tcp_addresses(url, handshake, pairs, advertise)
    if advertise is not None:
        raise InvalidRequest(f"zmq_advertise_host is for tcp:// workers, not for {url}", param="zmq_advertise_host")
    if not url.startswith(_SCHEME):
        raise InvalidRequest(f"ZMQ worker URL must be ipc://<path> or tcp://<host>:<port>, got '{url}'", param="url")
    path = url.removeprefix(_SCHEME)
    if not path:
        raise InvalidRequest("ipc:// worker URL must include a socket path", param="url")
    if path.startswith("@"):
        message = f"ipc:// worker URL must name a file: every user could connect to the abstract socket '{path[:40]}'"
        raise InvalidRequest(message, param="url")
    _check_socket_path(path + _OUTPUT_SUFFIX if pairs == 1 else f"{path}-out-{pairs - 1}.sock")
    if handshake is None:
        handshake = f"tcp://127.0.0.1:{handshake_port(path)}"
    elif not handshake.startswith("tcp://"):
        raise InvalidRequest(
            f"zmq_handshake_address must be a tcp:// address (the engine dials a TCP handshake), got '{handshake}'",
            param="zmq_handshake_address",
        )
    input_path, output_path = path + _INPUT_SUFFIX, path + _OUTPUT_SUFFIX
    return WorkerAddresses(path, _SCHEME + input_path, _SCHEME + output_path, input_path, output_path, handshake)


def is_wildcard(host: str) -> bool:
    """Whether a host stands for every address of this one, so that none can connect to it by that name."""
    return host.strip("[]") in ("0.0.0.0", "::", "*", "")  # noqa: S104 - compared, not bound


def _tcp_addresses(url: str, handshake: str | None, pairs: int, advertise: str | None) -> WorkerAddresses:
    host, port = _host_and_port(url)
    if handshake is not None:
        message = f"zmq_handshake_address is the address of the URL itself for {url}: leave it out"
        raise InvalidRequest(message, param="zmq_handshake_address")
    if pairs > 1:
        raise InvalidRequest(f"{url} cannot be served by several gateway processes yet: use --processes 1", param="url")
    told = host if advertise is None else _bracketed(advertise, "zmq_advertise_host")
    if is_wildcard(told):
        param = "url" if advertise is None else "zmq_advertise_host"
        message = (
            f"a wildcard address cannot be connected to: engines of {url} need zmq_advertise_host "
            "(--zmq-advertise-host), a name or an address of this host that they can reach"
        )
        raise InvalidRequest(message, param=param)
    bound = f"{TCP_SCHEME}{'*' if host == '0.0.0.0' else host}"  # noqa: S104 - libzmq's word for it
    name = f"tcp-{host.strip('[]').replace(':', '-')}-{port}"
    return WorkerAddresses(name, f"{bound}:{port + 1}", f"{bound}:{port + 2}", "", "", f"{bound}:{port}", told)


def _host_and_port(url: str) -> tuple[str, int]:
    host, colon, text = url.removeprefix(TCP_SCHEME).rpartition(":")
    if not colon or not host or not (text.isascii() and text.isdigit()) or not 0 < int(text) <= _LAST_PORT - 2:
        message = f"tcp:// worker URL must be tcp://<host>:<port> with a port of 1 to {_LAST_PORT - 2}, got '{url}'"
        raise InvalidRequest(message, param="url")
    return _bracketed(host, "url", names=False), int(text)


def _bracketed(host: str, param: str, *, names: bool = True) -> str:
    """A host as it stands in an endpoint; a name only where it is looked up by others. Raises InvalidRequest."""
    bare = host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        if names and bare == host and host.isascii() and all(mark.isalnum() or mark in "-._" for mark in host):
            return host
        words = "a name, 10.0.0.1 or fd00::1" if names else "an address of this host, such as 10.0.0.1 or [fd00::1]"
        raise InvalidRequest(f"'{host[:80]}' is not a host for {param}: write {words}", param=param) from None
    return f"[{address}]" if address.version == 6 else str(address)


def handshake_port(path: str) -> int:
    """The derived handshake port of a socket path, 20000..29999."""
    digest = _FNV_OFFSET
    for byte in path.encode():
        digest = ((digest ^ byte) * _FNV_PRIME) & _U64
    return _FIRST_PORT + digest % _PORT_SPAN


def _check_socket_path(path: str) -> None:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise InvalidRequest("ipc:// socket path is not valid text", param="url") from None
    if "\0" in path:
        raise InvalidRequest("ipc:// socket path must not contain NUL", param="url")
    if size > MAX_SOCKET_PATH_BYTES:
        raise InvalidRequest(
            f"ipc:// socket path '{path}' is {size} bytes, over the system's limit of "
            f"{MAX_SOCKET_PATH_BYTES}: choose a shorter path",
            param="url",
        )
