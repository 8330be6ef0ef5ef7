#!/usr/bin/env bash
# Builds what the scenario `connect` needs beside our images: a PostgreSQL, and an environment with a connector of its own.
#   TAG=0.1.0         of headrace/connect, which the environment is made from, and of what is built
#   REGISTRY, DOCKER  as in tools/images.sh
set -euo pipefail
cd "$(dirname "$0")"
: "${TAG:?of headrace/connect}"
prefix=${REGISTRY:+$REGISTRY/}headrace
export DOCKER_BUILDKIT=1
for name in postgres tickets; do
  ${DOCKER:-docker} build ${QUIET:+--quiet} --build-arg "FROM=$prefix/connect:$TAG" --tag "$prefix/test-$name:$TAG" "$name"
done
