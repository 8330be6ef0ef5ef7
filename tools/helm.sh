#!/usr/bin/env bash
# Prints the path of a usable helm: $HELM, else one of 3.16 or later on the PATH, else the one pinned here, built with Go
# into the user's cache at the first call (minutes). Its module is checked by its hash, and pins all that it needs itself.
set -euo pipefail
version=3.19.5
sum=h1:l8zDGBhPaF2z5pTR5ASku/yZwi0qZrWthWMzvf1ZruE=
fail() { echo "$1" >&2; exit 1; }
recent() {
  local version
  version=$("$1" version --template '{{.Version}}' 2>/dev/null) || return 1
  [[ $version =~ ^v?([0-9]+)\.([0-9]+) ]] && (( BASH_REMATCH[1] > 3 || (BASH_REMATCH[1] == 3 && BASH_REMATCH[2] >= 16) ))
}
if [ -n "${HELM:-}" ]; then
  found=$(command -v "$HELM") || fail "HELM names no program: $HELM."
  recent "$found" || fail "HELM names a program that is no helm of 3.16 or later: $HELM."
  echo "$found"
  exit
fi
if found=$(command -v helm) && recent "$found"; then echo "$found"; exit; fi
cached=${XDG_CACHE_HOME:-$HOME/.cache}/headrace/helm-$version
if [ ! -x "$cached/helm" ]; then
  mkdir -p "$cached"
  exec 9>"$cached/lock" && flock 9  # who comes meanwhile waits, and finds it
fi
if [ ! -x "$cached/helm" ]; then
  export GOTOOLCHAIN=local GOFLAGS="-mod=readonly -buildvcs=false" GOWORK=off
  command -v go >/dev/null ||
    fail "The chart's checks need Helm: install helm 3.16 or later, or Go 1.24 or later so that it can be built here."
  told=$(cd / && GOFLAGS= go mod download -json "helm.sh/helm/v3@v$version") ||
    fail "Helm $version could not be downloaded as a Go module: $told"
  field() { sed -n "s/^.*\"$1\": \"\(.*\)\".*$/\1/p" <<<"$told"; }
  [ "$(field Sum)" = "$sum" ] || fail "The module of helm $version is not the one that is pinned: $(field Sum)."
  source=$(field Dir)
  kubernetes=$(awk '$1 == "k8s.io/client-go" { split($2, part, "."); print part[2] }' "$source/go.mod")
  echo "Building helm $version into $cached (once, minutes) ..." >&2
  # What Helm's own release build sets; a chart's kubeVersion is compared with the latter.
  flags="-s -w -X helm.sh/helm/v3/internal/version.version=v$version"
  for package in pkg/chartutil pkg/lint/rules; do
    flags+=" -X helm.sh/helm/v3/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/$package.k8sVersionMinor=$kubernetes"
  done
  (cd "$source" && go build -ldflags "$flags" -o "$cached/helm.$$" ./cmd/helm)
  mv "$cached/helm.$$" "$cached/helm"  # whole or not at all
fi
echo "$cached/helm"
