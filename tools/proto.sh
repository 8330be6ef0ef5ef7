#!/usr/bin/env bash
# Generates headrace_proto from proto/, the comments for REST's document, the SDK's calls for threads from their asyncio
# twins, and what tells of settings from their declarations. With --check: fails if the committed files differ.
set -euo pipefail
cd "$(dirname "$0")/.."
out=libs/common/src
[ "${1:-}" = "--check" ] && out=$(mktemp -d) && trap 'rm -rf "$out"' EXIT
PATH="$PWD/.venv/bin:$PATH" .venv/bin/python -m grpc_tools.protoc -Iproto \
  --python_out="$out" --mypy_out=quiet:"$out" --grpc_python_out="$out" --mypy_grpc_out=quiet:"$out" \
  proto/headrace_proto/v1/*.proto
if [ "${1:-}" = "--check" ]; then
  if ! diff -r -x '__init__.py' -x '__pycache__' -x py.typed "$out/headrace_proto" libs/common/src/headrace_proto; then
    echo "The generated code differs from proto/. Run 'make proto' and commit the result." >&2
    exit 1
  fi
fi
.venv/bin/python tools/proto_comments.py "$@"
.venv/bin/python tools/sync_faces.py "$@"
.venv/bin/python tools/settings.py "$@"
