"""What the world of one seed of work groups is like: its nodes, its work, what goes wrong in it and how often."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from headrace.work_types import Declaration, WorkItem, declare
from headrace_broker.config import BrokerConfig
from headrace_controller.config import ControllerConfig, LivenessConfig
from headrace_coordinator.config import CoordinatorConfig
from headrace_coordinator.core.settings import GroupSettings
from headrace_lab.nodes import Configs

FAULTS: Final = (
    "kill_coordinator",
    "pause_coordinator",
    "cut_worker",
    "lose_connections",
    "kill_worker",
    "pause_worker",
    "close_worker",
    "join",
    "replace",
    "upgrade",
    "raise_tokens",
    "delete_group",
)
"""Names of methods of ``Faults``."""


@dataclass(frozen=True)
class Profile:
    """What one world is like."""

    brokers: int
    coordinators: int
    workers: int
    workers_max: int
    declarations: tuple[Declaration, ...]
    """Of the program's versions."""
    faults: tuple[str, ...]
    fault_every_s: float
    lasts_s: float
    """How long faults go on."""
    controller_session_ms: int
    give_up_s: float
    """Most that it takes a worker to stop an item."""

    def configs(self) -> Configs:
        """Settings of nodes: short times, so that much happens in few steps."""
        liveness = LivenessConfig(
            heartbeat_interval_ms=self.controller_session_ms // 6, session_timeout_ms=self.controller_session_ms
        )
        groups = GroupSettings(group_consumer_session_timeout_ms=6_000, group_consumer_heartbeat_interval_ms=1_500)
        coordinator = CoordinatorConfig(groups=groups, group_lag_partitions_max=0, shutdown_ms_max=5_000)
        return Configs(broker=BrokerConfig(), controller=ControllerConfig(liveness=liveness), coordinator=coordinator)


def draw(rng: Random) -> Profile:
    """From the seed."""
    names = [f"i{n}" for n in range(rng.randint(2, 9))]
    share = rng.choice((0.0, 0.5, 1.0))
    items = {
        name: WorkItem(name, rng.choice((1, 1, 3)), *((True, rng.randrange(2)) if rng.random() < share else (False, 0)))
        for name in names
    }
    versions = [rng.sample(names, rng.randint(1, len(names))) for _ in range(rng.choice((1, 2, 3)))]
    return Profile(
        brokers=rng.choice((1, 1, 3)),
        coordinators=2,
        workers=rng.choice((2, 3)),
        workers_max=5,
        declarations=tuple(
            declare([items[name] for name in version], fingerprint=f"v{n}", acceptable_recovery_lag=10)
            for n, version in enumerate(versions)
        ),
        faults=tuple(rng.sample(FAULTS, rng.randint(4, 8))),
        fault_every_s=rng.choice((0.5, 1.0, 2.0)),
        lasts_s=rng.choice((15.0, 25.0)),
        controller_session_ms=rng.choice((2_400, 9_000)),
        give_up_s=rng.choice((0.0, 0.5, 3.0)),
    )
