"""A PostgreSQL server of the tests' own, on a Unix socket in a temporary directory."""

from __future__ import annotations

import itertools
import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

_READY = b"database system is ready to accept connections"
_PATIENCE_S = 60
_HOMES = (*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin"), Path("/usr/local/pgsql/bin"))


def find_programs() -> Path | None:
    """Where the server's programs are, if they are installed."""
    on_path = shutil.which("initdb")
    places = [Path(on_path).resolve().parent] if on_path else []
    return next((path for path in (*places, *sorted(_HOMES, reverse=True)) if (path / "postgres").exists()), None)


def _other_user() -> dict[str, Any]:
    """Whose processes they are: PostgreSQL refuses to run as root."""
    if os.geteuid():
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class PostgresServer:
    """Runs between `start` and `stop` or `kill`; started again, it recovers."""

    def __init__(self, programs: Path, directory: Path, *options: str) -> None:
        self._programs = programs
        self.directory = directory
        self._options = options
        self._user = _other_user()
        self._schemas = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self.log: list[bytes] = []
        if self._user:
            os.chown(directory, self._user["user"], self._user["group"])
        initdb = [programs / "initdb", "-D", directory / "data", "-A", "trust", "-U", "smg", "-E", "UTF8"]
        quick = ["--locale=C", "--no-sync", "--no-instructions"]
        subprocess.run([*initdb, *quick], check=True, stdout=subprocess.DEVNULL, cwd="/", **self._user)

    def start(self) -> None:
        """Returns when it takes connections."""
        options = ["-c", "listen_addresses=", "-k", str(self.directory), *self._options]
        self._process = subprocess.Popen(
            [self._programs / "postgres", "-D", self.directory / "data", *options],
            stderr=subprocess.PIPE,
            cwd="/",
            env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
            **self._user,
        )
        self.log, ready = [], threading.Event()
        threading.Thread(target=self._read_log, args=(self._process, ready), daemon=True).start()
        if not ready.wait(_PATIENCE_S) or self._process.poll() is not None:
            self._process.kill()
            self._wait()
            raise RuntimeError(f"PostgreSQL has not started: {self.log}")

    def _read_log(self, process: subprocess.Popen[bytes], ready: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self.log.append(line)
                if _READY in line:
                    ready.set()
        ready.set()

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _processes(self) -> list[int]:
        """The server's own process first, then those that it has started."""
        pid = self._pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def kill(self) -> None:
        """Kill -9 of all its processes at the same moment."""
        os.kill(self._pid, signal.SIGSTOP)  # it starts none anew
        with ExitStack() as files:
            ends = [files.enter_context(os.fdopen(os.pidfd_open(pid), "rb", 0)) for pid in self._processes()]
            for end in ends:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(end.fileno(), signal.SIGKILL)
            self._wait()
            for end in ends[1:]:  # until then a new server takes the shared memory for used
                select.select([end], [], [], _PATIENCE_S)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Every process of it hangs meanwhile."""
        processes = self._processes()
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(processes):
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it, if it runs; clients are cut off."""
        if self.running:
            os.kill(self._pid, signal.SIGINT)
            self._wait()

    @property
    def running(self) -> bool:
        """Whether it has been started, and not stopped since."""
        return self._process is not None

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait(_PATIENCE_S)
        self._process = None

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection for looking and changing things behind the gateway's back."""
        return psycopg.connect(host=str(self.directory), user="smg", dbname="postgres", autocommit=True)

    def new_url(self, *, password: str = "") -> str:
        """URL of an empty schema."""
        schema = f"history_{next(self._schemas)}"
        with self.connect() as connection:
            connection.execute(psycopg.sql.SQL("CREATE SCHEMA {}").format(psycopg.sql.Identifier(schema)))
        user = f"smg:{password}" if password else "smg"
        host = str(self.directory).replace("/", "%2F")
        return f"postgresql://{user}@{host}/postgres?options=-c%20search_path%3D{schema}"


@contextmanager
def running_server(*options: str) -> Iterator[PostgresServer]:
    """A server with nothing in it. Its programs must be installed."""
    programs = find_programs()
    assert programs is not None
    with tempfile.TemporaryDirectory(prefix="smg-pg-", ignore_cleanup_errors=True) as directory:
        server = PostgresServer(programs, Path(directory), *options)
        server.start()
        try:
            yield server
        finally:
            if server.running:
                server.kill()
