#!/usr/bin/env bash
# Says where Chromium is, for `make browser`; installs it with apt where there is none and this is root.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/progress.sh
find_browser() { command -v chromium || command -v google-chrome-stable || command -v google-chrome; }
if ! find_browser >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  progress "Looking for Chromium" apt-get update -qq >&2
  progress "Installing chromium (400 MB)" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends chromium >&2 || true
fi
find_browser || { echo "make browser needs Chromium: install the package chromium, or Google Chrome." >&2; exit 1; }
