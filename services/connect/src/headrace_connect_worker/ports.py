"""
What the worker needs of the outside (``Hosts``, the cluster's topics and groups), and what REST needs of it (``Herd``).

All methods run on the worker's event loop. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.records import TopicPartition
from headrace.ticket_types import AccessQuestion, AnnouncedChange
from headrace.work_types import Declaration, WorkChange
from headrace_common.core.secret import Secret
from headrace_connect.core.errors import Fault
from headrace_connect.core.host_messages import Told, TopicSeen
from headrace_connect.core.progress import Progress
from headrace_connect.settings import Definition, Problem
from headrace_connect_worker.core.events import Happened
from headrace_connect_worker.core.herd import HerdState
from headrace_connect_worker.core.records import (
    ConfigRecord,
    RunState,
    SplitSpec,
    StatusRecord,
    TargetState,
)
from headrace_connect_worker.core.status import Statuses

Config = Mapping[str, str]
"""Of a connector, as it was given: secrets are references."""


# --- hosts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartTask:
    """A task that is to run in its connector's host."""

    connector: str
    task: int
    config: Config
    splits: tuple[SplitSpec, ...]
    """Of a source; empty for a sink, whose tasks share partitions by their group."""
    generation: int
    """Of the connector's tasks: what a source's tasks claim their owner with."""
    target: TargetState = TargetState.STARTED
    """``STARTED`` or ``PAUSED``; it opens, and reads nothing while it is paused."""


@dataclass(frozen=True, slots=True)
class TaskReported:
    """
    What a task does now. Failures of the world are restarted in the host, which says ``RESTARTING`` and why; ``FAILED``
    is for good. ``UNASSIGNED`` with the fault ``FENCED`` says that a newer owner or generation was there.
    """

    connector: str
    task: int
    generation: int
    state: RunState
    trace: str = ""
    """Why it failed last; with ``RESTARTING`` also what it waits for. Empty while it works."""
    fault: Fault | None = None
    """Whose, with ``FAILED``, ``RESTARTING`` and ``UNASSIGNED``."""


@dataclass(frozen=True, slots=True)
class WorkFound:
    """What there is to do, as ``watch`` found it; said at first, and whenever it differs."""

    connector: str
    config_offset: int
    """As ``watch`` was given it."""
    kind: str
    """``source`` or ``sink``."""
    guarantee: str = ""
    """Of a sink: ``headrace_connect.Guarantee``."""
    splits: tuple[SplitSpec, ...] = ()
    """Of a source."""
    tasks: int = 0
    """Of a sink: how many tasks have something to do, at most ``tasks.max``."""


@dataclass(frozen=True, slots=True)
class WatchFailed:
    """``splits()`` failed, or the configuration cannot be used. With the fault ``WORLD`` it is asked again."""

    connector: str
    config_offset: int
    fault: Fault
    trace: str


@dataclass(frozen=True, slots=True)
class HostCrashed:
    """
    The process of this connector has ended unasked, or was silent for 30 s and was killed. All its tasks and its
    watcher are gone, and it is forgotten: the next ``start`` or ``watch`` begins a new process. The worker waits before
    that.
    """

    connector: str
    trace: str
    """How it ended, and its last lines."""


HostEvent = TaskReported | WorkFound | WatchFailed | TopicSeen | Told | HostCrashed


@dataclass(frozen=True, slots=True)
class Validation:
    """What is known of a configuration, for Kafka's answer to ``validate``."""

    plugin: str
    """The class's name as it was given."""
    kind: str
    """``source`` or ``sink``; empty where the class cannot be found."""
    definitions: tuple[Definition, ...]
    """Of the plugin, after those that every source or sink has."""
    problems: tuple[Problem, ...]
    """All that is wrong; with an empty key: outside, as the connector's ``check`` said."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A connector that can be named."""

    name: str
    where: str
    """``package.module:Class``."""
    kind: str = ""
    """``source`` or ``sink``; empty where that is not known without importing it."""
    version: str = ""


class HostUnavailable(Exception):
    """No host could be started, or it did not answer in time; the text has its last lines."""


class NotAnswered(HostUnavailable):
    """A host has looked, and what is outside does not let the connector; the text says why."""


class Hosts(Protocol):
    """
    Runs connectors in child processes, one for each connector on this worker. All is said by connector's name. Calls
    for one task, or for the watch, are made one at a time; those for other tasks of its connector may be under way.
    Built by ``adapters.host_processes``; a twin in memory is ``tests.kit.hosts``.
    """

    async def start(self, task: StartTask) -> None:
        """
        Have a task run; returns when the host was told. Its host is started if there is none. The task is not running.

        Raises:
            HostUnavailable: it will not run; nothing of it is left.
        """
        ...

    async def set_target(self, connector: str, task: int, target: TargetState) -> None:
        """Pause or resume a task; nothing where it does not run."""
        ...

    async def stop(self, connector: str, task: int) -> None:
        """
        Have a task commit and let go of everything; returns when it has ended, at the latest after the setting
        ``task_stop_ms_max``, when its host is killed (``HostCrashed`` follows for the others in it). No event of this
        task comes afterwards. Nothing where it does not run.
        """
        ...

    async def watch(self, connector: str, config: Config, config_offset: int) -> None:
        """
        Ask a source for its splits now and every ``rescan.interval.ms``, of a sink how many tasks have something to do:
        ``WorkFound`` and ``WatchFailed`` follow. Replaces the watch there was. Starts a host if there is none.

        Raises:
            HostUnavailable: nothing is watched.
        """
        ...

    async def unwatch(self, connector: str) -> None:
        """Watch no more. A host without a watch and tasks ends. Nothing where nothing is watched."""
        ...

    def events(self) -> AsyncIterator[HostEvent]:
        """What happens, in order; one reader."""
        ...

    async def validate(self, config: Config, *, ask: bool = True) -> Validation:
        """
        What is wrong with a configuration; in a process of its own, which ends.

        Args:
            ask: the connector's ``check`` asks the other system too, where nothing else is wrong.

        Raises:
            HostUnavailable: it crashed or did not answer in time.
        """
        ...

    async def describe(self, plugin: str) -> tuple[Definition, ...]:
        """
        The settings of a plugin; in a process of its own.

        Raises:
            headrace_common.core.errors.InvalidConfig: there is no such plugin, or it cannot be imported.
            HostUnavailable: as ``validate``.
        """
        ...

    async def plugins(self) -> Sequence[Plugin]:
        """All connectors that have a name."""
        ...

    async def preview(self, config: Config, records_max: int) -> Sequence[Mapping[str, Any]]:
        """
        The first records of a source as they would be written; writes and commits nothing. In a process of its own.

        Raises:
            HostUnavailable: as ``validate``.
        """
        ...

    async def settle(self, config: Config) -> int:
        """
        Decide what tasks of a sink that is about to be deleted have prepared; how many transactions that were. In a
        process of its own.

        Raises:
            InvalidConfig: it cannot be used any more.
            HostUnavailable: as ``validate``, or the target is away.
        """
        ...

    async def rewind(
        self, config: Config, positions: Mapping[TopicPartition, int | None], *, forget_others: bool
    ) -> int:
        """
        Change the positions that the target of a sink has; of how many partitions. What tasks of before have not
        committed, they do not commit any more. In a process of its own.

        Args:
            positions: None: the target does not know the partition any more.
            forget_others: nor all other partitions that the sink reads.

        Raises:
            headrace_common.core.errors.InvalidConfig: the target cannot do that; nothing was changed.
            HostUnavailable: as ``validate``, or the target is away; nobody knows whether they were changed.
        """
        ...

    async def verify(
        self,
        config: Config,
        topics: Sequence[str],
        records_max: int,
        *,
        repair: bool,
        tell: Callable[[Progress], None],
    ) -> Mapping[str, Any]:
        """
        Whether the target of a sink has what its topics say, as ``headrace_connect.runtime.verifying`` says it. In a
        process of its own, which has ended when this returns, is cancelled or fails. With ``repair`` none of the
        connector's tasks may run.

        Args:
            tell: called again and again with how far it is.

        Raises:
            headrace_common.core.errors.InvalidConfig: it cannot be verified.
            HostUnavailable: it crashed, or did not answer within ``verify_ms_max``.
        """
        ...

    async def snapshot(self, config: Config, tables: Sequence[str]) -> Sequence[str]:
        """
        Have tables of a source be read again, whether it runs or not; their full names. In a process of its own.

        Raises:
            headrace_common.core.errors.InvalidConfig: it cannot do it, or a table is none of its.
            HostUnavailable: as ``validate``.
        """
        ...

    async def close(self) -> None:
        """Stop all tasks as ``stop`` does, and end all processes."""
        ...


# --- the cluster ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigRead:
    """Records of the config topic, and how far the log is read."""

    records: Sequence[tuple[int, ConfigRecord]]
    """Offset and record, ascending; a transaction is never cut."""
    at_end: bool
    """Whether this was all that there was when it was read: what the records say may be acted upon."""


class ConfigLog(Protocol):
    """The config topic."""

    def follow(self) -> AsyncIterator[ConfigRead]:
        """
        From its beginning, for good. Without news it yields nothing; the first yield is at the end of what there was.

        Raises:
            NewerRecord: a newer worker wrote something.
            HeadraceError: it cannot be read.
        """
        ...

    async def lead(self, epoch: int) -> ConfigWriter:
        """
        Become its only writer: from now on nothing that others with a lower epoch send is taken.

        Args:
            epoch: of the item ``leader``.

        Raises:
            FencedWriter: another leader has a higher epoch.
            HeadraceError: not now.
        """
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class WriteFailed(Exception):
    """Records were not written; with ``unknown`` they may have been. The writer is of no use any more."""

    def __init__(self, text: str, *, unknown: bool) -> None:
        super().__init__(text)
        self.unknown = unknown


class ConfigWriter(Protocol):
    """The leader's way into the config topic."""

    async def write(self, records: Sequence[ConfigRecord]) -> int:
        """
        Write records in one transaction: all are seen, or none. Returns the offset of the last one. When it returns
        they are committed.

        Raises:
            WriteFailed: another leader is there, or the cluster did not take them.
        """
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class StatusLog(Protocol):
    """The status topic; all workers write it."""

    def follow(self) -> AsyncIterator[tuple[Sequence[StatusRecord], bool]]:
        """Records from its beginning, for good, and whether that was all there was; as ``ConfigLog.follow``."""
        ...

    async def write(self, records: Sequence[StatusRecord]) -> None:
        """
        Write records; in the topic when it returns.

        Raises:
            HeadraceError: they may not be there.
        """
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class EventLog(Protocol):
    """The topic of events; all workers write it."""

    def follow(self) -> AsyncIterator[Sequence[Happened]]:
        """From its beginning, for good."""
        ...

    async def write(self, events: Sequence[Happened]) -> None:
        """
        Write events; in the topic when it returns.

        Raises:
            HeadraceError: they may not be there.
        """
        ...

    async def close(self) -> None:
        """Let go."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectorOffset:
    """A position as Kafka Connect shows it; ``offset`` None: forget it."""

    partition: Mapping[str, Any]
    """Of a source ``{"split": …}``, of a sink ``{"kafka_topic", "kafka_partition"}``."""
    offset: Mapping[str, Any] | None
    """Of a source its position, of a sink ``{"kafka_offset"}``."""


class OffsetStore(Protocol):
    """Positions of sources in the offset topic, and of sinks in their groups."""

    async def read(self, connector: str, kind: str, config: Config) -> Sequence[ConnectorOffset]:
        """All that is committed."""
        ...

    async def change(
        self, connector: str, kind: str, config: Config, generation: int, offsets: Sequence[ConnectorOffset] | None
    ) -> None:
        """
        Set positions, or forget them. None of the connector's tasks can commit anything after that. Offsets of a sink
        beyond an end of their log become that end.

        Args:
            generation: higher than that of any task.
            offsets: None: forget all.

        Raises:
            BadCommand: an offset cannot be one, or is of a partition that a sink cannot read, as it is not there:
                nothing was changed.
            HeadraceError: something is still open, or not now.
        """
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class Membership(Protocol):
    """A worker's place in the work group."""

    def declare(self, declaration: Declaration) -> None:
        """What there is to do, from now on; the first one joins."""
        ...

    def retire(self) -> None:
        """Be given nothing any more; what it gives up goes to others at once."""
        ...

    async def poll(self, timeout_ms: float) -> WorkChange | None:
        """
        What has changed for this worker; None: nothing within ``timeout_ms``.

        Raises:
            HeadraceError: why it cannot be a member; what it did is lost by then.
        """
        ...

    def give_up(self, items: Collection[str]) -> None:
        """Nothing runs of these any more."""
        ...

    def refuse(self, item: str, token: int) -> None:
        """A higher token than the item's epoch was met; its epoch is raised above it."""
        ...

    @property
    def suspended(self) -> bool:
        """Whether others may have its items by now."""
        ...

    async def close(self) -> None:
        """Leave: its items go to others at once."""
        ...


# --- for REST -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leader:
    """Who writes the configuration."""

    worker_id: str
    """``host:port`` of its REST interface."""
    url: str
    """``http://host:port``."""
    is_me: bool = field(default=False)


class Herd(Protocol):
    """
    The view of all workers, and commands. Reading asks nobody: it is what this worker has read so far. Commands return
    when the change is in the config topic, committed, and read by this worker; the tasks follow later.

    Commands raise ``core.refusals.Refusal``: ``NotLeader`` (ask its ``url``; None: 409, nobody leads for now),
    ``NoSuchConnector`` 404, ``BadCommand`` 400, ``Conflict`` 409, ``NotWritten`` 500. Where one is raised nothing was
    written, but for ``NotWritten(unknown=True)``.
    """

    @property
    def state(self) -> HerdState:
        """Connectors, their configurations, target states and tasks; not to be changed."""
        ...

    @property
    def statuses(self) -> Statuses:
        """How connectors and tasks are, and the topics of each; not to be changed."""
        ...

    @property
    def leader(self) -> Leader | None:
        """Who leads, as the config topic says; None: nobody ever did."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether both topics were read to their end once."""
        ...

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that was read: of ``state``, ``statuses``, or who leads."""
        ...

    def events(self, name: str, limit: int, kind: str | None = None) -> Sequence[Happened]:
        """The newest events of a connector that were read, in their order; at most 100 are kept."""
        ...

    async def put_config(
        self, name: str, config: Config, *, only_new: bool = False, target: TargetState | None = None
    ) -> bool:
        """
        Create a connector, or give it another configuration; whether it was created. ``config`` was validated.

        Args:
            only_new: raise ``Conflict`` where there is one of this name.
            target: of a new one; None: started. One that is there keeps its own.
        """
        ...

    async def patch_config(self, name: str, changes: Mapping[str, str | None]) -> Config:
        """Set some keys, and remove those that are None; the whole new configuration. The caller validates before."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a connector with its tasks; its positions stay, as with Kafka."""
        ...

    async def set_target(self, name: str, target: TargetState) -> None:
        """Start or resume, pause, or stop it. A stopped connector has no tasks."""
        ...

    async def restart(
        self, name: str, *, connector: bool = True, tasks: Collection[int] | None = (), only_failed: bool = False
    ) -> None:
        """
        Have the connector's watcher, tasks, or both begin anew.

        Args:
            tasks: their numbers; None: all.
            only_failed: only those that have failed, or wait to be started again.
        """
        ...

    async def offsets(self, name: str) -> Sequence[ConnectorOffset]:
        """Its committed positions; any worker answers."""
        ...

    async def change_offsets(self, name: str, offsets: Sequence[ConnectorOffset] | None) -> None:
        """Set positions, or forget all (None). ``BadCommand`` unless the connector is stopped."""
        ...

    async def reset_topics(self, name: str) -> None:
        """Forget which topics it has used; any worker does it."""
        ...


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What another worker answered."""

    status: int
    """Of HTTP."""
    body: bytes
    """JSON, or nothing."""
    location: str | None = None
    """The header."""


class Forwarding(Protocol):
    """Requests of REST to the worker that leads."""

    async def send(
        self,
        url: str,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: bytes,
        authorization: str = "",
    ) -> Forwarded:
        """
        One request, once.

        Args:
            url: of the worker, ``http://host:port``.
            path: percent-encoded.
            authorization: the header; none where it is empty.

        Raises:
            NotLeader: nobody is there; it was not carried out.
            headrace_common.core.errors.NetworkFailed: no answer, or not in time; it may have been carried out.
        """
        ...


class Callers(Protocol):
    """
    What the cluster says of those who ask this worker; it counts for 5 s.

    All raise ``CoordinatorNotAvailable`` or ``Overloaded``: it cannot be asked now, so nobody is let in.
    """

    async def let_everybody(self) -> bool:
        """Whether the cluster is not closed, so that nobody is asked who it is."""
        ...

    async def ask_by_bearer(
        self, bearer: Secret, questions: Sequence[AccessQuestion], change: AnnouncedChange | None = None
    ) -> Sequence[str]:
        """
        Why who shows ``bearer`` may not do each of these; empty: it may.

        Args:
            change: what is done next if it may one of these: the cluster's audit has it first.

        Raises:
            headrace_common.core.errors.Unauthenticated: it is nobody's.
            headrace_common.core.errors.AuditUnavailable: ``change`` must not be done.
        """
        ...

    async def ask_by_ticket(self, ticket: bytes, purpose: str, questions: Sequence[AccessQuestion]) -> Sequence[str]:
        """
        The same of the owner of a ticket, as far as it was made for these, for this worker, and for ``purpose``.

        Raises:
            headrace_common.core.errors.Unauthenticated: it is none, or none any more.
        """
        ...

    async def is_worker(self, ticket: bytes, purpose: str) -> bool:
        """Whether a ticket was made for a worker of the group. Raises: as ``ask_by_ticket``."""
        ...

    async def make_ticket(
        self, bearer: Secret, endpoint: str, purpose: str, questions: Sequence[AccessQuestion]
    ) -> bytes:
        """
        A ticket for the worker at ``endpoint``, of who shows ``bearer``, for what it may of these.

        Raises:
            headrace_common.core.errors.Unauthenticated: it is nobody's any more.
            headrace_common.core.errors.Denied: it may none of these any more.
        """
        ...

    async def make_own_ticket(self, endpoint: str, purpose: str) -> bytes:
        """A ticket for the worker at ``endpoint``, which says that a worker of the group asks it."""
        ...
