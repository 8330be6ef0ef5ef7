"""What one world of transactions is like, drawn from its seed: few kinds of faults, and sometimes much of one thing."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from headrace_broker.config import BrokerConfig
from headrace_controller.config import ControllerConfig, LivenessConfig
from headrace_coordinator.adapters.log_batches import RECORDS_PER_BATCH
from headrace_coordinator.config import CoordinatorConfig
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_lab.nodes import Configs

FAULTS = (
    "kill_broker",
    "power_broker",
    "power_all",
    "pause_broker",
    "isolate_broker",
    "move_leader",
    "slow_disk",
    "slow_brokers",
    "fail_over",
    "trim",
    "kill_coordinator",
    "pause_coordinator",
    "drain_coordinator",
    "jump_clock",
    "cut_controller",
    "cut_logs",
    "cut_marker",
    "kill_writer",
    "kill_at_end",
    "kill_at_positions",
    "slow_coordinators",
    "pause_writer",
    "twin_writer",
    "cut_writer",
    "abort_by_operator",
    "reset",
)
OF_EMPHASIS = {
    "all": ("cut_controller", "kill_broker", "kill_coordinator", "kill_writer"),
    "positions": (
        "abort_by_operator",
        "cut_controller",
        "kill_broker",
        "kill_at_end",
        "kill_at_positions",
        "kill_at_positions",
        "kill_at_positions",
        "kill_at_positions",
        "kill_coordinator",
        "slow_coordinators",
    ),
    "units": (
        "cut_controller",
        "kill_broker",
        "kill_writer",
        "twin_writer",
        "pause_writer",
        "pause_writer",
        "kill_coordinator",
    ),
    "writers": (
        "cut_controller",
        "twin_writer",
        "pause_writer",
        "abort_by_operator",
        "kill_coordinator",
        "kill_broker",
    ),
    "replicas": (
        "fail_over",
        "fail_over",
        "fail_over",
        "isolate_broker",
        "kill_broker",
        "move_leader",
        "pause_broker",
        "power_broker",
    ),
}


@dataclass(frozen=True)
class Profile:
    """See the module's text."""

    brokers: int
    coordinators: int
    shards: int
    """Of transactions; there is one of groups."""
    partitions: int
    """Of the topic that all write to."""
    writers: int
    transformers: int
    owners: int
    """Processes that own the same units."""
    drivers: bool
    """Whether these are drivers whose tasks claim the owner."""
    plain: int
    """Producers without transactions; none where brokers forget their sequences while they may yet repeat."""
    epoch_last: int
    """After how many transactions the epochs of a producer run out."""
    faults: tuple[str, ...]
    fault_every_s: float
    doubled: float
    """Share of requests that are heard twice."""
    prepares: float
    """Share of transactions that are prepared."""
    think_s: float
    successors: bool
    """Whether a transformer that died is replaced by one with another transactional id."""
    session_ms: int
    forgetful: bool
    """Whether brokers forget producers that have nothing open."""
    rows_max: int
    """Rows of a shard's log in one batch: a longer append is cut, and may end between two of its batches."""
    steps: int
    writers_max: int = 7

    @property
    def busy(self) -> int:
        """How many transactional ids write in any case, at least."""
        return self.writers + self.transformers + self.owners

    @staticmethod
    def drawn(random: Random, steps: int) -> Profile:
        """From the seed."""
        emphasis = random.choice(("all", "positions", "replicas", "replicas", "units", "writers"))
        forgetful = random.random() < 0.15
        owners = {"units": 2, "positions": 0, "replicas": 0}.get(emphasis, random.choice((1, 2)))
        return Profile(
            brokers=random.choice((2, 3)) if emphasis == "replicas" else random.choice((1, 1, 2)),
            coordinators={"replicas": 1, "positions": 2}.get(emphasis, random.choice((1, 2, 2))),
            shards={"positions": 2}.get(emphasis, random.choice((1, 2))),
            partitions=random.choice((2, 3)),
            writers={"replicas": 2, "positions": 1}.get(emphasis, random.choice((1, 2))),
            transformers={"positions": 1, "replicas": 0}.get(emphasis, random.choice((0, 1))),
            owners=owners,
            drivers=random.random() < 0.7,
            plain=0 if forgetful else random.choice((0, 0, 1)),
            epoch_last=random.choice((32_766, 32_766, 4)),
            faults=tuple(random.sample(FAULTS, random.randint(1, 5))) + OF_EMPHASIS.get(emphasis, ()),
            fault_every_s=random.choice((0.2, 0.5)),
            doubled=random.choice((0.2, 0.35)),
            prepares=random.choice((0.0, 0.2, 0.5)),
            think_s=random.choice((0.02, 0.1)),
            successors=random.random() < 0.5,
            session_ms=random.choice((900, 2_000)),
            forgetful=forgetful,
            rows_max=random.choice((1, RECORDS_PER_BATCH, RECORDS_PER_BATCH)),
            steps=steps,
        )

    def configs(self) -> Configs:
        """Of the nodes: small time constants, so that much happens in few steps."""
        liveness = LivenessConfig(heartbeat_interval_ms=self.session_ms // 3, session_timeout_ms=self.session_ms)
        return Configs(
            broker=BrokerConfig(shutdown_ms_max=2_000),
            controller=ControllerConfig(lease_ttl_s=2, liveness=liveness),
            coordinator=CoordinatorConfig(
                transactions=TransactionSettings(unit_prepared_timeout_ms=15_000),
                coordinator_append_timeout_ms=3_000,
                shutdown_ms_max=2_000,
                group_lag_interval_ms=3_600_000,
            ),
        )

    def settings(self) -> dict[str, str]:
        """Of the cluster."""
        found = {
            "transaction.state.log.num.partitions": str(self.shards),
            "offsets.topic.num.partitions": "1",
            "replica.lag.time.max.ms": "1500",
        }
        return found | ({"producer.id.expiration.ms": "1000"} if self.forgetful else {})
