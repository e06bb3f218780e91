"""Sessions for nox; CONTRIBUTING.md says what each is for.

lint, types, imports, unit, e2e, tests, coverage, docs, pythons, lowest, newest, grammars, fuzz, chaos, package, deploy,
image, sbom, bench, ops, interop, clients, browser, tour. Each installs what it needs by itself.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "imports", "tests", "docs"]
nox.options.reuse_existing_virtualenvs = True

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
PATHS = ("smg_trio", "tests", "scripts", "noxfile.py")


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format."""
    session.install("ruff>=0.9")
    session.run("ruff", "check", *PATHS)
    session.run("ruff", "format", "--check", *PATHS)


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict."""
    session.install("-e", ".[dev]")
    session.run("mypy")


@nox.session
def imports(session: nox.Session) -> None:
    """The rooms' import contracts."""
    session.install("-e", ".[dev]")
    session.run("lint-imports")


@nox.session
def tests(session: nox.Session) -> None:
    """The whole test suite; arguments go to pytest."""
    session.install("-e", ".[dev]")
    session.run("pytest", "-n", "2", "--hypothesis-profile=ci", *session.posargs)


@nox.session
def unit(session: nox.Session) -> None:
    """Tests that need no server, process or client library."""
    session.install("-e", ".[dev]")
    session.run("pytest", "-n", "2", "-m", "not e2e", "--hypothesis-profile=ci", *session.posargs)


@nox.session
def e2e(session: nox.Session) -> None:
    """Tests with real sockets, processes and HTTP clients."""
    session.install("-e", ".[dev]")
    session.run("pytest", "-n", "2", "-m", "e2e", "--hypothesis-profile=ci", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """How much of the package the whole suite runs; fails below the floor in pyproject.toml."""
    session.install("-e", ".[dev]")
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", "-n", "2", "--hypothesis-profile=ci", *session.posargs)
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report", "--skip-covered", "--sort=cover")


@nox.session
def lowest(session: nox.Session) -> None:
    """The tests with the lowest dependencies that pyproject.toml allows."""
    session.install("uv")
    session.run("uv", "pip", "install", "--quiet", "--resolution", "lowest-direct", "-e", ".[dev]")
    # What other versions of dependencies call deprecated is no fault of this one.
    session.run("pytest", "-n", "2", "-W", "default", "--hypothesis-profile=ci", *session.posargs)


@nox.session
def newest(session: nox.Session) -> None:
    """The tests with the newest dependencies that pyproject.toml allows."""
    session.install("--upgrade", "--upgrade-strategy", "eager", "-e", ".[dev]")
    # What other versions of dependencies call deprecated is no fault of this one.
    session.run("pytest", "-n", "2", "-W", "default", "--hypothesis-profile=ci", *session.posargs)


@nox.session
def grammars(session: nox.Session) -> None:
    """Grammars of forced tool calls and structured outputs, compiled and matched by xgrammar."""
    session.install("-e", ".[dev]", "xgrammar")
    session.run("pytest", "tests/parsers/test_constraints.py", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Ten rounds of the laws on new examples, mutated requests, and fuzz targets guided by coverage, a minute each."""
    session.install("-e", ".[dev]")
    for _ in range(10):
        session.run("pytest", "-n", "2", "-m", "hypothesis", "--hypothesis-profile=default", *session.posargs)
    environment = {"SMG_TRIO_FUZZ_REQUESTS": "20000", "SMG_TRIO_FUZZ_SEED": str(random.randrange(10**6))}
    session.run("pytest", "tests/fuzz/test_requests.py", *session.posargs, env=environment)
    session.run("python", "scripts/fuzz_images.py", "--seed", environment["SMG_TRIO_FUZZ_SEED"])
    # Where there is no wheel of it (other machines than Linux on x86) the bytes are random.
    session.run("python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "atheris", success_codes=[0, 1])
    session.run("python", "scripts/fuzz.py", "all", "--seconds", "60", "--corpus", ".fuzz-corpus")


@nox.session(python=PYTHONS)
def pythons(session: nox.Session) -> None:
    """The test suite on every Python that is supported and there."""
    session.install("-e", ".[dev]")
    session.run("pytest", "-n", "2", "--hypothesis-profile=ci", *session.posargs)


@nox.session(python=PYTHONS)
def package(session: nox.Session) -> None:
    """Wheel and sdist: metadata, what is in them, the wheel by itself and under pipx, the sdist's tests."""
    session.install("-e", ".[dev]", "build", "pipx", "twine>=6.1", "check-wheel-contents>=0.6.1")
    dist = f"{Path(session.create_tmp()).resolve()}/dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", dist, silent=True)
    session.run("twine", "check", "--strict", *map(str, Path(dist).iterdir()))
    session.run("check-wheel-contents", *map(str, Path(dist).glob("*.whl")))
    session.run("pytest", "tests/package", *session.posargs, env={"SMG_TRIO_DIST": dist})


@nox.session
def deploy(session: nox.Session) -> None:
    """Dockerfile, units, manifest, compose file and nginx configuration; nginx, strace and systemd-analyze if there."""
    session.install("-e", ".[dev]", "kubernetes-validate>=1.33")
    session.run("pytest", "tests/deploy", *session.posargs, env={"SMG_TRIO_DEPLOY": "1"})


@nox.session
def image(session: nox.Session) -> None:
    """The image, built and run by Buildah as the deployment files say; `-- IMAGE` is a base image of your own."""
    session.install("-e", ".[dev]")
    base = session.posargs[0] if session.posargs else "python:3.13-slim"
    built = "localhost/smg-trio:tested"
    session.run(
        "buildah", "bud", "--isolation", "chroot", "--format", "docker", "--build-arg", f"BASE={base}", "-t", built,
        ".", external=True,
    )  # fmt: skip
    session.run("pytest", "tests/deploy/test_image.py", env={"SMG_TRIO_IMAGE": built})


@nox.session
def sbom(session: nox.Session) -> None:
    """Software bill of materials of the wheel with everything it brings: dist/sbom.cdx.json, CycloneDX."""
    session.install("build", "cyclonedx-bom>=7", "cyclonedx-python-lib[json-validation]")
    dist = f"{Path(session.create_tmp()).resolve()}/dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--wheel", "--outdir", dist, silent=True)
    (wheel,) = Path(dist).glob("*.whl")
    Path("dist").mkdir(exist_ok=True)
    session.run("python", "scripts/make_sbom.py", str(wheel), "dist/sbom.cdx.json")


@nox.session
def chaos(session: nox.Session) -> None:
    """Engines, and gateway processes, killed and restarted all the time while clients come and go, a minute each."""
    session.install("-e", ".[dev]")
    for seed in ("1", "2", "3"):
        session.run("python", "scripts/chaos.py", "--seconds", "60", "--seed", seed)
    session.run("python", "scripts/chaos.py", "--seconds", "60", "--seed", "4", "--processes", "2")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation's commands, links and quotations are true; its site is built into site/."""
    session.install("-e", ".[dev,docs]")
    tests = ("docs", "docs_commands", "troubleshooting")
    session.run("pytest", *(f"tests/test_{name}.py" for name in tests), "tests/scripts/test_make_docs.py")
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def bench(session: nox.Session) -> None:
    """The short form of the benchmarks."""
    session.install("-e", ".[bench]")
    session.run("python", "scripts/bench_gateway.py", "--short", *session.posargs)


@nox.session
def ops(session: nox.Session) -> None:
    """Alert rules, their tests and the dashboard's queries with a real Prometheus: the one there is, or Debian's."""
    session.install("-e", ".[dev]")
    program = shutil.which("prometheus")
    directory = Path(program).parent if program else _unpacked_prometheus(session)
    session.run("pytest", "tests/ops", *session.posargs, env={"SMG_TRIO_PROMETHEUS": str(directory)})


def _unpacked_prometheus(session: nox.Session) -> Path:
    """Debian's package, unpacked and not installed."""
    place = Path(session.virtualenv.location) / "prometheus"
    if not (place / "usr" / "bin" / "promtool").exists():
        place.mkdir(exist_ok=True)
        with session.chdir(place):
            session.run("apt-get", "download", "prometheus", external=True)
            session.run("dpkg", "-x", str(next(place.glob("prometheus_*.deb"))), ".", external=True)
    return place / "usr" / "bin"


@nox.session
def interop(session: nox.Session) -> None:
    """Against real vLLM engines, vLLM's own API server (CPU builds) and TokenSpeed's own wire modules: 15 minutes."""
    session.install("-e", ".[dev,interop]")
    engine = session.virtualenv.location + "-engine"
    vision = engine + "-vision"
    session.run("python", "scripts/interop_env.py", engine, "--vision", vision)
    # Its dependencies are GPU builds; what the tests use of it needs none of them.
    tokenspeed = engine + "-tokenspeed"
    session.run(
        f"{engine}/bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", tokenspeed,
        "tokenspeed==0.1.1", external=True,
    )  # fmt: skip
    session.run(
        "pytest", "tests/interop", "-m", "interop", *session.posargs,
        env={
            "SMG_TRIO_INTEROP_PYTHON": f"{engine}/bin/python",
            "SMG_TRIO_INTEROP_TOKENSPEED": tokenspeed,
            "SMG_TRIO_INTEROP_VISION": vision,
        },
    )  # fmt: skip


CLIENTS = {
    "libraries": (
        (
            "openai[realtime]>=3.57",
            "anthropic>=2.14",
            "langchain-openai>=1.7",
            "langchain-anthropic>=1.7",
            "litellm>=1.110",
            "pydantic-ai-slim[openai,anthropic]>=2.60",
            "openai-agents>=0.24",
        ),
        ("openai", "anthropic", "langchain", "litellm", "agents", "node", "codex", "claude_code"),
    ),
    # Wants an older jiter than the newest openai does.
    "instructor": (("instructor>=1.17",), ("instructor",)),
    "evaluations": (("lm-eval[api]>=0.4.12", "transformers>=5", "inspect-ai>=0.3.280", "openai>=3"), ("evaluations",)),
    "benchmarks": (("openai>=3",), ("benchmarks",)),
}
"""Kits of clients that can share an environment: what is installed, and the tests that then run."""
LOAD_GENERATORS = ("guidellm", "aiperf")


@nox.session
@nox.parametrize("kit", [nox.param(kit, id=kit) for kit in CLIENTS])
def clients(session: nox.Session, kit: str) -> None:
    """Real client libraries against a gateway with a fake engine; `vllm bench serve` where an interop python is set."""
    packages, subjects = CLIENTS[kit]
    session.install("-e", ".[images]", "httpx", "pytest", "pytest-trio", "pytest-timeout", "trustme", *packages)
    environment = {"SMG_TRIO_CLIENTS": "1"}
    if kit == "benchmarks":
        environment |= {f"SMG_TRIO_CLIENTS_{name.upper()}": _program(session, name) for name in LOAD_GENERATORS}
    files = [f"tests/clients/test_{subject}.py" for subject in subjects]
    session.run("pytest", "--disable-warnings", *files, *session.posargs, env=environment)


@nox.session
def browser(session: nox.Session) -> None:
    """The live page in a headless Chromium: the system's (`apt-get install chromium`), else playwright's own."""
    session.install("-e", ".[dev]", "playwright>=1.50")
    if shutil.which("chromium") is None:
        session.run("playwright", "install", "--with-deps", "chromium")
    session.run("pytest", "tests/browser", "-n", "0", *session.posargs, env={"SMG_TRIO_BROWSER": "1"})


@nox.session
def tour(session: nox.Session) -> None:
    """The pictures of docs/tour.md, from a real run in a headless Chromium."""
    session.install("-e", ".[dev]", "playwright>=1.50")
    if shutil.which("chromium") is None:
        session.run("playwright", "install", "--with-deps", "chromium")
    session.run("python", "scripts/make_tour.py")


def _program(session: nox.Session, name: str) -> str:
    """A program in an environment of its own, for its requirements contradict ours."""
    environment = f"{session.virtualenv.location}-{name}"
    session.run("python", "-m", "venv", environment)
    session.run(f"{environment}/bin/python", "-m", "pip", "install", "--quiet", name, external=True)
    return f"{environment}/bin/{name}"
