"""A disk that fails or is full: the store says so once, writes nothing more, and a restart finds what was acked."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from storage_processes import CHILD, WritingChild, assert_nothing_lost, inspect

SHIM = Path(__file__).with_name("fsync_shim.c")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "this test compiles a C file: install a C compiler (apt-get install gcc)"
    library = tmp_path_factory.mktemp("shim") / "fsync_shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"], check=True, timeout=60)
    return library


@pytest.mark.parametrize(("policy", "broken"), [("group", ".log"), ("os", ".blob"), ("group", "evidence")])
def test_nothing_is_acknowledged_after_a_failed_sync(tmp_path: Path, shim: Path, policy: str, broken: str) -> None:
    flag = tmp_path / "disk is broken"
    env = {"LD_PRELOAD": str(shim), "HEADRACE_SHIM_FLAG": str(flag), "HEADRACE_SHIM_PATH": broken}
    child = WritingChild(tmp_path / "data", policy, 1, env)
    child.wait_for_acks(60)
    flag.touch()
    acked = child.wait()
    assert child.process.returncode == 3, child.stderr()
    assert child.last_line.startswith("failed: ")
    assert "IO error" in child.last_line or "Input/output error" in child.last_line
    flag.unlink()
    assert_nothing_lost(inspect(tmp_path / "data"), acked)


FILL = """
import asyncio, resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_file_that_cannot_grow_fails_the_store_with_a_clear_text(tmp_path: Path) -> None:
    """The file-size limit gives the errors of a full disk without one; ``tests/chaos/storage`` fills a real one."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    run = subprocess.run(
        [sys.executable, "-c", FILL, str(CHILD), "write", str(tmp_path / "data"), "group", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=dict(os.environ),
    )
    assert run.returncode == 3, run.stderr
    lines = run.stdout.splitlines()
    assert "the disk is full; free space, then start the broker again" in lines[-1]
    acked = {int(words[1]): int(words[2]) for words in map(str.split, lines) if words[0] == "a"}
    assert_nothing_lost(inspect(tmp_path / "data"), acked)
