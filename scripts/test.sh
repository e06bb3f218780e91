#!/usr/bin/env bash
# Sets up .venv beside the project if need be and runs the whole test suite. Needs Python >= 3.11, nothing else.
# Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=dev
source scripts/setup.sh
exec .venv/bin/python -m pytest -n 2 "$@"
