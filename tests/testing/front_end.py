"""A mini front end for these tests: it speaks the gateway's side of the wire with nothing but msgpack.

It works on any `worker.links.Transport`, so the same tests run in memory and on real sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from smg_trio.worker.links import Link, Transport

ENGINE_CORE_DEAD = b"ENGINE_CORE_DEAD"

NULLS = ("coordinator_input", "coordinator_output", "frontend_stats_publish_address")


def init_message(input_address: str, output_address: str) -> bytes:
    addresses = {"inputs": [input_address], "outputs": [output_address], **dict.fromkeys(NULLS)}
    return msgpack.packb({"addresses": addresses, "parallel_config": {}})


def vllm_add(request_id: str, prompt: Sequence[int] = (1, 2, 3), *, wave: int = 0, **sampling: Any) -> list[bytes]:
    row = [request_id, list(prompt), None, sampling, None, 1.5, None, None, None, None, None, 0, wave]
    return [b"\x00", msgpack.packb(row)]


def tokenspeed_add(
    request_id: str, prompt: Sequence[int] = (1, 2, 3), sampling: Sequence[Any] = (4,), **fields: Any
) -> list[bytes]:
    row = ["TokenizedGenerateReqInput", request_id, None, None, list(prompt), list(sampling)]
    row += [fields.get("return_logprob", False), -1, 0, None, fields.get("stream", True)]
    return [b"\x00", msgpack.packb(row)]


def abort(*request_ids: str) -> list[bytes]:
    return [b"\x01", msgpack.packb(list(request_ids))]


def start_wave(wave: int, exclude: int = -1) -> list[bytes]:
    return [b"\x02", msgpack.packb([wave, exclude])]


def utility(call_id: int, method: str, *args: Any) -> list[bytes]:
    return [b"\x03", msgpack.packb([0, call_id, method, list(args)])]


def unpack_batch(frames: Sequence[bytes]) -> Any:
    return msgpack.unpackb(frames[0], strict_map_key=False)


class FrontEnd:
    """Binds the three sockets and answers handshakes."""

    def __init__(self, transport: Transport, handshake: str, input_address: str, output_address: str) -> None:
        self.handshake: Link = transport.bind_handshake(handshake)
        self.input: Link = transport.bind_input(input_address)
        self.output: Link = transport.bind_output(output_address)
        self._init = init_message(input_address, output_address)
        self._unread: list[list[bytes]] = []

    async def greet(self, count: int = 1) -> dict[bytes, dict[str, Any]]:
        """Take ``count`` engines in; returns their registrations by identity."""
        ready: set[bytes] = set()
        while len(ready) < count:
            for identity, message in await self.handshake.receive_many():
                status = msgpack.unpackb(message)["status"]
                if status == "HELLO":
                    self.handshake.send_nowait([identity, self._init])
                else:
                    ready.add(identity)
        registrations: dict[bytes, dict[str, Any]] = {}
        while len(registrations) < count:
            for identity, message in await self.input.receive_many():
                registrations[identity] = msgpack.unpackb(message)
        return registrations

    def send(self, *messages: list[bytes], rank: int = 0) -> None:
        for message in messages:
            self.input.send_nowait([rank.to_bytes(2, "little"), *message])

    async def next_frames(self) -> list[bytes]:
        """The next output message, raw."""
        if not self._unread:
            self._unread = await self.output.receive_many()
        return self._unread.pop(0)

    async def next_batch(self) -> Any:
        """The next output message, decoded."""
        frames = await self.next_frames()
        assert frames != [ENGINE_CORE_DEAD], "the engine died"
        return unpack_batch(frames)

    async def answer(self, request_id: str) -> tuple[list[int], int, Any]:
        """All ids of one request, its finish code and stop reason."""
        ids: list[int] = []
        while True:
            for output in (await self.next_batch())[1]:
                if output[0] == request_id:
                    ids += output[1]
                    if output[5] is not None:
                        return ids, output[5], output[6]

    def close(self) -> None:
        for link in (self.handshake, self.input, self.output):
            link.close()
