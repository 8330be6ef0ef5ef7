"""The first ``make run``: something is said at once and while one waits, and records come before Spark is fetched."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import threading
from pathlib import Path

import pytest
from rich.console import Console

from headrace_cli.commands import demo
from headrace_cli.demo.waiting import Waiting
from headrace_cli.exits import CommandFailed

ROOT = Path(__file__).parents[3]
SLOW = 'source tools/progress.sh; progress "Fetching it" sleep 3'


class Heard(io.StringIO):
    """A stream that says when it was written to."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        done = super().write(text)
        self.written.set()
        return done


def test_the_first_line_comes_before_setup() -> None:
    ours = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE")
    }  # a make above us talks too
    said = subprocess.run(["make", "-n", "run"], cwd=ROOT, env=ours, capture_output=True, text=True, check=True)
    lines = said.stdout.splitlines()
    assert lines[0].startswith('echo "Headrace:')
    demo_at = next(at for at, line in enumerate(lines) if "headrace demo" in line)
    assert not any("setup_spark" in line for line in lines[:demo_at]), "records first"


def test_a_step_that_takes_long_counts_its_seconds() -> None:
    done = subprocess.run(["bash", "-euc", SLOW], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[0].startswith("Fetching it ... ")
    assert "Fetching it: done after" in done.stderr
    quick = subprocess.run(
        ["bash", "-euc", SLOW.replace("sleep 3", "true")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert quick.stderr == ""


def test_a_step_that_fails_fails() -> None:
    failing = SLOW.replace("sleep 3", "false") + " || exit 7"
    assert subprocess.run(["bash", "-euc", failing], cwd=ROOT, check=False).returncode == 7


def test_at_a_terminal_one_line_counts() -> None:
    master, slave = pty.openpty()
    subprocess.run(["bash", "-euc", SLOW], cwd=ROOT, stderr=slave, check=True)
    os.close(slave)
    said = os.read(master, 65536)
    os.close(master)
    assert b"\rFetching it ... 2 s" in said


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_waited_for_is_told_until_it_is_over(terminal: bool) -> None:
    heard = Heard()
    with Waiting(Console(file=heard, force_terminal=terminal), "Spark starts", tell_seconds=0):
        assert heard.written.wait(30)
    assert "Spark starts ..." in heard.getvalue()
    silent = Heard()
    with Waiting(Console(file=silent), "quick", tell_seconds=60):
        pass
    assert silent.getvalue() == ""


def test_spark_is_fetched_once_the_records_were_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = tmp_path / "fetched"
    fetch = tmp_path / "get"
    fetch.write_text(f"#!/bin/sh\ntouch {mark}\n")
    fetch.chmod(0o755)

    def find_spark(_: object) -> str:
        if not mark.exists():
            raise CommandFailed("Spark is not installed beside this command")
        return "a Spark"

    monkeypatch.setattr("headrace_cli.spark.submit.find_spark", find_spark)
    monkeypatch.setenv("HEADRACE_DEMO_GET_SPARK", str(fetch))
    later = demo._spark_later(None)
    assert not mark.exists()
    assert later() == "a Spark"
    mark.unlink()
    assert demo._spark_later(False)() == ""
    assert not mark.exists()
    monkeypatch.delenv("HEADRACE_DEMO_GET_SPARK")
    said = demo._spark_later(None)()
    assert isinstance(said, str)
    assert "make run-spark" in said
