"""A Singer tap as its authors publish it: ``tap-rest-api-msdk``, in an environment of its own."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

LOCK: Final = Path(__file__).parents[3] / "requirements-taps.lock"
_UV: Final = (sys.executable, "-m", "uv")
_STEP_S: Final = 300.0


def rest_tap() -> Path:
    """
    The tap's program. The first call installs what ``requirements-taps.lock`` names into the user's cache, once for all
    runs of tests. An installation that did not come to its end is made anew.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    cache.mkdir(parents=True, exist_ok=True)
    basis = [LOCK.read_bytes(), sys.version.encode(), sys.base_prefix.encode()]
    environment = cache / f"taps-{hashlib.sha256(b' '.join(basis)).hexdigest()[:12]}"
    complete = environment / "complete"
    with environment.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _install(environment, lock.fileno())
            complete.touch()
    return environment / "bin" / "tap-rest-api-msdk"


def _install(environment: Path, lock: int) -> None:
    _uv(lock, "venv", "--clear", "--python", sys.executable, str(environment))
    options = ["--python", str(environment / "bin" / "python"), "--compile-bytecode", "--require-hashes"]
    # What has no wheel is built with the setuptools of the lock.
    _uv(lock, "pip", "install", *options, "--build-constraints", str(LOCK), "-r", str(LOCK))


def _uv(lock: int, *arguments: str) -> None:
    """It holds the lock itself: when this process is killed, nobody else begins before it has ended."""
    command = [*_UV, *arguments, "--quiet"]
    process = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=_STEP_S, check=False, pass_fds=[lock])
    if process.returncode:
        pytest.fail(
            f"The Singer tap of {LOCK.name} was not installed. uv takes it from the package index that `make setup` "
            f"uses; run the test again when that can be reached. uv said:\n{process.stderr}",
            pytrace=False,
        )
