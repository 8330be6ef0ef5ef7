#!/usr/bin/env bash
# Resolves all members into requirements.lock, and what Spark needs on top into requirements-spark.lock: exact versions
# and hashes, no download addresses.
set -euo pipefail
cd "$(dirname "$0")/.."
members=(pyproject.toml libs/*/pyproject.toml services/*/pyproject.toml spark-jobs/pyproject.toml)
wanted=$(mktemp -d)
trap 'rm -rf "$wanted"' EXIT
lock() {
  local target=$1
  shift
  .venv/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
    --no-emit-index-url --no-emit-find-links "$@" -o "$target" --quiet
}
# The members themselves are installed from the tree, never from a registry.
.venv/bin/python tools/requirements.py "" "${members[@]}" > "$wanted/all"
.venv/bin/python tools/requirements.py spark "${members[@]}" > "$wanted/spark"
lock requirements.lock "$@" "$wanted/all"
lock requirements-spark.lock "$@" -c requirements.lock "$wanted/spark"
