#!/usr/bin/env bash
# Builds the images, one per Dockerfile in deploy/docker, and prints their sizes. Any docker will do; nothing is pushed.
#   TAG=0.1.0                the tag
#   ONLY="broker admin"      some of them
#   REGISTRY=host/path       before headrace/NAME
#   REF=<commit>             of that commit instead of the work tree; where it has no Dockerfiles, with this tree's
#   BASE=python:3.11-slim@sha256:...   what they are built on; the tag alone is another image next month
#   RELEASE=1                for others: BASE has a digest, the work tree or REF is a commit, and nothing locked is too old
#   SIZES=0                  without sizes, which take a minute
#   DOCKER=docker            the command
set -euo pipefail
cd "$(dirname "$0")/.."
docker=${DOCKER:-docker}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' services/broker/pyproject.toml)
tag=${TAG:-$version}
prefix=${REGISTRY:+$REGISTRY/}headrace
base=${BASE:+--build-arg=BASE=$BASE}
export DOCKER_BUILDKIT=1
if [ "${RELEASE:-0}" = 1 ]; then
  [[ ${BASE:-} =~ @sha256:[0-9a-f]{64}$ ]] || {
    echo "RELEASE=1 takes BASE with its digest: \`docker buildx imagetools inspect python:3.11-slim\` says it," >&2
    echo "then BASE=python:3.11-slim@sha256:..." >&2
    exit 2
  }
  if [ -z "${REF:-}" ] && [ -n "$(git status --porcelain)" ]; then
    echo "RELEASE=1 takes a tree as it is committed; commit, or give REF." >&2
    exit 2
  fi
  python3 tools/dates.py check
fi

context=.
if [ -n "${REF:-}" ]; then
  context=$(mktemp -d)
  trap 'rm -rf "$context"' EXIT
  git archive "$REF" | tar -x -C "$context"
  if [ ! -d "$context/deploy/docker" ]; then
    # What it is built with: the lock is read as it is now, and so are the members' lists of what they need.
    cp -r --parents deploy/docker .dockerignore requirements*.lock requirements-bootstrap.txt tools/locked.py tools/sbom.py \
      libs/*/pyproject.toml services/*/pyproject.toml spark-jobs/pyproject.toml "$context"
  fi
  revision=$(git rev-parse "$REF^{commit}")
else
  revision=$(git describe --always --abbrev=40 --dirty --exclude '*' 2>/dev/null || echo unknown)
fi

if [ -n "${ONLY:-}" ]; then
  names=$ONLY
else
  names=$(cd "$context/deploy/docker" && for file in *.Dockerfile; do echo "${file%.Dockerfile}"; done)
fi
for name in $names; do
  file=$context/deploy/docker/$name.Dockerfile
  [ -e "$file" ] || { echo "There is no deploy/docker/$name.Dockerfile." >&2; exit 2; }
  echo "building $prefix/$name:$tag" >&2
  $docker build ${QUIET:+--quiet} --file "$file" --tag "$prefix/$name:$tag" \
    ${base:+"$base"} --build-arg "VERSION=$version" --build-arg "REVISION=$revision" "$context"
done

[ "${SIZES:-1}" = 0 ] && exit
printf '%-40s %12s %12s\n' image compressed unpacked
for name in $names; do
  image=$prefix/$name:$tag
  unpacked=$($docker image inspect --format '{{.Size}}' "$image")
  compressed=$($docker save "$image" | gzip -6 | wc -c)
  awk -v image="$image" -v c="$compressed" -v u="$unpacked" \
    'BEGIN { printf "%-40s %9.0f MB %9.0f MB\n", image, c / 1e6, u / 1e6 }'
done
