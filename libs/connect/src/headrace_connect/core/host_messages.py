"""
What a worker and a host process say to each other. The worker commands; the host reports.

A task of a host is named by its connector and its number. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headrace_connect.core.counts import Counts
from headrace_connect.core.errors import Fault
from headrace_connect.core.progress import Progress
from headrace_connect.core.task import State

NO_GENERATION = 0
"""Of tasks of sinks: their group fences them."""


class Kind(StrEnum):
    """What a connector is."""

    SOURCE = "source"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class SplitForm:
    """``Split``, as JSON has it."""

    id: str
    detail: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class PositionForm:
    """Where reading a partition goes on; None: as if it was never read."""

    topic: str
    partition: int
    position: int | None


# --- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """Connect to the cluster; comes first, once. ``HostOpened`` answers."""

    cluster: Mapping[str, Any]
    """The fields of ``RunConfig``."""
    silence_ms: int
    """A host whose event loop stands still for so long is taken for crashed."""
    end_ms: int = 10_000
    """So long a host that ends waits for its tasks; their successors do what they have not committed by then."""
    directories: tuple[str, ...] | None = None
    """``Secrets``: where files with secrets may be; None: anywhere."""
    names: tuple[str, ...] | None = None
    """``Secrets``: variables of the environment that may be read; None: all."""


@dataclass(frozen=True, slots=True)
class StartTask:
    """
    Run a task; one of the same name that runs ends before. ``TaskReport`` says what becomes of it, for good.
    """

    connector: str
    task: int
    config: Mapping[str, str]
    """With references in the place of secrets."""
    splits: tuple[SplitForm, ...] = ()
    """Of a source."""
    generation: int = NO_GENERATION
    """Of a source: with which its tasks claim their owner."""
    paused: bool = False
    """Open everything, and read nothing."""


@dataclass(frozen=True, slots=True)
class PauseTask:
    """Commit what was read, and read no more; everything stays open."""

    connector: str
    task: int


@dataclass(frozen=True, slots=True)
class ResumeTask:
    """Read on."""

    connector: str
    task: int


@dataclass(frozen=True, slots=True)
class StopTask:
    """Commit what was read and let go of everything. A report of ``UNASSIGNED`` is the last one."""

    connector: str
    task: int


@dataclass(frozen=True, slots=True)
class Watch:
    """Ask the connector what there is to do, at once and again and again. ``WatchReport`` says it when it changes."""

    connector: str
    number: int
    """Of this question; reports have it too."""
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Unwatch:
    """Ask no more."""

    connector: str


@dataclass(frozen=True, slots=True)
class Validate:
    """What is wrong with a configuration, and outside. ``Answer`` has ``kind``, ``definitions``, ``problems``."""

    id: int
    config: Mapping[str, str]
    offline: bool = False
    """Ask nobody."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The first records of a source. ``Answer`` has ``records``."""

    id: int
    config: Mapping[str, str]
    records_max: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Decide what tasks of a sink that is about to be deleted have prepared. ``Answer`` has ``settled``: how many."""

    id: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Rewind:
    """Change the positions that the target of a sink has. ``Answer`` has ``changed``: of how many partitions."""

    id: int
    config: Mapping[str, str]
    positions: tuple[PositionForm, ...]
    forget_others: bool = False
    """Of all other partitions that it reads, too."""


@dataclass(frozen=True, slots=True)
class Verify:
    """
    Whether the target of a sink has what its topics say. ``Answer`` has what ``runtime.verifying`` gives; some
    ``VerifyProgress`` come before.
    """

    id: int
    config: Mapping[str, str]
    topics: tuple[str, ...] = ()
    """Of those that the sink reads; none: all of them."""
    records_max: int = 100_000
    """The newest of each partition that the target has."""
    repair: bool = False
    """Write what is missing or different. No task of the connector may run."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Have tables of a source be read again beside its changes. ``Answer`` has ``tables``: their full names."""

    id: int
    config: Mapping[str, str]
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Describe:
    """The settings of a connector. ``Answer`` has ``class``, ``kind``, ``version``, ``definitions``."""

    id: int
    plugin: str
    """As ``connector.class`` has it."""


@dataclass(frozen=True, slots=True)
class ListPlugins:
    """The connectors that have a name here. ``Answer`` has ``plugins``."""

    id: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? ``Pong`` answers."""

    number: int


Command = (
    Open
    | StartTask
    | PauseTask
    | ResumeTask
    | StopTask
    | Watch
    | Unwatch
    | Validate
    | Preview
    | Settle
    | Rewind
    | Verify
    | Snapshot
    | Describe
    | ListPlugins
    | Ping
)

# --- reports --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostOpened:
    """It is connected, and takes tasks."""

    pid: int
    python: str
    """Version of Python."""
    package: str
    """Version of ``headrace-connect``."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task does now."""

    connector: str
    task: int
    generation: int
    state: State
    reason: str = ""
    """Why it has failed last; empty while it works."""
    trace: str = ""
    """Where, for people."""
    fault: Fault | None = None
    """Whose failure it was; None while it works. ``FENCED`` with ``UNASSIGNED``: a newer task has taken over."""
    restarts: int = 0
    """How often in a row it was started again."""
    wait_ms: int = 0
    """With ``RESTARTING``: so long until it is started again."""


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A task writes to this topic, or reads it, for the first time since it was started."""

    connector: str
    task: int
    topic: str


@dataclass(frozen=True, slots=True)
class Told:
    """A task's connector has told something: see ``core.events``."""

    connector: str
    task: int
    kind: str
    text: str
    detail: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class WatchReport:
    """What there is to do of a connector."""

    connector: str
    number: int
    kind: Kind
    guarantee: str
    """Of a sink: ``Guarantee``; of a source empty."""
    tasks: int
    """How many tasks have something to do: at most ``tasks.max``."""
    splits: tuple[SplitForm, ...] = ()
    """Of a source; nobody has shared them yet."""


@dataclass(frozen=True, slots=True)
class WatchFailed:
    """The connector does not say it. It is asked again where the world is at fault, else not."""

    connector: str
    number: int
    fault: Fault
    reason: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """To a question with this id."""

    id: int
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The question with this id has failed."""

    id: int
    fault: Fault
    reason: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far the question with this id is."""

    id: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """What a task has counted since it was started."""

    connector: str
    task: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class Pong:
    """To the ping with this number."""

    number: int
    counted: tuple[TaskCounts, ...] = ()
    """Of tasks that have counted something since the pong before."""


Question = Validate | Preview | Settle | Rewind | Verify | Snapshot | Describe | ListPlugins
"""Has an ``id``; ``Answer`` or ``NoAnswer`` follows."""
Report = (
    HostOpened | TaskReport | TopicSeen | Told | WatchReport | WatchFailed | Answer | NoAnswer | VerifyProgress | Pong
)
