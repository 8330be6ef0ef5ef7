#!/usr/bin/env bash
# Resolves all members into requirements.lock, what Spark needs on top into requirements-spark.lock, and the Singer tap of
# the tests, which has an environment of its own, into requirements-taps.lock: exact versions and hashes, no download
# addresses. When each version was published goes into requirements.dates, where the index tells.
set -euo pipefail
cd "$(dirname "$0")/.."
members=(pyproject.toml libs/*/pyproject.toml services/*/pyproject.toml spark-jobs/pyproject.toml)
wanted=$(mktemp -d)
trap 'rm -rf "$wanted"' EXIT
lock() {
  local target=$1 wanted=$2
  shift 2
  # From standard input: a file's path would come into the lock.
  .venv/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header \
    --no-emit-index-url --no-emit-find-links "$@" -o "$target" --quiet - < "$wanted"
}
# The members themselves are installed from the tree, never from a registry.
.venv/bin/python tools/requirements.py "" "${members[@]}" > "$wanted/all"
.venv/bin/python tools/requirements.py spark "${members[@]}" > "$wanted/spark"
# A package that the tap needs imports pkg_resources, which setuptools 82 has removed.
printf '%s\n' tap-rest-api-msdk 'setuptools<82' > "$wanted/taps"
# It says what needs what, so that tools/locked.py can take a part of it for an image.
lock requirements.lock "$wanted/all" "$@" --annotation-style split
lock requirements-spark.lock "$wanted/spark" "$@" --no-annotate -c requirements.lock
lock requirements-taps.lock "$wanted/taps" "$@" --no-annotate
# uv's own form of a lock has the times; it is made of what was just locked.
{
  printf '[project]\nname = "locked"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = [\n'
  sed -nE 's/^([a-z0-9][^\\]*[^\\ ]) *\\?$/  "\1",/p' requirements.lock
  printf ']\n'
} > "$wanted/pyproject.toml"
.venv/bin/uv lock --quiet --directory "$wanted"
.venv/bin/python tools/dates.py write "$wanted/uv.lock" > "$wanted/dates"
cat "$wanted/dates" > requirements.dates
