"""
The process behind a local cluster: starts all services, starts those again that die, stops them in order.

``python -m headrace_cli.local.supervisor --data-dir DIR --options JSON [--owned]``, run by ``LocalCluster``. With
``--owned`` it ends when its standard input does, so that nothing is left when the owner is killed; there the owner
also writes commands (``start NAME``, ``stop``), one a line. It has one thread, no lock, and waits in ``select``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from headrace.local_keys import local_keys_directory, remove_local_key, write_local_key
from headrace_cli.local.certificate_files import EtcdFiles
from headrace_cli.local.certificates import renew, renew_nodes
from headrace_cli.local.children import Child
from headrace_cli.local.etcd import find_etcd
from headrace_cli.local.etcd_peers import PLAIN, MovingMember, move_peers
from headrace_cli.local.failures import AlreadyRunning, LocalClusterFailed
from headrace_cli.local.plan import (
    ADMIN_KEYS,
    CERTIFICATES,
    HOST,
    NODE_TOKEN,
    STOP_STAGES,
    WORKER_KEY,
    ClusterOptions,
    ProcessPlan,
    host_of,
    node_files,
    plan,
    slots,
)
from headrace_cli.local.ports import PortClaims, choose_ports, ports_of_a_copy
from headrace_cli.local.processes import ProcessId, kill_children, tail
from headrace_cli.local.restarts import Died, GiveUp
from headrace_cli.local.state import ClusterState, DataDir, Health, Phase, is_own_name
from headrace_common.core.access.api_keys import verifier_of
from headrace_common.core.errors import HeadraceError, InvalidConfig
from headrace_common.core.secret import Secret
from headrace_common.runtime.entropy import new_api_key
from headrace_common.runtime.etcd_log import drop_unwritten
from headrace_common.runtime.private_files import keep_private, narrow
from headrace_common.runtime.token_file import make_file, read_tokens

READY_POLL_SECONDS: Final = 0.02
UNSAVED_POLL_SECONDS: Final = 1.0
STOP_STAGE_SECONDS: Final = {
    "connect": 8.0,
    "admin": 5.0,
    "coordinator": 6.0,
    "broker": 8.0,
    "controller": 4.0,
    "etcd": 4.0,
}
LOOKS_PER_LIFE: Final = 3
LOOK_SECONDS_MAX: Final = 3_600.0
"""The longest between two looks at certificates, and until the next try where one failed."""
LOG_TAIL_LINES: Final = 12
WANTED_SECONDS: Final = 10.0
LOCK_TRIES: Final = 10
LOCK_PAUSE_SECONDS: Final = 0.05


class Supervisor:
    """One cluster. Everything happens in ``run``, which owns the children and the state files."""

    def __init__(self, directory: DataDir, options: ClusterOptions, owned: bool) -> None:
        myself = ProcessId.of(os.getpid())
        assert myself is not None, "we run"
        self._directory = directory
        self._owned = owned
        self._state = ClusterState(myself, Phase.STARTING, options, data_dir=directory.real)
        self._children: list[Child] = []
        self._claims = PortClaims(str(directory.path))
        self._key = Secret(new_api_key()) if options.closed else None
        """Of User:admin, for as long as this start lasts."""
        self._stop = False
        self._unsaved = False
        """The disk was full, or gone: the state is written down when that is possible again."""
        self._life = timedelta(seconds=options.certificate_seconds)
        self._looks_at = self._next_look()
        """When certificates are looked at again, in seconds of the monotonic clock."""
        self._commands = b""
        self._wanted: dict[str, float] = {}
        """Processes to start as soon as they are seen to be dead, and until when: who asks may see a death first."""
        self._wakeup, self._wakeup_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """
        Until told to stop, or the cluster cannot start. The exit code is 0 if it had been told.

        Raises:
            AlreadyRunning: another supervisor has this data directory.
        """
        lock = self._lock()
        if lock is None:
            raise AlreadyRunning(f"a cluster runs on {self._directory.path} already; see `headrace status`")
        self._catch_signals()
        before = self._directory.read()
        self._remember(before)
        try:
            self._narrow()
            self._prepare(before)
            self._save()
            for child in self._children:
                self._start(child)
            self._save()
            while not self._stop and self._state.phase is not Phase.FAILED:
                self._wait()
                self._look()
        except HeadraceError as error:
            self._fail(str(error))
        finally:
            self._end()
            os.close(lock)
        return 0 if self._state.phase is Phase.STOPPED else 1

    def _lock(self) -> int | None:
        """Whoever looks whether a supervisor lives holds the lock for a moment, so one failure says nothing."""
        locks = (self._directory.lock() for _ in range(LOCK_TRIES))
        for lock in locks:
            if lock is not None:
                return lock
            time.sleep(LOCK_PAUSE_SECONDS)
        return None

    def _narrow(self) -> None:
        narrowed = str(narrow(self._directory.path, only=is_own_name))
        if narrowed:
            self._say("narrowed", f"{self._directory.path} was not private: {narrowed}")

    # --- start ---------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        def stop(_number: int, _frame: object) -> None:
            self._stop = True

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, stop)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wakeup_in, warn_on_full_buffer=False)

    def _remember(self, before: ClusterState | None) -> None:
        """
        What no start forgets, whatever becomes of it: the ports by which etcd's members know each other, and of which
        cluster this is a copy, whose clients would take the one for the other at its ports.
        """
        if before is None:
            return
        state = self._state
        state.ports = before.ports
        state.original, state.original_ports = before.original, before.original_ports
        if self._directory.original_exists(before):
            state.original = before.data_dir
            state.original_ports = tuple(sorted({*before.original_ports, *before.ports.values()}))
            state.ports = ports_of_a_copy(state.options, state.ports)

    def _prepare(self, before: ClusterState | None) -> None:
        options, saved = self._state.options, self._state.ports
        etcd = find_etcd(options.etcd)
        self._state.cluster_id = self._directory.cluster_id()
        if before is not None:
            self._clear_leftovers(before)
        self._refuse_beside_original()
        self._state.ports, notes = choose_ports(options, saved, self._claims, self._state.original_ports)
        for note in notes:
            self._say("port", note)
        # A slot that is not needed now keeps its port for when it is needed again.
        self._state.ports = {**saved, **self._state.ports}
        files = self._renew_certificates()
        self._make_token()
        plans = plan(options, self._state.ports, data_dir=str(self._directory.path), etcd=etcd, python=sys.executable)
        self._move_peers(plans, files)
        self._drop_unwritten(plans)
        self._children = [
            Child(p, self._directory.logs / f"{p.name}.log", options.restart_delay_ms, self._held_for(p.name))
            for p in plans
        ]
        self._state.processes = [child.state for child in self._children]
        self._make_key()

    def _drop_unwritten(self, plans: Sequence[ProcessPlan]) -> None:
        """What members of etcd left that were killed as they first began: by that they never would begin again."""
        for name in [planned.name for planned in plans if planned.role == "etcd"]:
            try:
                dropped = drop_unwritten(self._directory.path / name)
            except OSError as error:
                raise LocalClusterFailed(f"cannot remove {error.filename}: {error.strerror}") from error
            if dropped:
                self._say("etcd", f"{name} was killed before its first entry; it begins anew", process=name)

    def _held_for(self, name: str) -> list[socket.socket]:
        ports = [port for slot, port in self._state.ports.items() if slot.partition(".")[0] == name]
        return [held for port in ports if (held := self._claims.held(port)) is not None]

    def _make_key(self) -> None:
        """What controllers have of it, and REST's clients; and programs, as soon as the cluster has an id."""
        if self._key is None:
            return
        try:
            self._write_private(self._directory.path / ADMIN_KEYS, verifier_of(self._key.reveal()))
            self._write_private(self._directory.authorization_file, f"Authorization: Bearer {self._key.reveal()}")
            if self._state.options.connect:
                self._write_private(self._directory.path / WORKER_KEY, self._key.reveal())
        except OSError as error:
            raise LocalClusterFailed(f"cannot write {error.filename}: {error.strerror}") from error
        self._tell_key()

    @staticmethod
    def _write_private(path: Path, line: str) -> None:
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(f"{line}\n")

    @property
    def _key_name(self) -> str:
        """Of the file that programs find. A copy has the cluster id of its original, which may run beside it."""
        id, of_original = str(self._state.cluster_id), self._state.original is None
        return id if of_original else f"{id}-{zlib.crc32(self._directory.real.encode()):08x}"

    def _tell_key(self) -> None:
        id, state = self._state.cluster_id, self._state
        if self._key is None or id is None:
            return
        directory = local_keys_directory(os.environ)
        try:
            write_local_key(directory, id, state.client_addresses, self._key, name=self._key_name)
        except OSError as error:
            raise LocalClusterFailed(
                f"cannot write the key of this closed cluster to {directory}: {error.strerror}; XDG_CONFIG_HOME names "
                "another directory for it"
            ) from error

    def _forget_key(self) -> None:
        if self._key is None:
            return
        with contextlib.suppress(OSError):  # it dies with this start, wherever it stands
            for name in (ADMIN_KEYS, WORKER_KEY):
                (self._directory.path / name).unlink(missing_ok=True)
            self._directory.authorization_file.unlink(missing_ok=True)
            if self._state.cluster_id is not None:
                remove_local_key(local_keys_directory(os.environ), self._key_name)

    def _refuse_beside_original(self) -> None:
        """Members of a quorum, copied, would take part in the original's: they have its names, ports and keys."""
        original = self._state.original
        if original is not None and self._state.options.etcd_members > 1 and DataDir.at(original).locked():
            raise LocalClusterFailed(
                f"{self._directory.path} is a copy of {original}, whose cluster runs, and members of etcd know each "
                f"other by their ports, which are the same in both: stop that one first, with `headrace down "
                f"--data-dir {original}`"
            )

    def _next_look(self) -> float:
        return time.monotonic() + min(LOOK_SECONDS_MAX, self._life.total_seconds() / LOOKS_PER_LIFE)

    def _look_at_certificates(self) -> None:
        """Processes look at their files by themselves. What cannot be written now is tried at the next look."""
        self._looks_at = self._next_look()
        try:
            self._renew_certificates(running=True)
        except LocalClusterFailed as error:
            self._say("certificates", str(error))

    def _renew_certificates(self, *, running: bool = False) -> EtcdFiles:
        members = range(1, self._state.options.etcd_members + 1)
        hosts = {HOST, *(host_of(self._state.options, f"etcd-{n}") for n in members)}
        files = EtcdFiles(self._directory.path / CERTIFICATES)
        made = renew(files, hosts, datetime.now(UTC), life=self._life, running=running)
        if made:
            self._say("certificates", f"made {', '.join(made)} for etcd")
        if self._state.options.tls:
            self._renew_nodes(running=running)
        return files

    def _renew_nodes(self, *, running: bool) -> None:
        names = {slot.partition(".")[0] for slot in slots(self._state.options)}
        roles = {name.rpartition("-")[0] for name in names} - {"etcd"}
        hosts = {HOST, "localhost", *(host_of(self._state.options, name) for name in names)}
        files, now = node_files(self._directory.path), datetime.now(UTC)
        made = renew_nodes(files, sorted(roles), hosts, now, life=self._life, running=running)
        if made:
            self._say("certificates", f"made {', '.join(made)} for the services")

    def _make_token(self) -> None:
        path = self._directory.path / NODE_TOKEN
        try:
            make_file(path)
            read_tokens(path)
        except OSError as error:
            raise LocalClusterFailed(f"cannot write the node token to {path}: {error.strerror}") from error
        except InvalidConfig as error:
            raise LocalClusterFailed(f"{error}; remove it, and `headrace up` makes a new one") from error

    def _move_peers(self, plans: Sequence[ProcessPlan], files: EtcdFiles) -> None:
        """Members of an etcd quorum of before TLS; their plain ports are forgotten when nobody knows them any more."""
        options, ports = self._state.options, self._state.ports
        plain = {slot: port for slot, port in ports.items() if slot.endswith(PLAIN)}
        if not plain or options.etcd_members == 1:
            return
        taken = next((slot for slot, port in plain.items() if not self._claims.claim(port)), None)
        if taken is not None:
            raise LocalClusterFailed(
                f"etcd's members know {taken.removesuffix(PLAIN)} by port {plain[taken]} in plain text, which is "
                f"needed once more and is in use; free it, or give TLS another port with --port"
            )
        self._save()  # what was chosen holds for every further try
        members = [
            MovingMember(
                plan=planned,
                peer=f"{host_of(options, planned.name)}:{ports[f'{planned.name}.peer']}",
                plain=f"{host_of(options, planned.name)}:{plain[planned.name + PLAIN]}",
                log=self._directory.logs / f"{planned.name}.log",
            )
            for planned in plans
            if planned.role == "etcd"
        ]
        self._say("moving", "etcd's members get addresses with TLS")
        move_peers(members, files, lambda: self._stop)
        if not self._stop:
            self._state.ports = {slot: port for slot, port in ports.items() if slot not in plain}

    def _clear_leftovers(self, before: ClusterState) -> None:
        """
        Children die with their supervisor where the kernel sees to it; elsewhere it is done here. We have the lock, so
        a supervisor that lives is another directory's, of which this one is a copy, and so are its children.
        """
        if before.supervisor.alive():
            return
        left = [p.identity for p in before.processes if p.identity is not None and p.identity.alive()]
        if left:
            self._say("leftovers", f"killing {len(left)} processes that a supervisor left that was killed")
            kill_children(left, 5.0)

    def _start(self, child: Child) -> None:
        with contextlib.suppress(OSError):  # the process says what it lacks
            make_file(self._directory.path / NODE_TOKEN)  # without it nothing starts again; the others take the new one
        try:
            child.start(time.monotonic())
        except OSError as error:
            self._fail(f"cannot run {child.plan.argv[0]}: {error.strerror}")
            return
        self._say("started", f"{child.plan.name} started", process=child.plan.name, pid=child.state.pid)

    # --- the loop ------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Until a child ends, a command comes, a signal arrives, or the next thing is due."""
        now = time.monotonic()
        timeout = min(
            [60.0, self._looks_at - now, *(due - now for c in self._children if (due := c.due()) is not None)]
        )
        if self._unsaved:
            timeout = min(timeout, UNSAVED_POLL_SECONDS)
        if any(child.state.health is Health.STARTING for child in self._children):
            timeout = min(timeout, READY_POLL_SECONDS)
        inputs = [self._wakeup, 0] if self._owned else [self._wakeup]
        readable, _, _ = select.select(inputs, [], [], max(timeout, 0.0))
        if self._wakeup in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 4096)
        if 0 in readable:
            self._read_commands()

    def _read_commands(self) -> None:
        data = os.read(0, 4096)
        if not data:
            self._stop = True
            return
        *lines, self._commands = (self._commands + data).split(b"\n")
        for line in lines:
            match line.decode().split():
                case ["stop"]:
                    self._stop = True
                case ["start", name]:
                    self._wanted[name] = time.monotonic() + WANTED_SECONDS

    def _look(self) -> None:
        """Notice what changed, act on it, and write it down."""
        now = time.monotonic()
        if now >= self._looks_at:
            self._look_at_certificates()
        changed = False
        for child in self._children:
            died = child.reap(now)
            if died is not None:
                self._died(child, died, now)
            wanted = not child.running() and self._wanted.pop(child.plan.name, 0.0) > now
            if wanted:
                child.state.note = None
                self._start(child)
            became_ready = child.became_ready(time.monotonic())
            if became_ready:
                seconds = child.startup_seconds
                text = f"{child.plan.name} is ready after {seconds:.2f} s"
                self._say("ready", text, process=child.plan.name, seconds=round(seconds, 3))
            due = child.due()
            restarted = due is not None and due <= now and not self._stop
            if restarted:
                child.state.restarts += 1
                self._start(child)
            changed = changed or died is not None or wanted or became_ready or restarted
        if self._state.phase is Phase.STARTING and all(c.state.health is Health.READY for c in self._children):
            self._state.cluster_id = self._directory.cluster_id()
            self._tell_key()
            self._state.phase = Phase.READY
            self._say("cluster ready", "the cluster is ready")
            changed = True
        if changed or self._unsaved:
            self._save()

    def _died(self, child: Child, died: Died, now: float) -> None:
        name, how = child.plan.name, child.how_it_ended()
        if not self._state.options.restart:
            child.stays_dead(how)
            self._say("died", f"{name} {how}; restarts are off", process=name)
            if self._state.phase is Phase.STARTING:
                self._fail(self._with_log(child, f"{name} {how} before the cluster was ready"))
            return
        decision = child.policy.handle(died)
        if isinstance(decision, GiveUp):
            child.stays_dead(how)
            text = f"{name} {how}; it did not get ready in {decision.starts} starts and is left dead"
            self._say("gave up", self._with_log(child, text), process=name)
            if self._state.phase is Phase.STARTING:
                self._fail(self._with_log(child, text))
            return
        child.start_again_at(now + decision.delay_ms / 1000, how)
        self._say("died", f"{name} {how}; starting it again in {decision.delay_ms:.0f} ms", process=name)

    def _with_log(self, child: Child, text: str) -> str:
        words = tail(child.log, LOG_TAIL_LINES)
        return f"{text}. The end of {child.log}:\n{words}" if words else f"{text}; {child.log} is empty"

    # --- the end -------------------------------------------------------------------------------------------

    def _fail(self, text: str) -> None:
        self._state.error = text
        self._state.phase = Phase.FAILED
        self._say("failed", text)

    def _end(self) -> None:
        """Stop everything in order. It fails nobody: what does not stop in time is killed."""
        failed = self._state.phase is Phase.FAILED
        if not failed:
            self._state.phase = Phase.STOPPING
            self._save()
        for stage in STOP_STAGES:
            self._stop_stage(stage)
        for child in self._children:
            child.stopped()
        self._forget_key()
        self._state.phase = Phase.FAILED if failed else Phase.STOPPED
        self._say("stopped", "the cluster is stopped")
        self._save()
        self._claims.close()

    def _stop_stage(self, roles: tuple[str, ...]) -> None:
        children = [c for c in self._children if c.plan.role in roles and c.running()]
        for child in children:
            child.terminate()
        deadline = time.monotonic() + max(STOP_STAGE_SECONDS.get(role, 0.0) for role in roles)
        for child in children:
            if not child.wait(max(deadline - time.monotonic(), 0.0)):
                self._say("killed", f"{child.plan.name} did not stop in time and is killed", process=child.plan.name)
                child.kill()

    def _save(self) -> None:
        """A disk that fills up later ends nobody: whoever holds the processes stays, and writes when there is room."""
        try:
            self._directory.write(self._state)
            self._unsaved = False
        except OSError:
            if self._state.phase is Phase.STARTING:
                raise
            self._unsaved = True

    def _say(self, event: str, text: str, **fields: object) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"ts": now, "level": "INFO", "logger": "headrace.supervisor", "event": event, "msg": text, **fields}
        try:
            with self._directory.events.open("a") as log:
                log.write(json.dumps(line) + "\n")
        except OSError:
            if self._state.phase is Phase.STARTING:
                raise


def main() -> int:
    """Read the arguments and run."""
    keep_private()
    parser = argparse.ArgumentParser(prog="headrace-supervisor")
    parser.add_argument("--data-dir", required=True, type=Path)
    parser.add_argument("--options", required=True, type=json.loads)
    parser.add_argument("--owned", action="store_true")
    arguments = parser.parse_args()
    options = ClusterOptions.from_json(arguments.options)
    try:
        return Supervisor(DataDir.at(arguments.data_dir), options, arguments.owned).run()
    except AlreadyRunning as error:
        print(error, file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
