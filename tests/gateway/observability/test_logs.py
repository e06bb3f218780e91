"""What log lines look like and where they go."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core import log_context
from smg_trio.core.errors import ConfigError
from smg_trio.gateway.observability.logs import HumanFormatter, JsonFormatter, RotatingFile
from tests.gateway.conftest import SetUp

ROOT = Path(__file__).resolve().parents[3]
logger = logging.getLogger("smg_trio.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_for_people_has_time_level_logger_and_message(set_up: SetUp) -> None:
    out = set_up()
    logger.warning("%d engines", 3)
    date, clock, rest = out.getvalue().split(" ", 2)
    assert rest == "WARN smg_trio.test: 3 engines\n"
    assert (date[4], date[7], clock[2], clock[8]) == ("-", "-", ":", ".")


def test_a_json_line_has_time_level_logger_and_message(set_up: SetUp) -> None:
    out = set_up(as_json=True)
    logger.warning('a "quoted"\nword')
    line = json.loads(out.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {"level": "WARN", "logger": "smg_trio.test", "message": 'a "quoted"\nword'}


@given(st.text(), st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()))
def test_any_line_is_one_line_and_json_is_json(message: str, fields: dict[str, object]) -> None:
    record = logging.LogRecord("smg_trio.x", logging.INFO, "", 0, "%s", (message,), None)
    record.__dict__["fields"] = fields
    line = JsonFormatter().format(record)
    read = json.loads(line)
    assert len(line.splitlines()) == 1
    assert read == read | {"message": message, "logger": "smg_trio.x"} | fields
    assert len(HumanFormatter().format(record).splitlines()) == 1


def test_the_level_is_the_least_that_is_written(set_up: SetUp) -> None:
    out = set_up("warn")
    logger.info("a")
    logger.warning("b")
    assert [line.rpartition(" ")[2] for line in out.getvalue().splitlines()] == ["b"]


def test_other_libraries_are_heard_from_warnings_on(set_up: SetUp) -> None:
    out = set_up("debug")
    logging.getLogger("elsewhere").info("chatter")
    logging.getLogger("elsewhere").warning("trouble")
    logger.debug("ours")
    assert [line.rpartition(" ")[2] for line in out.getvalue().splitlines()] == ["trouble", "ours"]


async def test_every_line_of_a_request_s_tasks_has_its_id_and_no_other_has(set_up: SetUp) -> None:
    out = set_up(as_json=True)

    async def part() -> None:
        logger.info("part")

    async def request(name: str) -> None:
        log_context.request_id.set(name)
        logger.info("begin")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(part)
        await trio.lowlevel.checkpoint()
        logger.info("end")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(request, "a")
        nursery.start_soon(request, "b")
    logger.info("after")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    found = sorted((line.get("request_id", ""), line["message"]) for line in lines)
    assert found == [("", "after"), *((name, word) for name in "ab" for word in ("begin", "end", "part"))]


async def test_people_see_the_id_at_the_end_and_the_worker_once(set_up: SetUp) -> None:
    out = set_up()
    log_context.worker.set("ipc:///w")
    logger.info("engine of ipc:///w died")
    log_context.request_id.set("r-1")
    logger.info("engine died")
    first, second = [line.partition(": ")[2] for line in out.getvalue().splitlines()]
    assert first == "engine of ipc:///w died"
    assert second == "engine died worker=ipc:///w [r-1]"


def test_fields_are_keys_in_json_and_words_for_people(set_up: SetUp) -> None:
    extra = {"fields": {"model": "m", "tokens": 3}}
    out = set_up(as_json=True)
    logger.info("GET /", extra=extra)
    line = json.loads(out.getvalue())
    assert (line["model"], line["tokens"]) == ("m", 3)
    out = set_up()
    logger.info("GET /", extra=extra)
    assert out.getvalue().endswith(": GET / model=m tokens=3\n")


@pytest.mark.parametrize(
    "forged",
    ["a] key=admin", "a key=admin status=200 [b", 'a" key=admin', "a' b", "a\tb", "[a]", "a b", " ", "]"],
)
def test_what_a_client_named_cannot_look_like_further_fields(set_up: SetUp, forged: str) -> None:
    out = set_up()
    worker = f"{forged}!"
    log_context.request_id.set(forged)
    log_context.worker.set(worker)
    logger.info("said", extra={"fields": {"model": forged}})
    log_context.request_id.set("")
    log_context.worker.set("")
    line = out.getvalue().partition(": ")[2].rstrip("\n")
    assert line == f"said model={json.dumps(forged)} worker={json.dumps(worker)} [{json.dumps(forged)}]"


@pytest.mark.parametrize("plain", ["req-0af9", "a.b:c/d", "k=v", "ipc:///run/w0,ipc:///run/w1", "ü"])
def test_what_cannot_be_mistaken_stays_as_it_is(set_up: SetUp, plain: str) -> None:
    out = set_up()
    logger.info("said", extra={"fields": {"model": plain}})
    assert out.getvalue().endswith(f": said model={plain}\n")


def test_what_a_client_sent_cannot_look_like_a_line_nor_speak_to_the_terminal(set_up: SetUp) -> None:
    for as_json in (False, True):
        out = set_up(as_json=as_json)
        logger.info("no model %s", "x\n2026-01-01 00:00:00.000 INFO forged\r\x1b[2J\u2028")
        assert len(out.getvalue().splitlines()) == 1
        assert "\x1b" not in out.getvalue()


def test_text_that_is_not_ascii_stays_readable(set_up: SetUp) -> None:
    out = set_up()
    logger.info("modèle 模型")
    assert out.getvalue().endswith("modèle 模型\n")


def test_an_exception_s_traceback_follows(set_up: SetUp) -> None:
    for as_json in (False, True):
        out = set_up(as_json=as_json)
        try:
            raise KeyError("gone")
        except KeyError:
            logger.exception("failed")
        text = json.loads(out.getvalue())["exception"] if as_json else out.getvalue()
        assert "Traceback" in text
        assert "KeyError: 'gone'" in text


def test_only_a_terminal_gets_colours_and_none_that_wants_none(set_up: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for out, as_json, coloured in ((Terminal(), False, True), (Terminal(), True, False), (io.StringIO(), False, False)):
        set_up(out=out, as_json=as_json)
        logger.error("x")
        assert ("\x1b[" in out.getvalue()) is coloured
    monkeypatch.setenv("NO_COLOR", "1")
    out = set_up(out=Terminal())
    logger.error("x")
    assert "\x1b[" not in out.getvalue()


def test_a_directory_gets_the_same_lines_without_colours(set_up: SetUp, tmp_path: Path) -> None:
    directory = tmp_path / "made" / "for it"
    out = set_up(out=Terminal(), directory=str(directory))
    logger.info("modèle")
    written = (directory / "smg-trio.log").read_text(encoding="utf-8")
    assert written.endswith("INFO smg_trio.test: modèle\n")
    assert out.getvalue().endswith("smg_trio.test: modèle\n")
    set_up(directory=str(directory), as_json=True)
    logger.info("b")
    lines = (directory / "smg-trio.log").read_text(encoding="utf-8").splitlines()
    assert lines[0] + "\n" == written
    assert json.loads(lines[1])["message"] == "b"


def test_a_front_has_a_file_of_its_own_and_its_number_in_each_line(set_up: SetUp, tmp_path: Path) -> None:
    out = set_up(directory=str(tmp_path), process=2)
    logger.info("a")
    assert out.getvalue().endswith("smg_trio.test: a process=2\n")
    set_up(directory=str(tmp_path), process=2, as_json=True)
    logger.info("b")
    assert [file.name for file in tmp_path.iterdir()] == ["smg-trio-2.log"]
    assert json.loads((tmp_path / "smg-trio-2.log").read_text().splitlines()[1])["process"] == 2


def test_a_directory_that_cannot_be_written_is_named(set_up: SetUp, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--log-dir: cannot write .*file"):
        set_up(directory=str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigError, match="--log-dir"):
        set_up(directory=str(tmp_path / "file"))


def test_a_full_file_is_put_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("y" * 90 + "\n")
    handler = RotatingFile(path, max_bytes=100, old_files=2)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for index in range(6):
        handler.emit(logging.LogRecord("n", logging.INFO, "", 0, str(index) + "é" * 24, (), None))
    handler.close()
    texts = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert {name: [line[0] for line in text.splitlines()] for name, text in texts.items()} == {
        "x.log": ["4", "5"],
        "x.log.1": ["2", "3"],
        "x.log.2": ["0", "1"],
    }
    assert all(len(text.encode()) <= 100 for text in texts.values())


def test_a_full_disk_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "x.log").symlink_to("/dev/full")
    handler = RotatingFile(tmp_path / "x.log", max_bytes=100)
    for _ in range(3):
        handler.emit(logging.LogRecord("n", logging.INFO, "", 0, "m", (), None))
    assert capsys.readouterr().err.count("No space left") == 1
    with contextlib.suppress(OSError):
        handler.close()


def test_a_reader_of_stderr_that_has_gone_costs_only_the_lines() -> None:
    program = (
        "import logging, os; from smg_trio.gateway.observability.logs import set_up_logging; set_up_logging('info');"
        "r, w = os.pipe(); os.close(r); os.dup2(w, 2); logging.getLogger('x').info('lost'); print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "alive\n"


async def test_launch_writes_as_it_is_told(tmp_path: Path) -> None:
    """Level from the environment, JSON from a file of settings, directory from the command line; then a drain."""
    settings, logs = trio.Path(tmp_path / "smg.toml"), trio.Path(tmp_path / "logs")
    await settings.write_text('log_json = true\nport = 0\nprometheus_port = 0\nhost = "127.0.0.1"\n')
    command = [sys.executable, "-m", "smg_trio", "launch", "--config", str(settings), "--log-dir", str(logs)]
    environment = os.environ | {"SMG_TRIO_LOG_LEVEL": "debug", "SMG_TRIO_PROT": "1", "PYTHONPATH": str(ROOT)}
    process = await trio.lowlevel.open_process(command, stderr=subprocess.PIPE, env=environment)
    assert process.stderr is not None
    try:
        seen = b""
        with trio.fail_after(30):
            while b"metrics on " not in seen:
                piece = await process.stderr.receive_some()
                assert piece, seen
                seen += piece
            process.terminate()
            async for piece in process.stderr:
                seen += piece
            assert await process.wait() == 0
    finally:
        process.kill()
        await process.wait()
    lines = [json.loads(line) for line in seen.decode().splitlines()]
    written = await (logs / "smg-trio.log").read_text()
    assert [json.loads(line)["message"] for line in written.splitlines()] == [line["message"] for line in lines]
    by_message = {line["message"].partition(":")[0]: line["level"] for line in lines}
    assert by_message["security"] == "WARN"
    assert by_message["the environment variable SMG_TRIO_PROT is not a setting"] == "WARN"
    assert by_message["gateway ended"] == "INFO"
