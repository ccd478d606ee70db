#!/usr/bin/env bash
# Runs a test written in Python, in a virtual environment of its own, made on first use:
#
#   python_test.sh VENV_DIR TEST.py ARGUMENTS...
#
# The environment has what tests/requirements.txt names, or the file beside it that
# KVCAKE_REQUIREMENTS does; PyPI is asked for it once.
set -euo pipefail
venv=$1
shift
requirements=${KVCAKE_REQUIREMENTS:-requirements.txt}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$(dirname "$venv")"
exec 9> "$venv.lock"
flock 9
if ! cmp -s "$here/$requirements" "$venv/requirements.txt"; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/$requirements"
  cp "$here/$requirements" "$venv/requirements.txt"
fi
exec 9>&-
exec "$venv/bin/python" "$@"
