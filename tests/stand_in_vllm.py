"""A package that poses as vLLM and runs the fake engine, for tests of commands that start engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# What `python -m vllm.entrypoints.cli.main serve MODEL --headless …` is here. It refuses what it does not know, so a
# test passes only with the command line that a real engine is given.
_MAIN = """
import argparse, os, sys
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("command", choices=["serve"])
parser.add_argument("model")
parser.add_argument("--headless", action="store_true", required=True)
for name in ("size", "size-local", "rpc-port"):
    parser.add_argument(f"--data-parallel-{name}", type=int, required=True)
parser.add_argument("--data-parallel-address", required=True)
parser.add_argument("--served-model-name")
parser.add_argument("--fail")
parser.add_argument("--stubborn", action="store_true")
given = parser.parse_args()
devices = os.environ.get("CUDA_VISIBLE_DEVICES", "no device")
print("Starting to load model", given.model, "on", devices, flush=True)
if given.fail:
    sys.exit(f"RuntimeError: {given.fail}")
if given.stubborn:
    import signal
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
handshake = f"tcp://{given.data_parallel_address}:{given.data_parallel_rpc_port}"
words = ["--handshake", handshake, "--ranks", str(given.data_parallel_size), "--model-path", given.model]
words += ["--answer", f"I am on {devices}.", "--step-ms", "1"]
os.execv(sys.executable, [sys.executable, "-m", "smg_trio", "fake-engine", *words])
"""


def write_stand_in(directory: Path) -> None:
    """Write the package into a directory that is going to be on PYTHONPATH."""
    package = directory / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True, exist_ok=True)
    (package / "main.py").write_text(_MAIN)
