"""The image, as far as it can be checked without building it; and its health check, asked of real gateways."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import trio

from smg_trio.gateway.routes import ROUTES
from tests.e2e.harness import HELLO, open_gateway

from .reading import DEPLOY, ROOT

TEXT = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = [
    line.split(None, 1)
    for line in re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    if line.strip()
]


def values(name: str) -> list[str]:
    return [rest for instruction, rest in INSTRUCTIONS if instruction == name]


def kept_out(path: str) -> bool:
    """Whether .dockerignore keeps a path out: the last rule that fits it or a directory above it decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        parts = Path(path).parts
        if any(fnmatch("/".join(parts[: n + 1]), pattern) for n in range(len(parts))):
            out = not line.startswith("!")
    return out


def test_what_is_copied_is_there_and_not_ignored() -> None:
    sources = [word for line in values("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not kept_out(source), source
    for path in ("tests/conftest.py", ".git/config", "docs/cli.md", "deploy/compose.yaml", ".venv/bin/python"):
        assert kept_out(path), path


def test_everything_the_wheel_is_built_from_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = " ".join(values("COPY"))
    for needed in ("pyproject.toml", project["readme"], *project["license-files"], "smg_trio"):
        assert needed in copied


def test_it_runs_the_gateway_as_a_user_of_its_own() -> None:
    assert int(values("USER")[-1]) > 0
    assert values("STOPSIGNAL") == ["SIGTERM"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert values("ENTRYPOINT") == [f'["{next(iter(project["scripts"]))}"]']
    assert values("VOLUME") == ["/run/smg"]
    # A setting in the image would win over the file that its user mounts.
    assert "SMG_TRIO_" not in TEXT


def test_its_python_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bases = {line.split()[0] for line in values("FROM")}
    assert bases == {"${BASE}"}
    for line in values("ARG"):
        version = line.removeprefix("BASE=python:").removesuffix("-slim")
        assert f"Programming Language :: Python :: {version}" in project["classifiers"]


async def healthy(port: int) -> bool:
    command = [sys.executable, str(DEPLOY / "healthcheck.py")]
    environment = os.environ | {"SMG_TRIO_PORT": str(port), "http_proxy": "http://127.0.0.1:1"}
    done = await trio.run_process(command, env=environment, check=False)
    assert done.returncode in (0, 1)
    return done.returncode == 0


async def test_a_gateway_without_an_engine_is_healthy_and_none_is_not(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        assert (await bench.http.get("/readiness")).status_code == 503
        assert await healthy(bench.port)
        port = bench.port
    assert not await healthy(port)


def test_the_health_check_asks_what_needs_no_key() -> None:
    asked = re.search(r'"GET", "(/\w+)"', (DEPLOY / "healthcheck.py").read_text())
    assert asked is not None
    assert asked[1] in {route.path for route in ROUTES if route.public}


def test_the_health_check_of_the_image_is_that_file() -> None:
    (command,) = (rest for rest in values("HEALTHCHECK"))
    assert '"/opt/smg-trio/healthcheck.py"' in command
    assert subprocess.run([sys.executable, "-m", "py_compile", DEPLOY / "healthcheck.py"], check=False).returncode == 0


def test_packages_are_installed_by_hash() -> None:
    text = (ROOT / "deploy" / "requirements.txt").read_text()
    entry = r"^([\w.-]+)==\S+ *\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
    packages = re.findall(entry, text, flags=re.MULTILINE)
    assert len(packages) == len(re.findall(r"^[\w.-]+==", text, flags=re.MULTILINE))
    names = {re.sub(r"[-_.]+", "-", name).lower() for name, _ in packages}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"]["postgres"]
    for line in (*project["project"]["dependencies"], *extra, *project["build-system"]["requires"]):
        name = re.match(r"[\w.-]+", line)
        assert name is not None
        assert re.sub(r"[-_.]+", "-", name[0]).lower() in names, f"{line}: compile deploy/requirements.txt anew"
    assert any("--require-hashes -r requirements.txt" in command for command in values("RUN"))
    assert any("--no-deps --no-build-isolation ." in command for command in values("RUN"))
