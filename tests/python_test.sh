#!/usr/bin/env bash
# Runs a test written in Python, in a virtual environment of its own, made on first use:
#
#   python_test.sh VENV_DIR TEST.py ARGUMENTS...
#
# The environment has what tests/requirements.txt names; PyPI is asked for it once.
set -euo pipefail
venv=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$(dirname "$venv")"
exec 9> "$venv.lock"
flock 9
if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/requirements.txt"
  cp "$here/requirements.txt" "$venv/requirements.txt"
fi
exec 9>&-
exec "$venv/bin/python" "$@"
