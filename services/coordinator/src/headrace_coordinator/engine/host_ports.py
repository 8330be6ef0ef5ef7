"""What all shards of a process share: the world behind ports, time, tasks and settings. Made by ``main``."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_common.core.access.control import Control
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.tasks import TaskRunner
from headrace_coordinator.core.room import Room, groups, transactional_ids
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_coordinator.core.values import Moment
from headrace_coordinator.engine.marker_driver import MarkerDriver
from headrace_coordinator.engine.producer_ids import SpareProducerIds
from headrace_coordinator.ports import Cluster, Enrolments, Measures, Patterns, ShardLogs


@dataclass(frozen=True, slots=True)
class HostPorts:
    """What all hosts of a process share."""

    logs: ShardLogs
    cluster: Cluster
    patterns: Patterns
    measures: Measures
    enrolments: Enrolments
    clock: Clock
    tasks: TaskRunner
    settings: GroupSettings
    append_timeout_ms: float
    """How long whoever waits for an answer waits."""
    room: Room = field(default_factory=groups)
    """For groups."""
    access: Control = field(default_factory=Control)
    """Who may do what; it has the rules of an image before others are told of that."""

    def moment(self) -> Moment:
        return Moment(self.clock.monotonic_ms(), self.clock.now_ms())


@dataclass(frozen=True, slots=True)
class TransactionHostPorts:
    """What hosts of transactions share beyond that."""

    shared: HostPorts
    settings: TransactionSettings
    spares: SpareProducerIds
    driver: MarkerDriver
    room: Room = field(default_factory=transactional_ids)
    """For transactional ids."""
