"""Sessions: lint, types, imports, tests, docs, bench, interop. Each installs what it needs into its own environment."""

from __future__ import annotations

import nox

nox.options.sessions = ["lint", "types", "imports", "tests", "docs"]
nox.options.reuse_existing_virtualenvs = True

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
    session.run("pytest", "-n", "2", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation's commands and links are true."""
    session.install("-e", ".[dev]")
    session.run("pytest", "tests/test_docs.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """The short form of the benchmarks."""
    session.install("-e", ".[bench]")
    session.run("python", "scripts/bench_gateway.py", "--short", *session.posargs)


@nox.session
def interop(session: nox.Session) -> None:
    """Against a real headless vLLM engine and vLLM's own API server (CPU builds, about ten minutes)."""
    session.install("-e", ".[dev,interop]")
    engine = session.virtualenv.location + "-engine"
    session.run("python", "scripts/interop_env.py", engine)
    session.run(
        "pytest", "tests/interop", "-m", "interop", *session.posargs,
        env={"SMG_TRIO_INTEROP_PYTHON": f"{engine}/bin/python"},
    )  # fmt: skip
