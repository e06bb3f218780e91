"""What the process runs on: file limits, versions, keys and certificates, and files that it writes."""

from __future__ import annotations

import json
import os
import platform
import resource
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from smg_trio import __version__
from smg_trio.core.errors import ConfigError
from smg_trio.doctor.findings import Check, Finding, Status
from smg_trio.gateway.security.credentials import open_credentials
from smg_trio.gateway.security.exposure import exposures
from smg_trio.routing.admission import admission_limit

if TYPE_CHECKING:
    from smg_trio.gateway.plugin_set import PluginSet
    from smg_trio.settings.settings import Settings

_OTHER_FILES: Final = 128
"""Open files of a gateway without clients, and some for a few engines (measured: below 60)."""
_UNLIMITED_CLIENTS: Final = 4096
"""What is reckoned with where requests have no limit."""
_PACKAGES: Final = ("trio", "pyzmq", "msgpack", "tokenizers", "huggingface_hub", "jinja2", "quart", "hypercorn")
_EXTRAS: Final = {
    "rich": "smg-trio[top], for a live `top`",
    "mistral-common": "smg-trio[mistral], for the chat encoding of Mistral's models",
    "opentelemetry-sdk": "smg-trio[tracing], for --enable-trace",
}
_ENGINE_LIMIT_S: Final = 20.0
_ENGINE_PACKAGES: Final = ("vllm", "tokenspeed", "pyzmq", "msgspec", "torch")
_ASK_ENGINE: Final = """
import importlib.metadata as metadata, importlib.util as util, json, sys
found = {"python": sys.version.split()[0]}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
found["importable"] = [name for name in ("vllm", "tokenspeed") if util.find_spec(name)]
print(json.dumps(found))
"""


def check_file_limit(settings: Settings, soft: int, hard: int, cpu_count: int) -> Finding:
    """Whether as many clients as are admitted can be connected. `soft`, `hard`: RLIMIT_NOFILE. Pure."""
    admitted = admission_limit(settings.max_concurrent_requests, cpu_count)
    needed = (admitted or _UNLIMITED_CLIENTS) + settings.queue_size + _OTHER_FILES
    subject = "open files"
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return Finding(Check.LIMITS, Status.OK, subject, f"{_limit(soft)} allowed, {needed:,} may be needed")
    by_hand = f"`ulimit -n {needed}` in the shell that starts the gateway"
    if hard != resource.RLIM_INFINITY and hard < needed:
        by_hand = f"raise the hard limit too, which is {hard:,} (in limits.conf, or the nofile limit of the container)"
    remedy = f"LimitNOFILE=65536 in a systemd unit, or {by_hand}; or fewer --max-concurrent-requests."
    few = soft < 2 * _OTHER_FILES
    return Finding(
        Check.LIMITS, Status.PROBLEM if few else Status.WARNING, subject,
        f"{soft:,} allowed, {needed:,} may be needed: each client connection is one", remedy,
    )  # fmt: skip


def _limit(number: int) -> str:
    return "any number" if number == resource.RLIM_INFINITY else f"{number:,}"


def read_file_limit() -> tuple[int, int]:
    """The soft and the hard limit on open files of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def check_versions(found: Mapping[str, str | None], python: str) -> Iterator[Finding]:
    """Versions of this program and its dependencies; None: absent. Pure."""
    there = ", ".join(f"{name} {found[name]}" for name in _PACKAGES if found.get(name))
    yield Finding(Check.VERSIONS, Status.OK, f"smg-trio {__version__}", f"python {python}, {there}")
    missing = [name for name in _PACKAGES if not found.get(name)]
    if missing:
        remedy = "Install it again: pip install smg-trio"
        yield Finding(Check.VERSIONS, Status.PROBLEM, "dependencies", f"not installed: {', '.join(missing)}.", remedy)
    for name, extra in _EXTRAS.items():
        version = found.get(name)
        text = f"{name} {version}" if version else "not installed, not needed otherwise"
        yield Finding(Check.VERSIONS, Status.OK if version else Status.NOTE, extra, text)


def read_versions() -> tuple[dict[str, str | None], str]:
    """Versions of the packages that `check_versions` knows, and Python's."""
    found: dict[str, str | None] = {}
    for name in (*_PACKAGES, *_EXTRAS):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found, platform.python_version()


async def check_engine_python(python: str, backend: str) -> Finding:
    """Which engine a Python has: asked of its package metadata, without importing it. Cancelled, the process is ended.

    Args:
        python: the interpreter, a path or a name on PATH.
        backend: the engine it should have.
    """
    subject = f"engine python {python}"
    remedy = "Name the interpreter of the environment that the engine is installed in with --engine-python."
    command = [python, "-c", _ASK_ENGINE, *_ENGINE_PACKAGES]
    try:
        with trio.fail_after(_ENGINE_LIMIT_S):
            done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        found = json.loads(done.stdout)
    except OSError as error:
        return Finding(Check.VERSIONS, Status.PROBLEM, subject, f"cannot be run: {error.strerror}.", remedy)
    except trio.TooSlowError:
        text = f"has not answered within {_ENGINE_LIMIT_S:g} s."
        return Finding(Check.VERSIONS, Status.PROBLEM, subject, text, remedy)
    except ValueError:
        return Finding(Check.VERSIONS, Status.PROBLEM, subject, "is not a Python that works.", remedy)
    return engine_finding(subject, found, backend, remedy)


def engine_finding(subject: str, found: Mapping[str, object], backend: str, remedy: str) -> Finding:
    """What the answer of an engine's Python means. Pure."""
    importable = found.get("importable")
    if not isinstance(importable, list) or backend not in importable:
        return Finding(Check.VERSIONS, Status.PROBLEM, subject, f"{backend} is not installed there.", remedy)
    names = [name for name in ("python", *_ENGINE_PACKAGES) if name in found]
    return Finding(Check.VERSIONS, Status.OK, subject, ", ".join(f"{name} {found[name]}" for name in names))


async def check_security(settings: Settings, plugins: PluginSet) -> list[Finding]:
    """Read keys and certificate as a launch does, and say what they leave open."""
    try:
        credentials = await open_credentials(settings, plugins)
    except ConfigError as error:
        return [Finding(Check.SECURITY, Status.PROBLEM, error.option, error.problem, error.remedy)]
    open_things = exposures(settings, credentials.keys)
    if not open_things:
        return [Finding(Check.SECURITY, Status.OK, "protection", "all configurable protections are on")]
    return [Finding(Check.SECURITY, Status.NOTE, "open", text) for text in open_things]


def written_files(settings: Settings) -> dict[str, Path]:
    """The files and directories that a launch writes, by the option that names them. Pure."""
    found = {}
    if settings.log_dir is not None:
        found["--log-dir"] = Path(settings.log_dir) / "smg-trio.log"
    kind, _, path = settings.history_backend.partition(":")
    if kind == "sqlite" and path:
        found["--history-backend"] = Path(path)
    return found


def check_written_file(option: str, path: Path, exists: bool, writable: bool, directory: Path) -> Finding:
    """Whether a file can be written, or made. `directory`: the nearest one that exists. Pure."""
    if writable:
        return Finding(Check.FILES, Status.OK, option, f"{path} {'can be written' if exists else 'will be created'}")
    text = f"this user may not write {path if exists else f'in {directory}'}."
    return Finding(Check.FILES, Status.PROBLEM, option, text, "Change its owner, or name another path.")


def read_written_file(option: str, path: Path) -> Finding:
    """Look at a file that a launch writes. Directories for logs are made by the launch, those of databases are not."""
    exists = path.exists()
    nearest = path if exists else path.parent
    while option == "--log-dir" and not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    rights = os.W_OK if exists else os.W_OK | os.X_OK
    return check_written_file(option, path, exists, os.access(nearest, rights), nearest)
