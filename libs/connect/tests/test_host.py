"""A host as a process: what it is told and what it says, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from headrace_connect.core import host_messages as messages
from headrace_connect.core.errors import Fault
from headrace_connect.core.host_messages import Command, Report
from headrace_connect.core.host_protocol import decode_report, encode
from headrace_connect.core.task import State

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

CLUSTER = {"bootstrap_servers": "127.0.0.1:1", "default_api_timeout_ms": 1_000}
OPEN = messages.Open(CLUSTER, 60_000, 300)
PLUGIN = '''
import logging, os, sys, time
from dataclasses import dataclass
from headrace_connect import Source

class Waits(Source):
    """Prints to both outputs, forks, and waits in its thread for ever."""

    def start(self):
        print("on stdout")
        print("on stderr", file=sys.stderr)
        if not os.fork():
            time.sleep(600)
        print("waits")
        time.sleep(600)

@dataclass(frozen=True, slots=True)
class Settings:
    """Of a system that is not there."""

    server: str
    """Its name."""

class Leaks(Source[Settings]):
    """Shows what it was given, as drivers do."""

    def check(self):
        return [f"server: {self.settings.server} is not known"]

    def splits(self):
        logging.getLogger("driver").warning("no route to %s", self.settings.server)
        raise OSError(f"cannot resolve {self.settings.server}")

class Blocks(Source):
    """Lets nothing else run."""

    async def start(self):
        self.loops_for_ever()

    def loops_for_ever(self):
        while True:
            pass
'''
PARENT = """
import socket, subprocess, sys, time
ours, theirs = socket.socketpair()
command = [sys.executable, "-m", "headrace_connect.runtime.host", str(theirs.fileno())]
host = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
theirs.close()
ours.sendall(sys.stdin.buffer.read())
time.sleep(600)
"""


class Worker:
    """The other end of a host's pipe."""

    def __init__(self, ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.socket = ours
        self._file = ours.makefile("rb")

    def send(self, *commands: Command) -> None:
        self.socket.sendall(b"".join(map(encode, commands)))

    def receive(self) -> Report:
        return decode_report(self._file.readline())

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@contextmanager
def host() -> Iterator[Worker]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "headrace_connect.runtime.host", str(theirs.fileno())]
    with ours, theirs:
        process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        theirs.close()
        try:
            yield Worker(ours, process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            output: IO[bytes] | None = process.stdout
            assert output is not None
            output.close()


def output_of(worker: Worker) -> str:
    assert worker.process.stdout is not None
    return worker.process.stdout.read().decode()


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "plugin.py"
    path.write_text(PLUGIN)
    return path


def start(plugin: Path, name: str) -> messages.StartTask:
    config = {"name": "shop", "connector.class": f"{plugin}:{name}", "topic": "t"}
    return messages.StartTask("shop", 0, config, (messages.SplitForm("all"),), 5)


def test_a_host_answers_questions_and_ends_when_its_pipe_is_closed(plugin: Path) -> None:
    with host() as worker:
        worker.send(OPEN, messages.Ping(7))
        opened = worker.receive()
        assert isinstance(opened, messages.HostOpened)
        assert opened.pid == worker.process.pid
        assert worker.receive() == messages.Pong(7)

        worker.send(messages.Describe(1, "files"))
        answer = worker.receive()
        assert isinstance(answer, messages.Answer)
        assert (answer.result["kind"], answer.id) == ("source", 1)
        assert "path" in {one["key"] for one in answer.result["definitions"]}

        worker.send(messages.Validate(2, {"name": "a", "connector.class": "files", "pth": "/"}))
        answer = worker.receive()
        assert isinstance(answer, messages.Answer)
        assert {one["key"] for one in answer.result["problems"]} == {"pth", "path", "format"}

        worker.send(messages.Describe(3, "filez"))
        refused = worker.receive()
        assert isinstance(refused, messages.NoAnswer)
        assert (refused.id, refused.fault) == (3, Fault.CONFIG)
        assert "is files meant?" in refused.reason

        spool = plugin.with_name("spool")
        spool.mkdir()
        (spool / "a.txt").write_text("one\ntwo\n")
        files = {"name": "f", "connector.class": "files", "path": str(spool), "format": "lines", "topic": "t"}
        worker.send(messages.Preview(4, files, 2), messages.Watch("f", 9, files))
        found = [worker.receive(), worker.receive()]
        [answer] = [one for one in found if isinstance(one, messages.Answer)]
        assert len(answer.result["records"]) == 2
        [watched] = [one for one in found if isinstance(one, messages.WatchReport)]
        assert (watched.number, watched.kind, watched.tasks) == (9, messages.Kind.SOURCE, len(watched.splits))

        worker.send(messages.StopTask("never", 0))
        assert worker.receive() == messages.TaskReport("never", 0, 0, State.UNASSIGNED)
        worker.close()
        assert worker.process.wait(30) == 0, output_of(worker)


def test_what_a_reference_gave_is_shown_nowhere(plugin: Path) -> None:
    (plugin.with_name("secrets")).write_text("server=hunter2/x\n")
    reference = f"${{file:{plugin.with_name('secrets')}:server}}"
    leaks = {"name": "l", "connector.class": f"{plugin}:Leaks", "server": reference, "topic": "t"}
    with host() as worker:
        worker.send(OPEN, messages.Validate(1, leaks))
        assert isinstance(worker.receive(), messages.HostOpened)
        answer = worker.receive()
        assert isinstance(answer, messages.Answer)
        assert [one["message"] for one in answer.result["problems"]] == [f"server: {reference} is not known"]
        worker.send(messages.Preview(2, leaks, 1))
        refused = worker.receive()
        assert isinstance(refused, messages.NoAnswer)
        assert refused.reason == f"OSError: cannot resolve {reference}"
        assert reference in refused.trace
        worker.send(messages.Watch("l", 9, leaks))
        failed = worker.receive()
        assert isinstance(failed, messages.WatchFailed)
        worker.close()
        assert worker.process.wait(30) == 0
        said = f"{answer} {refused} {failed} {output_of(worker)}"
        assert f"no route to {reference}" in said
        assert "hunter2" not in said


def test_a_host_that_is_told_rubbish_ends_and_says_so() -> None:
    with host() as worker:
        worker.send(OPEN)
        worker.receive()
        worker.socket.sendall(b"rubbish\n")
        assert worker.process.wait(30) == 1
        assert "NotAMessage: no JSON: b'rubbish" in output_of(worker)


def test_a_host_that_stands_still_ends_and_says_where_it_stood(plugin: Path) -> None:
    with host() as worker:
        worker.send(messages.Open(CLUSTER, 3_000), start(plugin, "Blocks"))
        assert isinstance(worker.receive(), messages.HostOpened)
        starting = worker.receive()
        assert isinstance(starting, messages.TaskReport)
        assert (starting.state, starting.generation) == (State.STARTING, 5)
        assert worker.process.wait(30) == 1
        assert "in loops_for_ever" in output_of(worker)


def test_nothing_is_left_of_a_host_whose_worker_was_killed(plugin: Path) -> None:
    """Neither the host, which waits in a connector, nor what that has forked: all have let go of the output."""
    command = [sys.executable, "-c", PARENT]
    pipe, unbuffered = subprocess.PIPE, {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, env=unbuffered) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(encode(OPEN) + encode(start(plugin, "Waits")))
        parent.stdin.close()
        printed = [parent.stdout.readline() for _ in range(3)]
        assert sorted(printed) == [b"on stderr\n", b"on stdout\n", b"waits\n"]
        parent.kill()
        assert parent.stdout.read() is not None, "both have let go of the pipe"
