"""
A reader who does what a page says: every ``sh`` and ``python`` block, in the page's order, in one directory, with one
Python. What is left out is named with its reason, and what has no end is ended as a reader would: with Ctrl+C.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Final

from headrace.testing import TestCluster
from headrace_cli.local import LocalCluster
from headrace_cli.local.ports import PortClaims

from .session import ANSWER

ROOT: Final = Path(__file__).parents[3]
SESSION: Final = Path(__file__).with_name("session.py")
BLOCK_TIMEOUT_S: Final = 120
FENCE: Final = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    """Of its first line."""
    kind: str
    source: str

    @property
    def place(self) -> str:
        """As editors take it."""
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """All of a page that could be typed."""
    text = (ROOT / page).read_text()
    return [Block(page, text.count("\n", 0, found.start(2)) + 1, found[1], found[2]) for found in FENCE.finditer(text)]


@dataclass
class Reader:
    """
    One reader, and the directory that the pages are tried in.

    Args:
        left_out: part of a block -> why it is not run. One that fits no block is a mistake in this list.
        endless: part of a block that never ends -> whether it has done by now what the page says; then Ctrl+C.
    """

    directory: Path
    left_out: Mapping[str, str] = field(default_factory=dict)
    endless: Mapping[str, Callable[[], bool]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    said: str = ""
    """Everything that was printed."""

    def __post_init__(self) -> None:
        """A directory as after the clone and ``make setup``, and ports of its own for ``headrace up``."""
        commands = self.directory / ".venv" / "bin"
        commands.mkdir(parents=True)
        claims = PortClaims(str(self.directory))
        port = claims.claim_free()
        claims.close()
        up = f'[ "$1" = up ] && set -- "$@" --flush os --port broker-1={port}\n'
        (commands / "headrace").write_text(f'#!/bin/sh\n{up}exec "{sys.executable}" -m headrace_cli "$@"\n')
        (commands / "headrace").chmod(0o755)
        (commands / "activate").write_text("# the commands are on the path already\n")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
            "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HEADRACE_CONFIG": str(self.directory / "config.toml"),
            "PYTHONUNBUFFERED": "1",
            **self.environment,
        }

    def read(self, page: str) -> None:
        """
        Run the page.

        Raises:
            AssertionError: a block failed, or one did not end; with page and line.
        """
        blocks = blocks_of(page)
        assert blocks, f"{page} has blocks"
        for part in [*self.left_out, *self.endless]:
            assert any(part in block.source for block in blocks), f"{page} has no block with {part!r} any more"
        with self._python() as python:
            for block in blocks:
                if any(part in block.source for part in self.left_out):
                    continue
                if block.kind == "sh":
                    self._shell(block)
                elif "def test_" in block.source:
                    self._pytest(block)
                else:
                    self._paste(block, python)

    def paste(self, page: str, part: str) -> str:
        """Run one Python block of a page, the first with ``part`` in it; what it printed."""
        block = next(block for block in blocks_of(page) if part in block.source)
        before = len(self.said)
        with self._python() as python:
            self._paste(block, python)
        return self.said[before:]

    def shell(self, words: str) -> None:
        """Type one line that is on no page."""
        self._shell(Block("before the page", 1, "sh", words))

    @contextmanager
    def started(self, words: str) -> Iterator[None]:
        """Type one line of what has no end, and Ctrl+C after the block."""
        running = subprocess.Popen(["bash", "-c", f"exec {words}"], cwd=self.directory, env=self.environment)
        try:
            yield
        finally:
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 0

    def _shell(self, block: Block) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.source],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BLOCK_TIMEOUT_S,
            check=False,
        )
        self.said += done.stdout
        assert done.returncode == 0, f"{block.place} failed:\n{block.source}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"{block.place}: {done.stderr}"

    def _pytest(self, block: Block) -> None:
        (self.directory / "test_page.py").write_text(block.source)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "test_page.py"],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=BLOCK_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{block.place} failed:\n{done.stdout}{done.stderr}"

    @contextmanager
    def _python(self) -> Iterator[_Python]:
        process = subprocess.Popen(
            [sys.executable, str(SESSION)],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield _Python(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _paste(self, block: Block, python: _Python) -> None:
        done = next((done for part, done in self.endless.items() if part in block.source), None)
        outcome, said = python.run(block, done)
        self.said += said
        expected = "ended" if done is None else "interrupted"
        assert outcome == expected, f"{block.place} {outcome}:\n{block.source}\n{said}"


class _Python:
    """The reader's Python."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(f"{ANSWER}gone")

    def run(self, block: Block, done: Callable[[], bool] | None) -> tuple[str, str]:
        """What became of it, and what it printed. With ``done`` it gets a Ctrl+C once that is true."""
        assert self._process.stdin is not None
        request = {"page": block.page, "line": block.line, "source": block.source}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        said, waited_s = "", 0.0
        while waited_s < BLOCK_TIMEOUT_S:
            try:
                line = self._lines.get(timeout=0.5)
            except Empty:
                waited_s += 0.5
                if done is not None and done():
                    self._process.send_signal(signal.SIGINT)
                    done = None
                continue
            if line.startswith(ANSWER):
                return line.removeprefix(ANSWER).strip(), said
            said += line
        return f"has not ended after {BLOCK_TIMEOUT_S} s", said


def cluster_in(directory: Path) -> TestCluster:
    """The cluster that the page has started there."""
    return TestCluster(LocalCluster.attach(directory / ".headrace"))


@contextmanager
def nothing_left_running(directory: Path) -> Iterator[None]:
    """Stop what the page has started, whatever became of it."""
    try:
        yield
    finally:
        subprocess.run(
            [sys.executable, "-m", "headrace_cli", "down"], cwd=directory, capture_output=True, timeout=60, check=False
        )
