"""Files are read again when they have changed and come to rest; what cannot be read changes nothing."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest
import trio

from smg_trio.core.errors import ConfigError
from smg_trio.gateway.security.file_watcher import FileWatcher, WatchedFile


class Words:
    """What two files hold; "bad" in one of them cannot be used."""

    def __init__(self, directory: Path) -> None:
        self.paths = [directory / "a", directory / "b"]
        for path in self.paths:
            path.write_text("first")
        self.held = ""
        self.reads = 0

    async def read(self) -> None:
        self.reads += 1
        found = " ".join(path.read_text() if path.exists() else "bad" for path in self.paths)
        if "bad" in found:
            raise ConfigError("--words", "are bad.")
        self.held = found


@pytest.fixture
def words(tmp_path: Path) -> Words:
    return Words(tmp_path)


def follower_of(words: Words, look_every_s: float = 1.0) -> FileWatcher:
    return FileWatcher([WatchedFile("words", words.paths, words.read)], look_every_s=look_every_s)


async def test_at_the_start_everything_is_read_and_a_fault_is_raised(words: Words) -> None:
    await follower_of(words).read_first()
    assert words.held == "first first"
    words.paths[1].write_text("bad")
    with pytest.raises(ConfigError):
        await follower_of(words).read_first()


async def test_nothing_is_read_while_nothing_changes(words: Words) -> None:
    follower = follower_of(words)
    await follower.read_first()
    for _ in range(5):
        await follower.look()
    assert words.reads == 1


async def test_a_change_is_read_once_it_is_still(words: Words) -> None:
    follower = follower_of(words)
    await follower.read_first()
    words.paths[0].write_text("second")
    await follower.look()
    words.paths[1].write_text("second")
    await follower.look()
    assert (words.held, words.reads) == ("first first", 1)
    await follower.look()
    await follower.look()
    assert (words.held, words.reads) == ("second second", 2)


async def test_a_file_replaced_by_another_of_the_same_size_and_time_is_a_change(words: Words, tmp_path: Path) -> None:
    follower = follower_of(words)
    await follower.read_first()
    before = words.paths[0].stat()
    new = tmp_path / "new"
    new.write_text("other")
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.rename(words.paths[0])
    for _ in range(2):
        await follower.look()
    assert words.held == "other first"


async def test_a_link_that_leads_elsewhere_is_a_change(words: Words, tmp_path: Path) -> None:
    # As Kubernetes renews what it mounts.
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(name)
    words.paths[0].unlink()
    (tmp_path / "current").symlink_to("old")
    words.paths[0].symlink_to("current/a")
    follower = follower_of(words)
    await follower.read_first()
    (tmp_path / "next").symlink_to("new")
    (tmp_path / "next").rename(tmp_path / "current")
    for _ in range(2):
        await follower.look()
    assert words.held == "new first"


@pytest.mark.parametrize("damage", ["bad", "gone"])
async def test_what_cannot_be_read_is_warned_of_once_and_changes_nothing(
    words: Words, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    follower = follower_of(words)
    await follower.read_first()
    if damage == "bad":
        words.paths[0].write_text("bad")
    else:
        words.paths[0].unlink()
    with caplog.at_level(logging.INFO, "smg_trio"):
        for _ in range(4):
            await follower.look()
        assert words.held == "first first"
        words.paths[0].write_text("mended")
        for _ in range(4):
            await follower.look()
    assert words.held == "mended first"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "words not reloaded, the previous contents stay in force: --words: are bad." in caplog.text


async def test_the_task_looks_by_itself(words: Words) -> None:
    follower = follower_of(words, look_every_s=0.01)
    await follower.read_first()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.run)
        words.paths[0].write_text("second")
        with trio.fail_after(5):
            while words.held != "second first":
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_without_files_there_is_nothing_to_do() -> None:
    follower = FileWatcher([WatchedFile("nothing", [], trio.sleep_forever)])
    await follower.read_first()
    await follower.run()
    assert follower.follows == []


async def test_a_hangup_reads_at_once_and_ends_nothing(words: Words) -> None:
    follower = follower_of(words)
    await follower.read_first()
    async with trio.open_nursery() as nursery:
        await nursery.start(follower.read_on_hangup)
        for text in ("second", "third"):
            words.paths[0].write_text(text)
            os.kill(os.getpid(), signal.SIGHUP)
            with trio.fail_after(5):
                while words.held != f"{text} first":
                    await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_what_nobody_expected_of_a_file_is_logged_and_the_others_are_read(
    words: Words, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise RecursionError

    (tmp_path / "c").write_text("first")
    follower = FileWatcher(
        [WatchedFile("knots", [tmp_path / "c"], fail), WatchedFile("words", words.paths, words.read)]
    )
    words.paths[0].write_text("second")
    await follower.read_all()
    assert words.held == "second first"
    assert [record.message for record in caplog.records if record.exc_info] == [
        "knots not reloaded, the previous contents stay in force"
    ]
