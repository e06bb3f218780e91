# Sourced: makes .venv with this project installed in it, once per state of pyproject.toml and set of extras ($extras).
find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "Python 3.11 or newer is needed; set PYTHON to name it." >&2
    return 1
}

stamp=".venv/.installed-${extras:=plain}"
if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    [ -x .venv/bin/python ] || "$(find_python)" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".$([ "$extras" = plain ] || echo "[$extras]")"
    touch "$stamp"
fi
