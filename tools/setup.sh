#!/usr/bin/env bash
# Makes .venv with Python 3.11, installs what requirements.lock names (hashes checked), then the members themselves.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/progress.sh
python=""
for candidate in "${HEADRACE_PYTHON:-}" python3.11 python3; do
  [ -n "$candidate" ] && command -v "$candidate" >/dev/null || continue
  if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' 2>/dev/null; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
  echo "Python 3.11 or newer is needed and was not found; install it or set HEADRACE_PYTHON to its path." >&2
  exit 1
fi
if [ ! -x .venv/bin/python ]; then
  progress "Making .venv" "$python" -m venv .venv || { echo "venv failed; on Debian install python3.11-venv." >&2; exit 1; }
fi
export VIRTUAL_ENV=$PWD/.venv
progress "Installing the installer" .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bootstrap.txt
# Where Spark was set up (tools/setup_spark.sh) it stays; it is built with the setuptools that is there.
locks=(requirements.lock)
[ -e .venv/.headrace-spark ] && locks+=(requirements-spark.lock --no-build-isolation)
# Compiled here once: a cluster is a dozen processes, and each would compile what it imports.
progress "Installing what requirements.lock names into .venv" .venv/bin/uv pip sync --quiet --require-hashes --compile-bytecode "${locks[@]}"
editable=()
for member in "$@"; do editable+=(-e "$member"); done
progress "Installing the packages of this tree" .venv/bin/uv pip install --quiet --no-deps --no-build-isolation "${editable[@]}"
# The members' sources too: where Python writes no bytecode (as in containers) each process would compile 200 files.
.venv/bin/python -m compileall -q libs/*/src services/*/src spark-jobs/src
# What the machine must have besides: a package by its command, and who needs it.
machine() {
  local found=$1 packages=$2 what=$3
  [ -n "$found" ] && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2086  # several packages
    progress "Installing $packages" env DEBIAN_FRONTEND=noninteractive PACKAGES="$packages" sh -c \
      'apt-get update -qq && apt-get install -y -qq --no-install-recommends $PACKAGES >/dev/null'
  else
    echo "$what: install $packages." >&2
  fi
}
machine "$(command -v cc || true)" "gcc libc6-dev" "A C compiler is needed by the disk-fault tests (make chaos)"
machine "$(command -v initdb || ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null || true)" postgresql \
  "PostgreSQL is needed by the tests of the recipes for databases"
machine "$(command -v mariadbd || ls /usr/sbin/mariadbd 2>/dev/null || true)" mariadb-server \
  "MariaDB is needed by the tests of connectors for databases"
