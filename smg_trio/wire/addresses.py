"""What a worker URL stands for: ``ipc://<path>`` names two data sockets and a handshake port.

The derivation is the one users of same-host workers know, so that engines started for another gateway
find this one: input ``<path>-in.sock``, output ``<path>-out.sock``, handshake
``tcp://127.0.0.1:(20000 + FNV-1a-64(path) mod 10000)`` unless stated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from smg_trio.core.errors import InvalidRequest

_SCHEME: Final = "ipc://"
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
        path: the path of the URL, the common stem of both socket files.
        input: ZMQ endpoint of the request ROUTER.
        output: ZMQ endpoint of the output PULL.
        input_path, output_path: their socket files.
        handshake: ZMQ endpoint of the handshake ROUTER, always tcp (engines dial nothing else).
    """

    path: str
    input: str
    output: str
    input_path: str
    output_path: str
    handshake: str

    def pair(self, index: int) -> SocketPair:
        """The data sockets of one process of a gateway of several; those of process 0 are the worker's own."""
        if index == 0:
            return SocketPair(self.input_path, self.output_path)
        return SocketPair(f"{self.path}-in-{index}.sock", f"{self.path}-out-{index}.sock")


def parse_worker_url(url: str, handshake: str | None = None, *, pairs: int = 1) -> WorkerAddresses:
    """Derive the addresses of a worker.

    Args:
        url: ``ipc://<path>``; the path may be relative.
        handshake: ``zmq_handshake_address``, used verbatim, or None to derive it from the path.
        pairs: how many socket pairs there will be, see `WorkerAddresses.pair`; their paths are longer.

    Raises:
        InvalidRequest: not an ipc URL, no path, an abstract address, a path too long for a socket, or not a tcp
            handshake.
    """
    if not url.startswith(_SCHEME):
        raise InvalidRequest(f"ZMQ worker URL must be ipc://<path>, got '{url}'", param="url")
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
