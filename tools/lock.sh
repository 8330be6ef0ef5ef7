#!/usr/bin/env bash
# Resolves all members into requirements.lock: exact versions and hashes, no download addresses.
set -euo pipefail
cd "$(dirname "$0")/.."
members=(pyproject.toml libs/*/pyproject.toml services/*/pyproject.toml)
own=$(mktemp)
trap 'rm -f "$own"' EXIT
# The members themselves are installed from the tree, never from a registry.
.venv/bin/python tools/requirements.py "${members[@]}" > "$own"
.venv/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
  --no-emit-index-url --no-emit-find-links "$@" -o requirements.lock "$own" --quiet
