#!/bin/sh
# In a builder: installs what FILE names into the virtual environment /opt/headrace (made where it is not), or with
# --prefix beside it. Hashes are checked, nothing is compiled; what no service uses is left out (trim.py).
#   dependencies.sh FILE [--prefix DIRECTORY]
set -eu
requirements=$1
shift
if [ ! -x /opt/installer/bin/uv ]; then
  python -m venv /opt/installer
  /opt/installer/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --require-hashes \
    -r /build/requirements-bootstrap.txt
fi
[ -x /opt/headrace/bin/python ] || python -m venv --without-pip /opt/headrace
target=${2:-/opt/headrace}
if grep -q '==' "$requirements"; then
  /opt/installer/bin/uv pip install --quiet --no-cache --python /opt/headrace/bin/python --no-deps --require-hashes \
    --only-binary :all: "$@" -r "$requirements"
fi
python /build/trim.py "$target"
# The image does not change: its bytecode is never compared with the source.
[ ! -d "$target/lib" ] || /opt/headrace/bin/python -m compileall -q --invalidation-mode unchecked-hash "$target/lib"
