"""The process from which hosts are forked: what they have of it, what they have not, and how both end."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from libs.common.tests.runtime.collector import collector

from headrace_connect.core import fork_messages, host_messages
from headrace_connect.core.fork_messages import Fork, ForkReport, ForkServerReady, HostEnded, HostForked
from headrace_connect.core.host_messages import Command, Report
from headrace_connect.core.host_protocol import decode_fork_report, decode_report, encode
from headrace_connect.core.task import State

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

OPEN = host_messages.Open({"bootstrap_servers": "127.0.0.1:1", "default_api_timeout_ms": 1_000}, 60_000, 300)
END_MS = 500
NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
OUTPUTS = {"0", "1", "2"}
PLUGIN = """
import gc, os, random, sys, threading, time
import numpy, pyarrow
from headrace_connect import Source, Split
print("imported in", os.getpid(), flush=True)

class Chance(Source):
    def splits(self):
        return [Split("a", {"python": random.random(), "numpy": float(numpy.random.rand())})]

class Collects(Source):
    def splits(self):
        gc.collect()
        return [Split("a")]

class Forks(Source):
    def start(self):
        child = os.fork()
        if not child:
            time.sleep(600)
        print("child", child, flush=True)
        time.sleep(600)

class Traces(Source):
    def splits(self):
        loaded = "opentelemetry.exporter.otlp.proto.grpc.trace_exporter" in sys.modules
        from headrace_common.runtime.tracing import open_tracer
        with open_tracer("connect", "1") as tracer:
            tracer.start_span("in a host").end()
        return [Split("a", {"loaded": loaded})]

class Threads(Source):
    def splits(self):
        threads = [threading.Thread(target=time.sleep, args=(600,), daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        table = pyarrow.table({"k": list(range(50_000)) * 4, "v": [1] * 200_000})
        groups = table.group_by("k", use_threads=True).aggregate([("v", "sum")])
        return [Split("a", {"groups": groups.num_rows, "threads": threading.active_count() - 1})]
"""
CRASHES = "import os; os.abort()"


@dataclass
class Host:
    """A host, and the worker's end of its pipe."""

    pid: int
    named: int
    socket: socket.socket
    lines: IO[bytes]
    output: IO[bytes]

    def send(self, *commands: Command) -> None:
        self.socket.sendall(b"".join(map(encode, commands)))

    def receive(self) -> Report:
        return decode_report(self.lines.readline())

    def open(self) -> None:
        self.send(OPEN)
        opened = self.receive()
        assert isinstance(opened, host_messages.HostOpened)
        assert opened.pid == self.pid

    def detail(self, plugin: str) -> dict[str, float]:
        """Of the split of a connector."""
        self.send(host_messages.Watch("w", 1, {"name": "w", "connector.class": plugin, "topic": "t"}))
        found = self.receive()
        assert isinstance(found, host_messages.WatchReport), found
        return dict(found.splits[0].detail)

    def start(self, plugin: str) -> None:
        config = {"name": "w", "connector.class": plugin, "topic": "t"}
        self.send(host_messages.StartTask("w", 0, config, (host_messages.SplitForm("a"),), 5))
        report = self.receive()
        assert isinstance(report, host_messages.TaskReport)
        assert report.state is State.STARTING

    def hang_up(self) -> None:
        self.lines.close()
        self.socket.close()


class Server:
    """A fork server, and the worker's end of its socket."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, ends: ExitStack) -> None:
        self.process = process
        self.control = control
        self._ends = ends
        self._number = 0

    def receive(self) -> tuple[ForkReport, list[int]]:
        packet, passed, _, _ = socket.recv_fds(self.control, 1 << 14, 1)
        return decode_fork_report(packet), passed

    def fork(self) -> Host:
        self._number += 1
        ours, theirs = socket.socketpair()
        output, their_output = os.pipe()
        socket.send_fds(self.control, [encode(Fork(self._number))], [theirs.fileno(), their_output])
        theirs.close()
        os.close(their_output)
        forked, passed = self.receive()
        assert isinstance(forked, HostForked)
        assert forked.number == self._number
        host = Host(forked.pid, passed[0], ours, ours.makefile("rb"), os.fdopen(output, "rb", buffering=0))
        self._ends.callback(os.close, host.named)
        self._ends.callback(host.hang_up)
        self._ends.callback(host.output.close)
        return host


@contextmanager
def server(**more: str) -> Iterator[Server]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "headrace_connect.runtime.fork_server", str(theirs.fileno()), str(END_MS)]
    variables = {**NO_THREADS, "PYTHONUNBUFFERED": "1", "MARK": "a variable", **os.environ, **more}
    with ExitStack() as ends:
        ends.enter_context(ours)
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL, env=variables
        )
        ends.callback(process.wait)
        ends.callback(process.kill)
        theirs.close()
        made = Server(process, ours, ends)
        ready, _ = made.receive()
        assert ready == ForkServerReady(process.pid)
        yield made


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    path = tmp_path / "plugin.py"
    path.write_text(PLUGIN)
    return str(path)


def status(pid: int, name: str) -> str:
    """A field of ``/proc/PID/status``."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{name}:"))


def is_over(named: int, patience_s: float = 30) -> bool:
    return bool(select.select([named], [], [], patience_s)[0])


def test_a_host_has_its_own_pipe_output_session_and_nothing_else() -> None:
    with server() as made:
        hosts = [made.fork() for _ in range(3)]
        for host in hosts:
            host.open()
        host = hosts[1]
        assert status(host.pid, "PPid") == str(made.process.pid)
        assert os.getsid(host.pid) == os.getpgid(host.pid) == host.pid
        assert Path(f"/proc/{host.pid}/oom_score_adj").read_text().strip() == "800"
        assert Path(f"/proc/{host.pid}/comm").read_text().strip() == "connect-host"
        assert b"MARK=a variable" in Path(f"/proc/{host.pid}/environ").read_bytes()
        assert Path(f"/proc/{host.pid}/fd/0").readlink() == Path("/dev/null")
        opened = links(host.pid)
        pipes = {link for link in opened.values() if link.startswith("pipe:")}
        assert len(pipes) == 1, "of its own output alone"
        assert opened["1"] == opened["2"] in pipes
        assert not any("pidfd" in link for link in opened.values()), "it has no name of another one"
        sockets = {link for link in links(made.process.pid).values() if link.startswith("socket:")}
        assert len(sockets) == 1, "of pipes of hosts the server keeps none"
        assert sockets.isdisjoint(opened.values())
        ignored = int(status(host.pid, "SigIgn"), 16)
        assert not ignored & (1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1)), "it can be told to stop"


def links(pid: int) -> dict[str, str]:
    """What a process has open, by descriptor."""
    folder = f"/proc/{pid}/fd"
    return {one: os.readlink(f"{folder}/{one}") for one in os.listdir(folder)}


def test_how_a_host_ended_is_told_when_nothing_of_its_group_is_left(plugin: str) -> None:
    with server() as made:
        kind, hard = made.fork(), made.fork()
        for host in (kind, hard):
            host.open()
        kind.hang_up()
        assert made.receive()[0] == HostEnded(1, 0)
        hard.start(f"{plugin}:Forks")
        while not (line := hard.output.readline()).startswith(b"child"):
            pass
        child = os.pidfd_open(int(line.split()[1]))
        signal.pidfd_send_signal(hard.named, signal.SIGKILL)
        assert made.receive()[0] == HostEnded(2, -signal.SIGKILL)
        assert is_over(child)
        os.close(child)
        again = made.fork()
        again.open()
        os.kill(again.pid, signal.SIGTERM)
        assert made.receive()[0] == HostEnded(3, 0), "it ended in order"


def test_hosts_trace_with_what_was_imported_before(plugin: str) -> None:
    with collector() as there, server(HEADRACE_OTLP_ENDPOINT=there.endpoint) as made:
        for _ in range(2):
            host = made.fork()
            host.open()
            assert host.detail(f"{plugin}:Traces") == {"loaded": True}
        assert [name for name, _ in there.spans] == ["in a host"] * 2


def test_code_of_connectors_is_imported_in_hosts_alone(plugin: str, tmp_path: Path) -> None:
    crashes = tmp_path / "crashes.py"
    crashes.write_text(CRASHES)
    with server() as made:
        details = []
        for _ in range(2):
            host = made.fork()
            host.open()
            details.append(host.detail(f"{plugin}:Chance"))
            assert host.output.readline() == f"imported in {host.pid}\n".encode()
        assert details[0]["python"] != details[1]["python"]
        assert details[0]["numpy"] != details[1]["numpy"]
        host = made.fork()
        host.open()
        host.send(host_messages.Describe(1, f"{crashes}:Any"))
        assert made.receive()[0] == HostEnded(3, -signal.SIGABRT)
        made.fork().open()


def test_a_connector_may_have_threads(plugin: str) -> None:
    with server() as made:
        for _ in range(2):
            host = made.fork()
            host.open()
            detail = host.detail(f"{plugin}:Threads")
            assert detail["groups"] == 50_000
            assert detail["threads"] >= 4
        assert status(made.process.pid, "Threads") == "1"


def test_hosts_end_with_the_worker_and_the_server_with_them(plugin: str) -> None:
    with server() as made:
        kind, stuck = made.fork(), made.fork()
        for host in (kind, stuck):
            host.open()
        stuck.start(f"{plugin}:Forks")
        while not stuck.output.readline().startswith(b"child"):
            pass
        os.kill(stuck.pid, signal.SIGSTOP)
        made.process.terminate()  # as whoever stops a machine does with all processes
        made.control.close()
        kind.hang_up()
        stuck.hang_up()
        assert is_over(kind.named)
        assert is_over(stuck.named), "it was killed"
        assert made.process.wait(30) == 0
        assert stuck.output.read() is not None, "nothing of it has its output any more"
        while stuck.output.read(1 << 16):
            pass


def test_nothing_is_left_when_worker_and_server_were_killed(plugin: str) -> None:
    with server() as made:
        host = made.fork()
        host.open()
        host.start(f"{plugin}:Forks")
        while not (line := host.output.readline()).startswith(b"child"):
            pass
        child = os.pidfd_open(int(line.split()[1]))
        made.process.kill()
        made.process.wait()
        host.hang_up()
        assert is_over(host.named)
        assert is_over(child)
        os.close(child)


def test_a_host_shares_the_memory_that_was_filled_before(plugin: str) -> None:
    with server() as made:
        hosts = [made.fork() for _ in range(3)]
        for host in hosts:
            host.open()
            host.detail(f"{plugin}:Collects")
        own = [private_mib(host.pid) for host in hosts]
    assert max(own) < 32, own


def private_mib(pid: int) -> float:
    """Memory that no other process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def test_messages_of_another_version_are_refused() -> None:
    with server() as made:
        made.control.send(b'{"v":2,"type":"Fork","number":1}')
        assert made.process.wait(30) == 1
    assert fork_messages.ForkOrder is Fork
