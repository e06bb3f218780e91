"""What the doctor concludes from what it is told, without a host."""

from __future__ import annotations

import errno
import os
import resource
import stat
from pathlib import Path
from typing import Any

import pytest

from smg_trio.doctor.engines import check_engines, check_lost_engines, dialled_port, start_command
from smg_trio.doctor.environment import check_file_limit, check_versions, check_written_file, engine_finding
from smg_trio.doctor.findings import Check, Finding, Status, as_json, as_text
from smg_trio.doctor.gateway import check_readiness
from smg_trio.doctor.host import Host, Process, TcpSocket, UnixSocket, lock_holders, tcp_sockets, unix_sockets
from smg_trio.doctor.ports import WantedPort, check_clashes, check_port, is_gateway, wanted_ports
from smg_trio.doctor.sockets import SocketPath, check_served, check_socket_path, serving_pids
from smg_trio.settings.settings import Settings
from smg_trio.wire.addresses import parse_worker_url
from tests.test_docs_commands import check_words, words_of

URL = "ipc:///run/smg/w0"
WORKER = parse_worker_url(URL)
PORT = int(WORKER.handshake.rpartition(":")[2])
UID = 1000
OK, NOTE, WARNING, PROBLEM = Status
TCP = f"""  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 0100007F:{PORT:04X} 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20 4 0 10 -1
   2: cut off
"""
TCP6 = """  sl  local_address  remote_address  st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:7148 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 13 1 0 100 0 0
"""
UNIX = """Num       RefCount Protocol Flags    Type St Inode Path
0000000000000001: 00000003 00000000 00000000 0001 03 20
0000000000000002: 00000002 00000000 00010000 0001 01 21 /run/smg/w0-in.sock
0000000000000003: 00000003 00000000 00000000 0001 03 22 /run/smg/w0-in.sock
0000000000000004: 00000002 00000000 00010000 0001 01 23 /run/a b/w0-in.sock
"""
LOCKS = """1: FLOCK  ADVISORY  WRITE 77 fe:00:31 0 EOF
1: -> FLOCK  ADVISORY  WRITE 78 fe:00:31 0 EOF
2: POSIX  ADVISORY  READ  79 00:2f:32 128 128
"""


def status_of(mode: int, uid: int = UID, inode: int = 1) -> os.stat_result:
    return os.stat_result((mode, inode, 0, 1, uid, 0, 0, 0, 0, 0))


DIRECTORY = status_of(stat.S_IFDIR | 0o700)


def socket_path(**changes: Any) -> SocketPath:
    usual = {
        "directory": Path("/run/smg"), "status": DIRECTORY, "failure": "", "ancestor": Path("/run/smg"),
        "writable": True,
    }  # fmt: skip
    return SocketPath(**(usual | changes))


def test_tables_of_the_kernel_are_read() -> None:
    assert list(tcp_sockets(TCP)) == [
        TcpSocket(30000, 0, True, False, 11), TcpSocket(PORT, 0xD431, False, True, 12),
    ]  # fmt: skip
    assert [one.port for one in tcp_sockets(TCP6)] == [29000]
    assert list(unix_sockets(UNIX)) == [
        UnixSocket("/run/smg/w0-in.sock", True, 21),
        UnixSocket("/run/smg/w0-in.sock", False, 22),
        UnixSocket("/run/a b/w0-in.sock", True, 23),
    ]
    assert lock_holders(LOCKS) == {31: 77, 32: 79}
    assert list(tcp_sockets("")) == list(unix_sockets("")) == []


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        (socket_path(), OK, "mode 0700"),
        (socket_path(status=None, ancestor=Path("/run")), OK, "will be created"),
        (socket_path(status=None, ancestor=Path("/run"), writable=False), PROBLEM, "may not create it in /run"),
        (socket_path(failure="Permission denied"), PROBLEM, "Permission denied"),
        (socket_path(writable=False), PROBLEM, "may not create files"),
        (socket_path(status=status_of(stat.S_IFDIR | 0o777)), WARNING, "mode 0777"),
        (socket_path(status=status_of(stat.S_IFDIR | 0o1777)), PROBLEM, "shared with other users"),
        (socket_path(status=status_of(stat.S_IFDIR | 0o700, uid=0)), PROBLEM, "owned by uid 0"),
        (socket_path(status=status_of(stat.S_IFLNK | 0o777)), PROBLEM, "not a directory"),
        (socket_path(not_sockets=("/run/smg/w0-in.sock",)), PROBLEM, "is not a socket"),
        (socket_path(lock=status_of(stat.S_IFREG | 0o600, uid=0)), PROBLEM, "lock file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_socket_directories(path: SocketPath, status: Status, named: str) -> None:
    found = list(check_socket_path(URL, path, UID))
    (worst,) = [one for one in found if one.status is status]
    assert named in worst.text
    assert bool(worst.remedy) is (status is not OK)


GATEWAY = Process(77, 1, ("python", "-m", "smg_trio", "launch", "--api-key", "secret"), frozenset({11, 21}))
FRONT = Process(78, 77, ("python", "front"), frozenset({13}))
NGINX = Process(90, 1, ("/usr/sbin/nginx",), frozenset({11}))
LISTENS = (TcpSocket(30000, 0, True, False, 11), TcpSocket(29000, 0, True, False, 13))


def host(*processes: Process, **tables: Any) -> Host:
    return Host(UID, processes={one.pid: one for one in processes}, **({"tcp": LISTENS} | tables))


def test_the_gateway_of_a_path_is_who_listens_or_holds_the_lock() -> None:
    unix = tuple(unix_sockets(UNIX))
    locked = socket_path(lock=status_of(stat.S_IFREG | 0o600, inode=31))
    assert serving_pids(WORKER, socket_path(), host(GATEWAY, unix=unix)) == {77}
    unseen = host(NGINX, unix=unix, locks={31: 77})
    assert serving_pids(WORKER, locked, unseen) == {77}
    assert serving_pids(WORKER, locked, host(NGINX, locks={31: 77})) == set(), "a lock's inode alone proves nothing"
    (elsewhere,) = check_served(URL, WORKER, set(), host(unix=unix))
    assert "cannot be seen" in elsewhere.text
    assert list(check_served(URL, WORKER, set(), host())) == []


HTTP = WantedPort("HTTP", "0.0.0.0", 30000, "choose another with --port")
METRICS = WantedPort("metrics", "0.0.0.0", 29000, "choose another with --prometheus-port")
TAKEN = OSError(errno.EADDRINUSE, "in use")


@pytest.mark.parametrize(
    ("wanted", "error", "at", "gateway", "status", "named"),
    [
        (HTTP, None, host(), (), OK, "free"),
        (HTTP, TAKEN, host(GATEWAY), (77,), OK, "process 77 (python -m smg_trio launch)"),
        (METRICS, TAKEN, host(GATEWAY, FRONT), (77,), OK, "process 78"),
        (HTTP, TAKEN, host(NGINX), (77,), PROBLEM, "process 90 (nginx)"),
        (HTTP, TAKEN, host(GATEWAY), (), PROBLEM, "process 77"),
        (HTTP, TAKEN, host(), (), PROBLEM, "cannot be seen"),
        (HTTP, TAKEN, host(), (77,), WARNING, "perhaps the running gateway"),
        (HTTP, OSError(errno.EACCES, "Permission denied"), host(), (), PROBLEM, "may not listen"),
        (HTTP, OSError(errno.EADDRNOTAVAIL, "Cannot assign"), host(), (), PROBLEM, "Cannot assign"),
        (WantedPort("HTTP", "", 0, ""), None, host(), (), OK, "chooses"),
    ],
)
def test_ports(
    wanted: WantedPort, error: OSError | None, at: Host, gateway: tuple[int, ...], status: Status, named: str
) -> None:
    found = check_port(wanted, error, at, gateway)
    assert (found.status, named in found.text) == (status, True), found
    assert "secret" not in found.text
    assert bool(found.remedy) is (status in (WARNING, PROBLEM))


def test_ports_of_one_launch_that_exclude_each_other() -> None:
    settings = Settings(port=PORT, prometheus_port=PORT, health_check_port=1, host="127.0.0.1")
    ports = list(wanted_ports(settings, [WORKER]))
    assert [one.purpose for one in ports] == ["HTTP", "metrics", "probes", "handshake"]
    assert [found.subject.split()[0] for found in check_clashes(ports)] == ["metrics", "handshake", "handshake"]
    assert list(check_clashes(list(wanted_ports(Settings(port=0, prometheus_port=0), [WORKER])))) == []


@pytest.mark.parametrize(
    ("command", "port"),
    [
        ("vllm serve m --headless --data-parallel-rpc-port 22670", 22670),
        ("python -m tokenspeed.cli serve --headless --data-parallel-rpc-port=22671", 22671),
        ("python -m smg_trio fake-engine --handshake tcp://127.0.0.1:22672", 22672),
        ("vllm serve m --data-parallel-rpc-port 22670", None),
        ("vllm serve m --headless --data-parallel-rpc-port", None),
        ("smg-trio fake-engine --handshake x", None),
        ("nginx", None),
    ],
)
def test_what_engines_dial(command: str, port: int | None) -> None:
    assert dialled_port(command.split()) == port


def test_gateways_are_known_by_their_command() -> None:
    assert is_gateway(["/usr/bin/python", "/usr/bin/smg-trio", "serve", "--model", "m"])
    assert is_gateway(["python", "-m", "smg_trio", "launch"])
    assert not is_gateway(["python", "-m", "smg_trio", "doctor"])
    assert not is_gateway(["vim", "smg_trio"])


ENGINE = Process(5, 1, ("vllm", "serve", "m", "--headless", "--data-parallel-rpc-port", str(PORT)))
TWO = Settings(zmq_engine_count=2)


@pytest.mark.parametrize(
    ("settings", "at", "served", "status", "named"),
    [
        (Settings(), host(unix=tuple(unix_sockets(UNIX))), True, OK, "1 connected"),
        (TWO, host(unix=tuple(unix_sockets(UNIX))), True, WARNING, "1 of 2"),
        (TWO, host(), True, PROBLEM, "none is connected"),
        (Settings(), host(), False, NOTE, "none that can be seen"),
        (Settings(), host(ENGINE), False, NOTE, "waits for a gateway"),
        (Settings(), host(ENGINE), True, NOTE, "is not connected yet"),
    ],
)
def test_engines(settings: Settings, at: Host, served: bool, status: Status, named: str) -> None:
    found = check_engines(URL, WORKER, settings, at, served)
    assert (found.status, named in found.text) == (status, True), found


def test_an_engine_that_dials_where_nobody_listens_is_named() -> None:
    assert list(check_lost_engines(host(ENGINE), [PORT])) == []
    assert list(check_lost_engines(host(ENGINE, tcp=(TcpSocket(PORT, 0, True, False, 1),)), [])) == []
    (lost,) = check_lost_engines(host(ENGINE), [21000])
    assert lost.status is WARNING
    assert (f"port {PORT}" in lost.text, "21000" in lost.remedy) == (True, True)


@pytest.mark.parametrize("backend", ["vllm", "tokenspeed"])
def test_the_command_that_starts_an_engine_has_flags_that_the_engine_knows(backend: str) -> None:
    command = start_command(Settings(model_path="m", backend=backend, zmq_engine_count=2), PORT)
    check_words(words_of(command), "doctor")
    assert dialled_port(command.split()) == PORT


@pytest.mark.parametrize(
    ("soft", "hard", "status", "named"),
    [
        (65536, 65536, OK, ""),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, OK, ""),
        (1024, 65536, WARNING, "ulimit -n 4324"),
        (1024, 1024, WARNING, "hard limit"),
        (128, 65536, PROBLEM, "LimitNOFILE"),
    ],
)
def test_file_limits(soft: int, hard: int, status: Status, named: str) -> None:
    found = check_file_limit(Settings(), soft, hard, 1)
    assert (found.status, named in found.remedy) == (status, True), found


def test_versions_and_engines_of_other_environments() -> None:
    found = list(check_versions({"trio": "1", "rich": None}, "3.11"))
    assert [one.status for one in found] == [OK, PROBLEM, NOTE, NOTE, NOTE]
    assert "tokenizers" in found[1].text
    there = engine_finding("p", {"python": "3.12", "vllm": "0.32.0", "importable": ["vllm"]}, "vllm", "remedy")
    assert (there.status, there.text) == (OK, "python 3.12, vllm 0.32.0")
    for answer in ({"vllm": "0.32.0", "importable": []}, {}, {"importable": 1}):
        assert engine_finding("p", answer, "vllm", "remedy").status is PROBLEM
    assert check_written_file("--log-dir", Path("/x/l"), False, False, Path("/x")).status is PROBLEM


@pytest.mark.parametrize(
    ("answer", "status", "named"),
    [
        ((200, {"healthy_workers": 1, "total_workers": 1}), OK, "1 of 1"),
        ((503, {"reason": "no workers", "detail": "none"}), PROBLEM, "no workers: none"),
        ((404, {}), PROBLEM, "status 404"),
        ("ConnectionResetError: gone", WARNING, "gone"),
    ],
)
def test_the_word_of_a_running_gateway(answer: Any, status: Status, named: str) -> None:
    found = check_readiness("HTTP 127.0.0.1:1", answer)
    assert (found.status, named in found.text) == (status, True)


def test_reports() -> None:
    findings = [
        Finding(Check.PORTS, OK, "HTTP", "free"),
        Finding(Check.MODEL, PROBLEM, "m\n\x1b[2J", "is bad.", "Mend it."),
        Finding(Check.LIMITS, WARNING, "files", "few", "Raise them."),
    ]
    text = as_text(findings)
    assert "  problem  m??[2J: is bad.\n           -> Mend it.\n" in text
    assert text.index("limits") < text.index("model") < text.index("ports"), "in the order of the checks"
    assert text.endswith("1 problem, 1 warning. See the lines with -> for what to do.\n")
    told = as_json(findings)
    assert (told["ok"], told["problems"], told["warnings"], len(told["findings"])) == (False, 1, 1, 3)
    assert as_json(findings[:1])["ok"]
    assert as_text([]).endswith("no problems, no warnings.\n")
