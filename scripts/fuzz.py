"""Runs a fuzz target for a while, guided by coverage where atheris is installed, else on random bytes.

    python scripts/fuzz.py TARGET|all [--seconds 60] [--corpus DIRECTORY]

Targets are those of ``tests/fuzz/targets.py``. What breaks one is printed and kept in a file beside the corpus, to be
given to ``--replay``; it belongs into a test then.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

GUIDED = importlib.util.find_spec("atheris") is not None


def main() -> int:
    """Fuzz; 1 if something broke."""
    parser = argparse.ArgumentParser(description="fuzz targets, for a while")
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, default=None, help="where inputs worth keeping are kept")
    parser.add_argument("--replay", type=Path, default=None, help="run the target on this file only")
    options = parser.parse_args()
    if options.target == "all":
        return _all(options)
    if options.replay is not None:
        _load_targets()[0][options.target](options.replay.read_bytes())
        return 0
    with tempfile.TemporaryDirectory(prefix="smg-trio-fuzz-") as directory:
        corpus = options.corpus or Path(directory)
        corpus.mkdir(parents=True, exist_ok=True)
        return (_guided if GUIDED else _random)(options.target, options.seconds, corpus)


def _all(options: argparse.Namespace) -> int:
    codes = []
    for name in _load_targets()[0]:
        command = [sys.executable, __file__, name, "--seconds", str(options.seconds)]
        if options.corpus is not None:
            command += ["--corpus", str(options.corpus / name)]
        codes.append(subprocess.run(command, check=False).returncode)
        print(f"{name}: {'broken' if codes[-1] else 'held'}", flush=True)
    return int(any(codes))


def _load_targets() -> tuple[dict[str, Callable[[bytes], None]], dict[str, list[bytes]]]:
    from tests.fuzz.targets import BEGINNINGS, TARGETS

    return TARGETS, BEGINNINGS


def _guided(name: str, seconds: int, corpus: Path) -> int:
    import atheris

    with atheris.instrument_imports(include=["smg_trio"]):
        targets, beginnings = _load_targets()
    for index, raw in enumerate(beginnings.get(name, ())):
        (corpus / f"beginning-{index}").write_bytes(raw)
    flags = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *flags, f"-artifact_prefix={corpus}/broke-", str(corpus)], targets[name])
    atheris.Fuzz()  # ends the process
    return 0


def _random(name: str, seconds: int, corpus: Path) -> int:
    targets, beginnings = _load_targets()
    chooser = random.Random(os.urandom(8))
    ends, count = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        count += 1
        raw = bytearray(chooser.choice(beginnings.get(name) or [chooser.randbytes(chooser.randrange(200))]))
        for _ in range(chooser.randrange(6)):
            at = chooser.randrange(len(raw) + 1)
            raw[at : at + chooser.randrange(4)] = chooser.randbytes(chooser.randrange(4))
        try:
            targets[name](bytes(raw))
        except BaseException:
            path = corpus / f"broke-{count}"
            path.write_bytes(raw)
            print(f"{name} broke on {bytes(raw)!r}, kept in {path}")
            raise
    print(f"{name}: {count} inputs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
