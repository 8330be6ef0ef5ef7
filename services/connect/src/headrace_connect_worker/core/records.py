"""
Records of the config topic and the status topic, as values; ``encoding`` says how they stand there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class TargetState(StrEnum):
    """Kafka's words for what a connector is to do."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class RunState(StrEnum):
    """What a connector or a task does; Kafka's words, and ``STARTING``."""

    UNASSIGNED = "UNASSIGNED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"


@dataclass(frozen=True, slots=True)
class SplitSpec:
    """A part of a source, as ``headrace_connect.Split`` has it."""

    id: str
    detail: Mapping[str, Any] = field(default_factory=dict, hash=False)


# --- the config topic -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectorConfigured:
    """A connector's properties; None: it was deleted."""

    name: str
    properties: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class TargetSet:
    """What it is to do; None: the connector was deleted."""

    name: str
    target: TargetState | None


@dataclass(frozen=True, slots=True)
class TaskConfigured:
    """One task of a generation, which counts when its ``TasksCommitted`` does."""

    name: str
    task: int
    generation: int
    splits: tuple[SplitSpec, ...]
    """Of a source; a sink's tasks have none."""


@dataclass(frozen=True, slots=True)
class TaskDropped:
    """There is no such task any more."""

    name: str
    task: int


@dataclass(frozen=True, slots=True)
class TasksCommitted:
    """A generation of tasks; ``count`` None: the connector was deleted."""

    name: str
    count: int | None
    generation: int = 0
    config_offset: int = -1
    """Of the ``ConnectorConfigured`` that the properties are from."""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RestartSaid:
    """Somebody wants it to begin anew."""

    name: str
    connector: bool
    tasks: tuple[int, ...] | None
    """None: all of them."""
    only_failed: bool


@dataclass(frozen=True, slots=True)
class RestartDropped:
    """The connector was deleted."""

    name: str


@dataclass(frozen=True, slots=True)
class LeaderSaid:
    """From here on this worker writes."""

    worker_id: str
    url: str
    """Where its REST interface is: ``http://host:port``."""
    epoch: int
    """Of the item ``leader``."""


ConfigRecord = (
    ConnectorConfigured
    | TargetSet
    | TaskConfigured
    | TaskDropped
    | TasksCommitted
    | RestartSaid
    | RestartDropped
    | LeaderSaid
)


# --- the status topic -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status:
    """How a connector (``task`` None) or a task is, by who has it; ``state`` None: the record is to be forgotten."""

    name: str
    task: int | None
    state: RunState | None
    trace: str = ""
    worker_id: str = ""
    epoch: int = 0
    """Of the item ``c/NAME`` or ``t/NAME/N`` of who says it; a lower one than what is known is out of date."""
    fenced: int = 0
    """The generation that a newer owner has fenced; the leader writes a higher one. 0: none."""


@dataclass(frozen=True, slots=True)
class TopicUsed:
    """A connector writes to a topic, or reads it; ``task`` -1: forget it."""

    name: str
    topic: str
    task: int
    found_ms: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """What a watcher has found to do; ``kind`` empty: the record is to be forgotten."""

    name: str
    kind: str
    """``source`` or ``sink``."""
    config_offset: int = -1
    """Of the configuration that was asked."""
    guarantee: str = ""
    """Of a sink: ``headrace_connect.Guarantee``."""
    tasks: int = 0
    """Of a sink: so many tasks have something to do."""
    splits: tuple[SplitSpec, ...] = ()
    """Of a source."""
    worker_id: str = ""
    epoch: int = 0
    """Of the item ``c/NAME`` of who says it."""


StatusRecord = Status | TopicUsed | Work
