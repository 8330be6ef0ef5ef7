#!/usr/bin/env bash
# Spark for the tests, the jobs and the demo: pyspark into .venv, and a Java that is new enough on the machine.
#   --packages  pyspark alone: types are checked without a Java
#   --install   both; Java with apt where there is none and this is root, else its package is named
#   (none)      pyspark where there is a Java; nothing, silently, where there is none
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/progress.sh
stamp=.venv/.headrace-spark
java() { .venv/bin/python -m headrace_cli.spark.java >/dev/null; }
# After `make setup` did something its stamp is newer than ours, and pyspark is looked for again.
packages() {
  [ "$stamp" -nt .venv/.headrace-setup ] && [ "$stamp" -nt requirements-spark.lock ] && return
  VIRTUAL_ENV=$PWD/.venv progress "Installing pyspark into .venv (460 MB)" .venv/bin/uv pip install --quiet --no-deps --no-build-isolation --require-hashes \
    --compile-bytecode -r requirements-spark.lock && touch "$stamp"
}
case "${1:-}" in
  --packages) packages ;;
  --install)
    if ! java; then
      if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        progress "Looking for a Java 17" apt-get update -qq
        for package in openjdk-17-jre-headless default-jre-headless; do
          progress "Installing $package" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$package" >/dev/null && break
        done
      fi
      java || { echo "Spark needs Java 17 or newer: install openjdk-17-jre-headless, or set JAVA_HOME." >&2; exit 1; }
    fi
    packages ;;
  "")
    if java; then packages || echo "pyspark could not be installed; \`make setup-spark\` tries again." >&2; fi ;;
  *) echo "usage: $0 [--packages | --install]" >&2; exit 2 ;;
esac
