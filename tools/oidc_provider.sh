#!/usr/bin/env bash
# Prints the directory with the packages of the certified OIDC provider, for `make e2e-oidc`: those of
# tools/oidc_provider/package-lock.json, with their hashes, installed into the user's cache at the first call.
set -euo pipefail
cd "$(dirname "$0")/oidc_provider"
fail() { echo "$1" >&2; exit 1; }
command -v npm >/dev/null && command -v node >/dev/null || fail "make e2e-oidc needs Node 20 or newer with npm: install nodejs and npm."
lock=$(sha256sum package-lock.json | cut -c1-12)
cached=${XDG_CACHE_HOME:-$HOME/.cache}/headrace/oidc-provider-$lock
mkdir -p "$cached"
exec 9>"$cached/lock" && flock 9  # who comes meanwhile waits, and finds it
if [ ! -e "$cached/complete" ]; then
  cp package.json package-lock.json "$cached/"
  (cd "$cached" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2) || fail "the packages could not be installed"
  touch "$cached/complete"
fi
echo "$cached"
