"""What the world of one seed is like: its nodes, its groups, what goes wrong in it and how often."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from headrace.consumer_settings import CLASSIC, CONSUMER
from headrace_broker.config import BrokerConfig
from headrace_controller.config import ControllerConfig, LivenessConfig
from headrace_coordinator.config import CoordinatorConfig
from headrace_coordinator.core.settings import GroupSettings
from headrace_lab.nodes import Configs

FAULTS: Final = (
    "kill_coordinator",
    "pause_coordinator",
    "drain_coordinator",
    "cut_controller",
    "cut_brokers",
    "cut_members",
    "slow_images",
    "slow_members",
    "lose_connections",
    "kill_broker",
    "slow_disk",
    "kill_consumer",
    "restart_consumers",
    "close_consumer",
    "pause_consumer",
    "stop_polling",
    "hold_commits",
    "join",
    "leave",
    "start_twin",
    "break_stream",
    "create_topic",
    "grow_topic",
    "delete_topic",
    "administer",
    "jump_clocks",
)
"""Names of methods of ``Faults``."""
OFTEN: Final[tuple[tuple[str, ...], ...]] = (
    (),
    ("slow_images", "drain_coordinator"),
    ("restart_consumers", "slow_members"),
)
"""What comes on top of those that were drawn: rare bugs need these together."""
RUSH: Final = ("restart_consumers", "restart_consumers", "join", "leave", "slow_members", "kill_consumer")
"""What goes wrong in one of five worlds, all the time: what was just given moves on before its owner has said so."""
PROTOCOLS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (CLASSIC, ("range",)),
    (CLASSIC, ("roundrobin",)),
    (CLASSIC, ("sticky",)),
    (CLASSIC, ("range", "sticky")),
    *(3 * ((CLASSIC, ("cooperative-sticky",)),)),
    *(4 * ((CONSUMER, ("uniform",)),)),
    (CONSUMER, ("range",)),
)
"""With assignors; what has more to go wrong comes more often."""
SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 1_500


@dataclass(frozen=True)
class GroupProfile:
    """One group."""

    name: str
    protocol: str
    assignors: tuple[str, ...]
    by_pattern: bool
    static_share: float

    @property
    def keeps(self) -> bool:
        """Whether what stays is never given up."""
        return self.protocol == CONSUMER or self.assignors == ("cooperative-sticky",)

    @property
    def sticks(self) -> bool:
        """Whether the fewest partitions move."""
        return set(self.assignors) <= {"sticky", "cooperative-sticky", "uniform"}


@dataclass(frozen=True)
class Profile:
    """What one world is like."""

    brokers: int
    coordinators: int
    shards: int
    groups: tuple[GroupProfile, ...]
    consumers: int
    """Of each group, at the start."""
    consumers_max: int
    topics: tuple[int, ...]
    faults: tuple[str, ...]
    fault_every_s: float
    lasts_s: float
    """How long faults go on."""
    controller_session_ms: int
    gather_ms: int
    retention_minutes: int
    copies: float
    """How often an append to a shard's log arrives again, later."""
    late_commits: float
    """How often a commit leaves late."""
    delay_s: float
    """Most that a message takes between a consumer and a coordinator."""
    look_s: float
    """How often somebody reads positions."""
    seeks_back: bool

    def configs(self) -> Configs:
        """Settings of nodes: short times, so that much happens in few steps."""
        liveness = LivenessConfig(
            heartbeat_interval_ms=self.controller_session_ms // 6, session_timeout_ms=self.controller_session_ms
        )
        groups = GroupSettings(
            group_min_session_timeout_ms=1_000,
            group_initial_rebalance_delay_ms=self.gather_ms,
            group_consumer_session_timeout_ms=SESSION_MS,
            group_consumer_heartbeat_interval_ms=HEARTBEAT_MS,
            offsets_retention_minutes=self.retention_minutes,
            offsets_retention_check_interval_ms=5_000,
        )
        coordinator = CoordinatorConfig(groups=groups, group_lag_partitions_max=0, shutdown_ms_max=5_000)
        return Configs(broker=BrokerConfig(), controller=ControllerConfig(liveness=liveness), coordinator=coordinator)


def draw(rng: Random) -> Profile:
    """From the seed."""
    profile = _draw(rng)
    if rng.random() >= 0.2:
        return profile
    group = replace(profile.groups[0], protocol=CONSUMER, assignors=("uniform",), by_pattern=False, static_share=0.0)
    return replace(
        profile, brokers=1, groups=(group,), topics=(6,), faults=RUSH, fault_every_s=0.4, delay_s=0.4, consumers=3
    )


def _draw(rng: Random) -> Profile:
    """Few kinds of faults at a time, so that each kind gets its share of strange schedules."""
    groups = []
    for number in range(rng.choice((1, 1, 2))):
        protocol, assignors = rng.choice(PROTOCOLS)
        by_pattern, static_share = rng.random() < 0.3, rng.choice((0.0, 0.0, 0.5, 1.0))
        groups.append(GroupProfile(f"g{number}", protocol, assignors, by_pattern, static_share))
    return Profile(
        brokers=rng.choice((1, 1, 1, 3)),
        coordinators=rng.choice((2, 2, 3)),
        shards=rng.choice((1, 2, 2)),
        groups=tuple(groups),
        consumers=rng.choice((2, 3)),
        consumers_max=6,
        topics=tuple(rng.randint(1, 6) for _ in range(rng.choice((1, 2)))),
        faults=(*rng.sample(FAULTS, rng.randint(5, 10)), *rng.choice(OFTEN)),
        fault_every_s=rng.choice((0.4, 1.0, 2.0)),
        lasts_s=rng.choice((15.0, 25.0)),
        controller_session_ms=rng.choice((2_400, 9_000)),
        gather_ms=rng.choice((200, 2_000)),
        retention_minutes=rng.choice((10_080, 10_080, 1)),
        copies=rng.choice((0.0, 0.02, 0.1)),
        late_commits=rng.choice((0.02, 0.1, 0.3)),
        delay_s=rng.choice((0.001, 0.1, 0.4)),
        look_s=rng.choice((0.25, 0.5, 1.0)),
        seeks_back=rng.random() < 0.2,
    )
