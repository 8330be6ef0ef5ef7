"""Failpoints: armed by a file, hit once, by one process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace_common.runtime.failpoints import DIRECTORY_VARIABLE

PASSES = "from headrace_common.runtime.failpoints import failpoint; failpoint('here'); print('passed')"


def run(directory: Path | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != DIRECTORY_VARIABLE}
    if directory is not None:
        environment[DIRECTORY_VARIABLE] = str(directory)
    return subprocess.run(
        [sys.executable, "-c", PASSES], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def test_without_a_directory_nothing_happens() -> None:
    assert run(None).stdout == "passed\n"


def test_an_armed_point_kills_once(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("kill\n")
    killed = run(tmp_path)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    assert (tmp_path / "here.hit").read_text().isdigit()
    assert run(tmp_path).stdout == "passed\n", "the file was taken away"


def test_other_points_pass(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("kill")
    assert run(tmp_path).stdout == "passed\n"
    assert (tmp_path / "there").exists()


def test_a_stopped_process_goes_on(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("stop")
    environment = {**os.environ, DIRECTORY_VARIABLE: str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", PASSES], env=environment, stdout=subprocess.PIPE, text=True) as child:
        try:
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
        finally:
            child.send_signal(signal.SIGCONT)
        assert child.communicate(timeout=30)[0] == "passed\n"


def test_an_unknown_action_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("explode")
    assert "KeyError" in run(tmp_path).stderr


@pytest.mark.parametrize("name", ["kill", "stop"])
def test_the_pid_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "here").write_text(name)
    environment = {**os.environ, DIRECTORY_VARIABLE: str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", PASSES], env=environment, stdout=subprocess.PIPE) as child:
        try:
            os.waitpid(child.pid, os.WUNTRACED)
            assert int((tmp_path / "here.hit").read_text()) == child.pid
        finally:
            child.kill()


def test_whoever_sees_the_hit_can_read_who_it_was(tmp_path: Path) -> None:
    """Every file that was ever there under that name had the process id in it: looked at before each system call."""
    (tmp_path / "here").write_text("kill")
    watched = """
import sys
from pathlib import Path
seen = Path(sys.argv[1])
hit = seen / "here.hit"
def look(event, args):
    if event in ("open", "os.rename", "os.kill") and hit.exists() and not reading:
        reading.append(1)
        print(repr(hit.read_text()), flush=True)
        reading.clear()
reading = []
sys.addaudithook(look)
"""
    environment = {**os.environ, DIRECTORY_VARIABLE: str(tmp_path)}
    command = [sys.executable, "-c", watched + PASSES, str(tmp_path)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False).stdout
    assert set(said.splitlines()) == {repr((tmp_path / "here.hit").read_text())}


def test_a_point_that_another_process_takes_while_this_one_looks(tmp_path: Path) -> None:
    """What the other one writes into its file is not read as what is to be done."""
    (tmp_path / "here").write_text("kill")
    other = """
import os, sys
def take(event, args):
    if event == "open" and args[0] == sys.argv[1]:
        os.truncate(sys.argv[1], 0)
sys.addaudithook(take)
"""
    environment = {**os.environ, DIRECTORY_VARIABLE: str(tmp_path)}
    command = [sys.executable, "-c", other + PASSES, str(tmp_path / "here")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
