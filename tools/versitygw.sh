#!/usr/bin/env bash
# Prints the path of a versitygw, an S3 server: $VERSITYGW, else the one pinned here, built with Go into the user's cache at
# the first call (minutes). Its module is checked by its hash, and pins all that it needs itself.
set -euo pipefail
version=1.8.0
sum=h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc=
fail() { echo "$1" >&2; exit 1; }
if [ -n "${VERSITYGW:-}" ]; then
  command -v "$VERSITYGW" || fail "VERSITYGW names no program: $VERSITYGW."
  exit
fi
cached=${XDG_CACHE_HOME:-$HOME/.cache}/headrace/versitygw-$version
if [ ! -x "$cached/versitygw" ]; then
  mkdir -p "$cached"
  exec 9>"$cached/lock" && flock 9  # who comes meanwhile waits, and finds it
fi
if [ ! -x "$cached/versitygw" ]; then
  export GOTOOLCHAIN=local GOFLAGS="-mod=readonly -buildvcs=false" GOWORK=off
  command -v go >/dev/null || fail "Tests of snapshots on S3 need Go 1.25 or later, to build the server versitygw."
  told=$(cd / && GOFLAGS= go mod download -json "github.com/versity/versitygw@v$version") ||
    fail "versitygw $version could not be downloaded as a Go module: $told"
  field() { sed -n "s/^.*\"$1\": \"\(.*\)\".*$/\1/p" <<<"$told"; }
  [ "$(field Sum)" = "$sum" ] || fail "The module of versitygw $version is not the one that is pinned: $(field Sum)."
  echo "Building versitygw $version into $cached (once, minutes) ..." >&2
  # Not optimised: it serves a few tests, and takes a third less to build.
  (cd "$(field Dir)" && go build -trimpath -gcflags all="-N -l" -ldflags "-s -w" -o "$cached/versitygw.$$" ./cmd/versitygw)
  mv "$cached/versitygw.$$" "$cached/versitygw"  # whole or not at all
fi
echo "$cached/versitygw"
