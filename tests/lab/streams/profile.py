"""What one world of Streams is like, drawn from its seed: sizes, times, and how its workers are hurt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tests.lab.streams.programs import PROGRAMS

from headrace_broker.config import BrokerConfig
from headrace_controller.config import ControllerConfig, LivenessConfig
from headrace_coordinator.config import CoordinatorConfig
from headrace_coordinator.core.settings import GroupSettings
from headrace_lab.nodes import Configs
from headrace_streams.config import EXACTLY_ONCE, ProcessingGuarantee
from headrace_streams.core.state.cache import STATE_CACHE_BYTES

FAULTS = (
    "kill",
    "pause",
    "twin",
    "stop",
    "wipe",
    "cut",
    "abort",
    "abort",
    "reset_at",
    "stall_at",
    *("kill_at", "pause_at", "twin_at") * 2,
)
"""Names of methods of ``Faults``."""
OF_SLEEPERS = ("sleep_at", "sleep_at", "kill")
"""Tasks without state go to others while who had them sleeps with an open transaction, and wakes up."""
OF_COMERS = ("stop", "twin", "kill")
"""Tasks go from worker to worker, before the ends of transactions have come to all their partitions."""
COPIES = "copies"
SESSION_MS = 1_200
WORKER_SESSION_MS = 2_000
NEVER_IDLE_MS = 86_400_000


@dataclass(frozen=True)
class Profile:
    """See the module's text."""

    brokers: int
    coordinators: int
    partitions: int
    program: str
    faults: tuple[str, ...]
    workers: int
    """So many run at a time, if nothing hurts them."""
    standbys: int
    acceptable_lag: int
    hurts: int
    """How often workers are hurt."""
    hurt_every_s: float
    befalls: int
    """How many things befall the nodes of the cluster."""
    doubled: float
    """Share of requests that are heard twice."""
    think_s: float
    """Between two transactions of the source."""
    commit_interval_ms: int
    commit_rows: int
    batch_rows: int
    idle_after_ms: int
    transaction_timeout_ms: int
    compute_s: float
    """Most that a piece of a worker's own work takes."""
    guarantee: ProcessingGuarantee
    state_cache_bytes: int
    """0: what is asked for comes from the disk after each commit."""
    markers_s: float
    """Most that the end of a transaction takes from its coordinator to a broker."""

    @property
    def repeats(self) -> bool:
        """Whether rows of the output may come again."""
        return self.guarantee != EXACTLY_ONCE

    @staticmethod
    def drawn(random: Random) -> Profile:
        """From the seed."""
        program = random.choice([name for name in PROGRAMS if name != COPIES])
        profile = Profile(
            brokers=random.choice((1, 1, 3)),
            coordinators=random.choice((1, 2)),
            partitions=random.choice((1, 2, 2)),
            program=program,
            faults=tuple(random.sample(FAULTS, random.randint(2, 6))),
            workers=random.choice((1, 2, 2, 3)),
            standbys=random.choice((0, 0, 1)),
            acceptable_lag=random.choice((0, 20, 10_000)),
            hurts=random.randint(5, 9),
            hurt_every_s=random.choice((0.2, 0.5)),
            befalls=random.choice((0, 0, 0, 2)),
            doubled=random.choice((0.0, 0.1)),
            think_s=random.choice((0.1, 0.4)),
            commit_interval_ms=random.choice((30, 100, 300)),
            commit_rows=random.choice((5, 1_000)),
            batch_rows=random.choice((1, 3, 50)),
            # Where rows of several partitions meet, one that counts as idle may be late.
            idle_after_ms=NEVER_IDLE_MS if program == "moved" else random.choice((100, 1_000)),
            transaction_timeout_ms=random.choice((1_500, 4_000, 10_000)),
            compute_s=random.choice((0.0, 0.001, 0.01)),
            guarantee=Random(repr(random.getstate())).choice((EXACTLY_ONCE, EXACTLY_ONCE, "at_least_once")),
            state_cache_bytes=Random(f"{random.getstate()} cache").choice((0, 2_000, STATE_CACHE_BYTES)),
            markers_s=0.0,
        )
        return profile._with_lot(Random(f"{random.getstate()} lot").random())

    def _with_lot(self, share: float) -> Profile:
        """In some worlds few things befall workers, those that seldom come together in the others."""
        if share < 0.1:
            slow = replace(self, hurts=4, hurt_every_s=2.0, transaction_timeout_ms=10_000)
            return replace(slow, program=COPIES, guarantee=EXACTLY_ONCE, faults=OF_SLEEPERS)
        if share < 0.2:
            return replace(self, markers_s=0.3, faults=OF_COMERS, workers=2)
        return self

    def configs(self) -> Configs:
        """Of the nodes: short times, so that much happens in few steps."""
        liveness = LivenessConfig(heartbeat_interval_ms=SESSION_MS // 3, session_timeout_ms=SESSION_MS)
        return Configs(
            broker=BrokerConfig(shutdown_ms_max=2_000),
            controller=ControllerConfig(lease_ttl_s=2, liveness=liveness),
            coordinator=CoordinatorConfig(
                groups=GroupSettings(
                    group_consumer_session_timeout_ms=WORKER_SESSION_MS,
                    group_consumer_heartbeat_interval_ms=WORKER_SESSION_MS // 4,
                    group_rejoin_grace_ms=WORKER_SESSION_MS // 4,
                ),
                coordinator_append_timeout_ms=3_000,
                shutdown_ms_max=2_000,
                group_lag_interval_ms=3_600_000,
            ),
        )

    def settings(self) -> dict[str, str]:
        """Of the cluster."""
        return {
            "transaction.state.log.num.partitions": "2",
            "offsets.topic.num.partitions": "1",
            "replica.lag.time.max.ms": "1500",
        }
