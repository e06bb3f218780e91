#!/usr/bin/env bash
# Sets up .venv beside the project if need be and runs the demo. Needs Python >= 3.11, nothing else.
# Arguments go to `python -m smg_trio demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=plain
source scripts/setup.sh
exec .venv/bin/python -m smg_trio demo "$@"
