"""The gateway's side of the processes that decode images: started with the first image, killed and replaced.

A broken or hostile file may end its process, or keep it busy permanently. Then the process is replaced. If it died, the
item is tried once more by the new one, since something else may have ended the old one.
"""

from __future__ import annotations

import array
import contextlib
import json
import logging
import math
import mmap
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

import trio

from smg_trio.core.errors import GatewayFault, UnsupportedFeature
from smg_trio.core.tensors import TensorValue
from smg_trio.media.shared_memory import SharedMemory

logger = logging.getLogger(__name__)

DEADLINE_S: Final = 20
"""For one item in the process, from the first byte of the question to the answer; 40 megapixels take about 2 s."""
_START_LIMIT_S: Final = 30.0
_MEMORY_BASE: Final = 512 << 20
_MEMORY_PER_PIXEL: Final = 24
"""Address space: libraries and results, and per pixel the decoded image (4 bytes), its copies and rows of sums."""
_SLICE: Final = 1 << 18
_ATTEMPTS: Final = 2
_SET_VARIABLES: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    # Memory of one image is kept for the next: new pages cost a quarter of the time that an image takes.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
_KEPT_VARIABLES: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "TZ")
"""Of the environment; the rest may hold keys, which are none of the process's business."""


class HelperDied(Exception):
    """The process ended while it worked on an item."""


class ItemRefused(Exception):
    """The item cannot be decoded; the message is for the client."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a process made of an item.

    Attributes:
        width, height: of the upright image.
        tensors: by dtype; views of memory that the process wrote and cannot change any more.
    """

    width: int
    height: int
    tensors: Mapping[str, TensorValue]


@dataclass(slots=True)
class _Job:
    """One question, and where its answer goes."""

    header: bytes
    file: bytes
    answer: Answer | None = None
    failure: Exception | None = None
    done: trio.Event = field(default_factory=trio.Event)
    released: trio.Event = field(default_factory=trio.Event)


class HelperPool:
    """A few processes and the items that wait for them, first come, first served.

    Args:
        max_pixels: of one image.
        processes: at most; each is started when an item needs it.
        deadline_s: for one item.

    Attributes:
        pids: of the processes that run now.
        replaced: processes that were ended, or ended by themselves, because of an item.
    """

    def __init__(self, *, max_pixels: int, processes: int = 1, deadline_s: int = DEADLINE_S) -> None:
        self.max_pixels = max_pixels
        self.deadline_s = deadline_s
        self._processes = processes
        self._send, self._receive = trio.open_memory_channel[_Job](0)
        self._memory = SharedMemory()
        self.pids: set[int] = set()
        self.replaced = 0

    @property
    def waiting(self) -> int:
        """Items that no process has taken yet."""
        return self._send.statistics().tasks_waiting_send

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve items until cancelled; then no process is left."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._memory.run)
            for _ in range(self._processes):
                nursery.start_soon(self._serve)
            task_status.started()

    @contextlib.asynccontextmanager
    async def ask(
        self, file: bytes, *, recipe: Mapping[str, Any] | None = None, dtypes: Sequence[str] = ()
    ) -> AsyncIterator[Answer]:
        """The tensors of a file in each dtype; without dtypes its size alone.

        The process takes no other item before the block ends: what is in memory and not yet accounted for is bounded by
        the number of processes. Cancelled, the item is dropped; a process that is at it goes on to the end of it.

        Raises:
            ItemRefused: it cannot be decoded, or it ended the process twice, or took too long.
            UnsupportedFeature: numpy or Pillow is not installed.
            GatewayFault: no process can be started.
        """
        _require_libraries()
        header = json.dumps({"recipe": recipe, "dtypes": list(dtypes)}).encode()
        job = _Job(header, file)
        try:
            await self._send.send(job)
            await job.done.wait()
            if job.failure is not None:
                raise job.failure
            assert job.answer is not None
            yield job.answer
        finally:
            job.released.set()

    async def _serve(self) -> None:
        """Own one process at a time."""
        helper: _Helper | None = None
        try:
            async for job in self._receive:
                if not job.released.is_set():
                    helper = await self._work(job, helper)
                await job.released.wait()
                # Or its answer's memory would stay until the next item.
                del job
        finally:
            await self._end(helper)

    async def _work(self, job: _Job, helper: _Helper | None) -> _Helper | None:
        """Answer one item; returns the process for the next one."""
        for _ in range(_ATTEMPTS):
            try:
                helper = helper or await self._start()
                with trio.fail_after(self.deadline_s):
                    job.answer = await helper.ask(job.header, job.file)
                job.failure = None
                break
            except ItemRefused as error:
                job.failure = error
                break
            except trio.TooSlowError:
                logger.warning("media: an item took more than %s s to decode; its process is replaced", self.deadline_s)
                job.failure = ItemRefused(f"cannot decode (takes more than {self.deadline_s} s)")
                helper = await self._replaced(helper)
                break
            except HelperDied as error:
                logger.warning("media: a process that decodes images ended (%s) and is replaced", error)
                job.failure = ItemRefused("cannot decode (it ended the decoding process)")
                helper = await self._replaced(helper)
            except OSError as error:
                logger.error("media: cannot start a process that decodes images: %s", error)  # noqa: TRY400
                job.failure = GatewayFault("images cannot be decoded now: no process for it can be started")
                break
        job.done.set()
        return helper

    async def _start(self) -> _Helper:
        memory = _MEMORY_BASE + _MEMORY_PER_PIXEL * self.max_pixels
        helper = await _Helper.start(self._memory, str(self.max_pixels), str(memory), str(math.ceil(self.deadline_s)))
        self.pids.add(helper.pid)
        return helper

    async def _replaced(self, helper: _Helper | None) -> _Helper | None:
        """None: the next item starts a new one."""
        self.replaced += 1
        await self._end(helper)
        return None

    async def _end(self, helper: _Helper | None) -> None:
        if helper is not None:
            with trio.CancelScope(shield=True):
                await helper.kill()
            self.pids.discard(helper.pid)


class _Helper:
    """One process and the socket to it."""

    def __init__(self, process: trio.Process, connection: trio.socket.SocketType, memory: SharedMemory) -> None:
        self._process = process
        self._connection = connection
        self._memory = memory

    @classmethod
    async def start(cls, memory: SharedMemory, *arguments: str) -> _Helper:
        """Start one and wait until it is ready.

        Raises:
            OSError: it cannot be started, or is not ready in time.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            connection = trio.socket.from_stdlib_socket(ours)
            try:
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-m", "smg_trio.media.helper", *arguments],
                    stdin=theirs,
                    stdout=subprocess.DEVNULL,
                    env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ} | _SET_VARIABLES,
                    start_new_session=True,
                )
            except BaseException:
                connection.close()
                raise
        helper = cls(process, connection, memory)
        try:
            with trio.fail_after(_START_LIMIT_S):
                await helper._receive()
        except (HelperDied, trio.TooSlowError):
            await helper.kill()
            raise OSError("it ended, or was not ready in time") from None
        except BaseException:
            with trio.CancelScope(shield=True):
                await helper.kill()
            raise
        return helper

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, header: bytes, file: bytes) -> Answer:
        """One question. If it is cancelled, the process is of no more use.

        Raises:
            ItemRefused: what the process answered.
            HelperDied: it ended, or answered what it never does.
        """
        try:
            await self._send_all(struct.pack("<II", len(header), len(file)) + header)
            await self._send_all(file)
            reply, memory = await self._receive()
        except OSError as error:
            raise HelperDied(str(error)) from None
        if "fault" in reply:
            logger.error("media: an item could not be processed: %s", reply["fault"])
        if "error" in reply:
            raise ItemRefused(reply["error"])
        try:
            width, height = reply["size"]
            return Answer(width, height, _tensors(reply["tensors"], memory))
        except (KeyError, TypeError, ValueError, OSError):
            raise HelperDied("an answer that cannot be read") from None

    async def _send_all(self, data: bytes) -> None:
        view = memoryview(data)
        start = 0
        while start < len(view):
            start += await self._connection.send(view[start : start + _SLICE])

    async def _receive(self) -> tuple[dict[str, Any], mmap.mmap | None]:
        """One answer and the memory that came with it."""
        descriptors = array.array("i")
        try:
            received = await self._receive_some(descriptors)
            while len(received) < 4 or len(received) < 4 + struct.unpack_from("<I", received)[0]:
                received += await self._receive_some(descriptors)
            return json.loads(received[4:]), self._memory.map(descriptors.pop(0)) if descriptors else None
        except ValueError:
            raise HelperDied("an answer that cannot be read") from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    async def _receive_some(self, descriptors: array.array[int]) -> bytes:
        data, ancillary, _, _ = await self._connection.recvmsg(1 << 16, socket.CMSG_SPACE(descriptors.itemsize))
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
        if not data:
            raise HelperDied("connection closed")
        return data

    async def kill(self) -> None:
        """End it; does nothing more if it has ended."""
        self._connection.close()
        self._process.kill()
        await self._process.wait()


def _tensors(described: Sequence[Mapping[str, Any]], memory: mmap.mmap | None) -> dict[str, TensorValue]:
    """Views of the memory. Raises ValueError where they would reach beyond it."""
    tensors: dict[str, TensorValue] = {}
    if described and memory is not None:
        whole = memoryview(memory)
        for tensor in described:
            start, size = tensor["offset"], tensor["bytes"]
            data = whole[start : start + size]
            if len(data) != size:
                raise ValueError("a tensor beyond its memory")
            tensors[tensor["dtype"]] = TensorValue(tensor["dtype"], tuple(tensor["shape"]), data)
    return tensors


def _require_libraries() -> None:
    """Without loading them: the gateway's own memory stays as it is."""
    if find_spec("numpy") is None or find_spec("PIL") is None:
        raise UnsupportedFeature(
            "this gateway is installed without the libraries that decode images: install smg-trio[images]"
        )
