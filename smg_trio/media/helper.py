"""The process that decodes images: ``python -m smg_trio.media.helper MAX_PIXELS MAX_MEMORY DEADLINE``.

Files come from strangers, and decoders have had holes: so they are decoded here, where an endless loop can be killed,
memory has a limit and a crash ends one item. It holds no keys and no connections but the socket that is its standard
input, and it ends when the gateway's end of that does.

A question is ``<II`` (lengths), a JSON object and a file; see `answer` for both objects. An answer is ``<I``, a JSON
object and, where there are tensors, the descriptor of sealed memory that holds them: they are written once and never
copied.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from smg_trio.core.errors import InvalidRequest
from smg_trio.media.families import Recipe
from smg_trio.media.pixels.decode import CannotDecode, open_image, to_rgb, upright, upright_size
from smg_trio.media.pixels.tensors import cut_tiles, tensor_pieces, tensor_size

_ALIGNMENT = 64
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_NICE = 5
"""The gateway's loop, which streams text meanwhile, goes first."""


def main(max_pixels: int, max_memory: int, deadline_s: int) -> None:
    """Answer until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    with socket.socket(fileno=0) as connection:
        _send(connection, {"ready": True}, None)
        # From here on files decide what libraries print.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        while (question := _receive(connection)) is not None:
            # The gateway kills a helper that takes too long; this ends one whose gateway is gone.
            signal.alarm(deadline_s + 1)
            header, file = question
            reply, memory = answer(header, file, max_pixels)
            del file
            _send(connection, reply, memory)
            signal.alarm(0)


def answer(header: Mapping[str, Any], file: bytearray, max_pixels: int) -> tuple[dict[str, Any], int | None]:
    """What is told about one file.

    Args:
        header: ``recipe`` and ``dtypes`` of the tensors that are wanted; no dtypes: the size alone.

    Returns:
        ``size`` (width, height, upright) and ``tensors`` (dtype, shape, offset, bytes), or ``error`` for the client,
        with ``fault`` for the log if it is the fault of this program; and the descriptor of the memory.
    """
    try:
        image = open_image(file, max_pixels)
        if not header["dtypes"]:
            return {"size": upright_size(image), "tensors": []}, None
        image = to_rgb(upright(image))
        recipe = Recipe.from_plain(header["recipe"])
        plan = recipe.rule.plan(*image.size)
        tiles = cut_tiles(image, recipe, plan)
        size = image.size
        del image
        tensors, memory = _write_all(tiles, recipe, recipe.pixels_shape(plan), header["dtypes"])
    except (CannotDecode, InvalidRequest) as error:
        return {"error": str(error)}, None
    except MemoryError:
        return {"error": "the image needs too much memory to decode"}, None
    except Exception as error:  # noqa: BLE001 - whatever an item does, the process goes on with the next
        # Not foreseen: told to the gateway's log, by the place where it was raised.
        place = traceback.extract_tb(error.__traceback__)[-1]
        fault = f"{type(error).__name__} in {os.path.basename(place.filename)}:{place.lineno}"
        return {"error": "the image cannot be decoded", "fault": fault}, None
    return {"size": size, "tensors": tensors}, memory


def _write_all(
    tiles: Any, recipe: Recipe, shape: tuple[int, ...], dtypes: list[str]
) -> tuple[list[dict[str, Any]], int]:
    """All forms of one item one after the other in sealed memory.

    Written to, not mapped: the kernel then takes pages many at a time, where each costs microseconds in a mapping.
    """
    memory = os.memfd_create("smg-trio-media", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        tensors: list[dict[str, Any]] = []
        start = 0
        for dtype in dtypes:
            size = tensor_size(shape, dtype)
            tensors.append({"dtype": dtype, "shape": shape, "offset": start, "bytes": size})
            os.lseek(memory, start, os.SEEK_SET)
            for piece in tensor_pieces(tiles, recipe, dtype):
                _write(memory, piece.reshape(-1).view("uint8").data)
            start += -(-size // _ALIGNMENT) * _ALIGNMENT
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(memory)
        raise
    return tensors, memory


def _write(memory: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(memory, piece) :]


def _receive(connection: socket.socket) -> tuple[dict[str, Any], bytearray] | None:
    """One question, or None at the end of the connection."""
    lengths = _receive_exactly(connection, 8)
    if lengths is None:
        return None
    header_length, file_length = struct.unpack("<II", lengths)
    header, file = _receive_exactly(connection, header_length), _receive_exactly(connection, file_length)
    return None if header is None or file is None else (json.loads(header), file)


def _receive_exactly(connection: socket.socket, count: int) -> bytearray | None:
    received = bytearray(count)
    with memoryview(received) as view:
        start = 0
        while start < count:
            size = connection.recv_into(view[start:])
            if not size:
                return None
            start += size
    return received


def _send(connection: socket.socket, reply: dict[str, Any], memory: int | None) -> None:
    body = json.dumps(reply).encode()
    message = struct.pack("<I", len(body)) + body
    if memory is None:
        connection.sendall(message)
        return
    sent = socket.send_fds(connection, [message], [memory])
    os.close(memory)
    connection.sendall(message[sent:])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
