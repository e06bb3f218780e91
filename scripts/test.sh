#!/usr/bin/env bash
# Sets up .venv beside the project if need be and runs the whole test suite. Needs Python >= 3.11, nothing else.
# Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=dev
source scripts/setup.sh
# Laws try the same examples every time, so that a run tells of the change it tests; `nox -s fuzz` draws new ones.
exec .venv/bin/python -m pytest -n 2 --hypothesis-profile=ci "$@"
