#!/bin/sh
# In a builder: makes a wheel of each directory given on standard input, and installs them below DIRECTORY, as the
# environment /opt/headrace would have them.
#   members.sh DIRECTORY < directories
set -eu
target=$1
while read -r directory; do
  /opt/installer/bin/uv build --quiet --wheel --offline --no-build-isolation --python /opt/installer/bin/python \
    --out-dir /build/wheels "/src/$directory"
done
/opt/installer/bin/uv pip install --quiet --no-cache --offline --no-deps --python /opt/headrace/bin/python \
  --prefix "$target" /build/wheels/*.whl
/opt/headrace/bin/python -m compileall -q --invalidation-mode unchecked-hash "$target/lib"
