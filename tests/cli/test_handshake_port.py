"""``handshake-port``: the port of a worker, and how engines on other hosts are started for one."""

from __future__ import annotations

import shlex

import pytest

from smg_trio.cli.main import main


def test_it_prints_the_port(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["handshake-port", "tcp://10.0.0.1:5570"]) == 0
    assert capsys.readouterr().out == "5570\n"


@pytest.mark.parametrize(
    ("words", "host"),
    [
        (["tcp://10.0.0.1:5570"], "10.0.0.1"),
        (["tcp://0.0.0.0:5570", "--zmq-advertise-host", "gateway.internal"], "gateway.internal"),
        (["tcp://[fd00::1]:5570"], "fd00::1"),
    ],
)
def test_commands_name_what_engines_connect_to(words: list[str], host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["handshake-port", *words, "--engine-command"]) == 0
    text = capsys.readouterr().out.replace("\\\n", " ")
    one, group, tokenspeed = (shlex.split(line) for line in text.splitlines() if line.startswith("  "))
    assert one[0] == f"VLLM_DP_MASTER_IP={host}", "vLLM ignores the flag where there is one engine"
    assert "--data-parallel-address" not in one
    for command in (group, tokenspeed):
        assert command[command.index("--data-parallel-address") + 1] == host
    for command in (one, group, tokenspeed):
        assert command[command.index("--data-parallel-rpc-port") + 1] == "5570"


def test_engines_of_this_host_need_no_such_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["handshake-port", "ipc:///run/smg/e0", "--engine-command"]) == 2
    assert "tcp:// workers" in capsys.readouterr().err
