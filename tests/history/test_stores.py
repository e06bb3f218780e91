"""Both stores by the same checks; and what only SQLite promises: nothing acknowledged is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from smg_trio.core.conversations import StoredConversation, StoredResponse
from smg_trio.core.errors import ConfigError
from smg_trio.history import HistoryStore, open_history
from smg_trio.history.base import response_chain
from smg_trio.history.memory import MemoryHistory

BACKENDS = ["memory", "sqlite"]


@asynccontextmanager
async def store(backend: str, tmp_path: Path) -> AsyncIterator[HistoryStore]:
    async with open_history(f"sqlite:{tmp_path}/history.db" if backend == "sqlite" else backend) as opened:
        assert opened is not None
        yield opened


def response(number: int, previous: int | None = None, **value: object) -> StoredResponse:
    return StoredResponse(
        response_id=f"resp_{number}",
        value={"status": "completed", "output": [{"id": f"msg_{number}", "text": "žluť 😀"}], **value},
        input_items=[{"id": f"in_{number}"}],
        previous_response_id=None if previous is None else f"resp_{previous}",
    )


@pytest.mark.parametrize("backend", BACKENDS)
async def test_responses_are_kept_replaced_and_forgotten(backend: str, tmp_path: Path) -> None:
    async with store(backend, tmp_path) as history:
        assert await history.get_response("resp_1") is None
        await history.put_response(response(1, status="queued"))
        await history.put_response(response(1))
        assert await history.get_response("resp_1") == response(1)
        assert await history.delete_response("resp_1")
        assert not await history.delete_response("resp_1")
        assert await history.get_response("resp_1") is None


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_chain_is_oldest_first_and_broken_by_a_missing_link(backend: str, tmp_path: Path) -> None:
    async with store(backend, tmp_path) as history:
        for number in (1, 2, 3):
            await history.put_response(response(number, number - 1 or None))
        assert await response_chain(history, "resp_3") == [response(1), response(2, 1), response(3, 2)]
        await history.delete_response("resp_1")
        assert await response_chain(history, "resp_3") is None
        await history.put_response(response(1, 3))
        chain = await response_chain(history, "resp_3")
        assert chain is not None
        assert len(chain) == 3, "a circle ends"


@pytest.mark.parametrize("backend", BACKENDS)
async def test_conversations_and_their_items(backend: str, tmp_path: Path) -> None:
    async with store(backend, tmp_path) as history:
        conversation = StoredConversation(conversation_id="conv_1", created_at=5, metadata={"a": "b"})
        await history.add_items("conv_1", [{"id": "lost"}])
        await history.put_conversation(conversation)
        await history.add_items("conv_1", [{"id": "1"}, {"id": "2"}])
        await history.add_items("conv_1", [{"id": "2", "again": True}, {"id": "3"}])
        renamed = StoredConversation(conversation_id="conv_1", created_at=5, metadata={"c": "d"})
        await history.put_conversation(renamed)
        assert await history.get_conversation("conv_1") == renamed
        assert await history.items("conv_1") == [{"id": "1"}, {"id": "2"}, {"id": "3"}]
        assert await history.delete_item("conv_1", "2")
        assert not await history.delete_item("conv_1", "2")
        assert await history.items("conv_1") == [{"id": "1"}, {"id": "3"}]
        assert await history.delete_conversation("conv_1")
        assert await history.items("conv_1") == []
        assert not await history.delete_conversation("conv_1")


async def test_memory_is_bounded_and_forgets_what_was_not_used_for_longest() -> None:
    history = MemoryHistory(max_responses=2, max_conversations=1)
    await history.put_response(response(1))
    await history.put_response(response(2))
    await history.get_response("resp_1")
    await history.put_response(response(3))
    assert await history.get_response("resp_2") is None
    assert await history.get_response("resp_1") is not None
    for number in range(2):
        await history.put_conversation(StoredConversation(conversation_id=str(number), created_at=0, metadata={}))
    assert await history.get_conversation("0") is None
    assert await history.items("0") == []


@pytest.mark.parametrize("backend", ["", "sqlite:", "redis", "sqlite:/nonexistent/dir/file.db"])
async def test_an_unusable_backend_is_refused_by_name(backend: str) -> None:
    with pytest.raises(ConfigError, match="history-backend"):
        async with open_history(backend):
            pass


async def test_none_keeps_nothing() -> None:
    async with open_history("none") as history:
        assert history is None


_WRITER = """
import sys, trio
from smg_trio.core.conversations import StoredResponse
from smg_trio.history import open_history

async def main(path, first):
    async with open_history("sqlite:" + path) as history:
        number = first
        while True:
            await history.put_response(StoredResponse(response_id=f"r{number}", value={"output": [], "n": number}))
            print(number, flush=True)
            number += 1

trio.run(main, sys.argv[1], int(sys.argv[2]))
"""


async def test_nothing_acknowledged_is_lost_to_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    acknowledged = -1
    for _ in range(20):
        command = [sys.executable, "-c", _WRITER, str(path), str(acknowledged + 1)]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        output = b""
        while output.count(b"\n") < 5:
            output += await process.stdout.receive_some()
        process.send_signal(signal.SIGKILL)
        async for chunk in process.stdout:
            output += chunk
        await process.wait()
        acknowledged = int(output.split(b"\n")[output.count(b"\n") - 1])
        async with open_history(f"sqlite:{path}") as history:
            assert history is not None
            for number in range(acknowledged + 1):
                kept = await history.get_response(f"r{number}")
                assert kept is not None
                assert kept.value["n"] == number


async def test_memory_forgets_the_oldest_when_all_are_too_heavy() -> None:
    history = MemoryHistory(max_weight=10_000)
    for number in (1, 2, 3):
        await history.put_response(response(number, text="x" * 4_000))
    assert await history.get_response("resp_1") is None
    assert await history.get_response("resp_3") is not None
    await history.put_response(response(3, text="x"))
    await history.put_response(response(4, text="x" * 4_000))
    assert await history.get_response("resp_2") is not None, "what was replaced weighs nothing"
    for number in (1, 2):
        await history.put_conversation(StoredConversation(conversation_id=f"c{number}", created_at=0, metadata={}))
        await history.add_items(f"c{number}", [{"id": "i", "text": "x" * 6_000}])
    assert await history.get_conversation("c1") is None
    assert len(await history.items("c2")) == 1
