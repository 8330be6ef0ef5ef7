"""
The process from which a worker's hosts are forked: it has imported what they need, and does nothing else.

``python -m headrace_connect.runtime.fork_server FD END_MS``: ``FD`` is a socket of packets to the worker. A host that
is forked begins within milliseconds, and shares with all others the memory that was filled before.

It has one thread, no event loop and no client of a cluster, for what is forked beside a thread may wait for ever for a
lock that the thread had. Code of connectors is imported in hosts alone. It reaps its hosts, and kills what is left of
the process group of a host that has ended before it does so: until then the group's id is nobody else's.

It ends when the worker has closed its end or has died, and its hosts have ended. They see the same, and end by
themselves; those that have not within ``END_MS`` are killed.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import pyarrow

from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.failpoints import failpoint
from headrace_common.runtime.tracing import ENDPOINT_VARIABLE, load_exporter
from headrace_connect.core.fork_messages import (
    ForkReport,
    ForkServerReady,
    HostEnded,
    HostForked,
    HostNotForked,
)
from headrace_connect.core.host_protocol import decode_fork_order, encode
from headrace_connect.runtime import host
from headrace_connect.runtime.catalog import list_connectors
from headrace_connect.version import package_version

PACKET_BYTES_MAX: Final = 16 << 10
KILLED_MS_MAX: Final = 5_000.0
"""So long hosts that were killed may take to be gone."""
_PASSED: Final = 2
"""Descriptors with an order."""
_ALSO: Final = (
    "crc32c",
    "email.parser",  # of the metadata of packages
    "headrace._bulk_tables",
    "headrace._transport.grpc",
    "headrace.aio._fetch_wire",
    "headrace.aio._hand_out",
    "headrace.aio._reading",
    "headrace.aio.admin",
    "headrace.aio.consumer",
    "headrace.aio.producer",
    "headrace.aio.transactions",
    "numpy.random",
)
"""What each host needs soon after its start, and what is imported only when it is needed."""
_IGNORED: Final = (signal.SIGTERM, signal.SIGINT)
"""Whoever tells all processes of a worker to stop means its hosts, which are reaped here."""
_OUTPUTS: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class _Host:
    number: int
    pid: int


class ForkServer:
    """One loop over the worker's orders and the ends of hosts."""

    def __init__(self, control: socket.socket, end_ms: float) -> None:
        """
        Args:
            control: to the worker; it is closed here.
            end_ms: so long hosts may take to end after the worker.
        """
        self._control = control
        self._end_ms = end_ms
        self._clock = SystemClock()
        self._poll = select.poll()
        self._hosts: dict[int, _Host] = {}
        """By the descriptor that names the process."""
        self._until_ms: float | None = None
        """When hosts are killed; None: the worker is there."""

    def run(self) -> None:
        """Until the worker is gone, and so are all hosts."""
        self._poll.register(self._control, select.POLLIN)
        self._say(ForkServerReady(os.getpid()))
        killed = False
        while self._until_ms is None or self._hosts:
            if self._until_ms is None:
                ready = self._poll.poll()
            else:
                ready = self._poll.poll(max(0.0, self._until_ms - self._clock.monotonic_ms()))
            for fd, _ in ready:
                if fd in self._hosts:
                    self._bury(fd)
                else:
                    self._obey()
            if not ready and killed:
                return
            if not ready:
                killed, self._until_ms = True, self._clock.monotonic_ms() + KILLED_MS_MAX
                for one in self._hosts.values():
                    _kill_group(one.pid)

    def _obey(self) -> None:
        try:
            packet, passed, _, _ = socket.recv_fds(self._control, PACKET_BYTES_MAX, _PASSED, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            packet, passed = b"", []
        try:
            if packet:
                number = decode_fork_order(packet).number
                own, output = passed
                self._fork(number, own, output)
            else:
                self._release()
        finally:
            for fd in passed:
                os.close(fd)

    def _release(self) -> None:
        """The worker is gone."""
        if self._until_ms is None:
            self._until_ms = self._clock.monotonic_ms() + self._end_ms
            self._poll.unregister(self._control)

    def _fork(self, number: int, own: int, output: int) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._say(HostNotForked(number, str(error)))
            return
        if not pid:
            self._be_host(own, output, server)
        failpoint("connect.forked")
        try:
            named = os.pidfd_open(pid)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._say(HostNotForked(number, str(error)))
            return
        self._hosts[named] = _Host(number, pid)
        self._poll.register(named, select.POLLIN)
        self._say(HostForked(number, pid), named)

    def _bury(self, named: int) -> None:
        one = self._hosts.pop(named)
        self._poll.unregister(named)
        os.close(named)
        _kill_group(one.pid)
        _, status = os.waitpid(one.pid, 0)
        self._say(HostEnded(one.number, os.waitstatus_to_exitcode(status)))

    def _say(self, report: ForkReport, *passed: int) -> None:
        if self._until_ms is not None:
            return
        try:
            socket.send_fds(self._control, [encode(report)], passed)
        except ConnectionError:
            self._release()

    # --- in the child -------------------------------------------------------------------------------------------------

    def _be_host(self, own: int, output: int, server: int) -> NoReturn:
        try:
            os.setsid()
            for fd in _OUTPUTS:
                os.dup2(output, fd)
            self._control.close()
            for fd in (output, *self._hosts):
                os.close(fd)
            for number in _IGNORED:
                signal.signal(number, signal.SIG_DFL)
            with suppress(OSError):
                Path("/proc/self/comm").write_text("connect-host")
            _forget_the_past()
            gc.enable()
            host.run(socket.socket(fileno=own), server)
        except BaseException:  # noqa: BLE001 - said, and then the process ends: this loop is the server's
            traceback.print_exc()
        finally:
            os._exit(1)


def _forget_the_past() -> None:
    """What would otherwise be the same in all hosts, or as it was when the server began."""
    importlib.invalidate_caches()
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()


def _kill_group(pid: int) -> None:
    """Of a host that was not reaped: nobody else has its id."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def main() -> None:
    """The process."""
    fd, end_ms = sys.argv[1:]
    control = socket.socket(fileno=int(fd))
    control.set_inheritable(False)
    for name in _ALSO:
        importlib.import_module(name)
    if os.environ.get(ENDPOINT_VARIABLE):
        with suppress(ImportError):  # hosts say so
            load_exporter()
    pyarrow.array([0])  # imports pandas, where there is one
    package_version()
    list_connectors()
    os.close(os.pidfd_open(os.getpid()))  # fails at once where there are none
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        sys.exit(f"nothing can be forked beside the {threads - 1} threads that imports have begun")
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        Path("/proc/self/comm").write_text("connect-forks")
    gc.collect()
    gc.disable()
    gc.freeze()  # a collection in a host would write into all that it shares
    ForkServer(control, float(end_ms)).run()
    os._exit(0)


if __name__ == "__main__":
    main()
