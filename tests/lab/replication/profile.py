"""What one world of replication is like, drawn from its seed; its times are short, so that few steps see much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from random import Random
from unittest.mock import patch

from headrace_broker.adapters import controller_cluster
from headrace_broker.config import BrokerConfig
from headrace_broker.core import leadership
from headrace_broker.engine import isr_proposals, replicate_session, replication
from headrace_common.core.configs import BROKER_SETTINGS
from headrace_controller.config import ControllerConfig, LivenessConfig
from headrace_controller.engine import deaths, elections
from headrace_lab import network, nodes
from headrace_lab.nodes import Configs

FAULTS = (
    "kill",
    "topple",
    "power",
    "power_all",
    "strand",
    "pause",
    "cut_pair",
    "cut_one_way",
    "estrange",
    "isolate",
    "cut_controllers",
    "damage",
    "wipe",
    "clean_restart",
    "reassign",
    "cancel",
    "prefer",
    "trim",
    "pause_controller",
    "lose_answers",
    "cut_store",
    "crash_controller",
    "fence",
    "reset",
)
SESSION_MS = 900


@dataclass(frozen=True)
class Profile:
    """What one world is like."""

    brokers: int
    controllers: int
    partitions: int
    replicas: int
    min_isr: int
    faults: tuple[str, ...]
    fault_every_s: float
    image_delay_s: float
    image_slow_one_in: int
    probe_delay_ms: int
    lag_ms: int
    network_s: tuple[float, float]
    hiccup: tuple[float, float]
    """Which part of the messages is held up, and for how long at most."""
    store_s: float
    """What a transaction of the metadata takes at most; some take much longer."""
    checkpoint_ms: float
    """How often brokers write down what is committed."""
    news_ms: int
    """How long followers wait at most for the news that more is committed."""
    silence_s: float
    """How long a cut connection lasts."""
    sync_s: tuple[float, float]
    stall_share: float
    """Which part of the writes waits for a store that is behind."""
    isr_call_ms: float
    """After so long a leader takes the fate of an ISR change for unknown."""
    flush_os: bool
    acks_one: bool
    writers: bool
    transactions: bool
    """Most of the writers write in transactions."""
    required: bool
    """Topics require a fencing token: only writers have one."""
    heals: bool
    """Whether all is mended in the end, and has to be well then."""

    @staticmethod
    def drawn(random: Random) -> Profile:
        """From the seed."""
        brokers = random.choice((3, 3, 3, 4))
        flush_os = random.random() < 0.25
        faults = random.sample(FAULTS, random.randint(3, 9)) + random.choice(
            ([], ["topple"], ["strand"], ["topple", "strand"])
        )
        faults += ["power", "power"] if flush_os else []  # what is known to be lost has to be lost at times
        if random.random() < 0.35:
            faults += [random.choice(faults)] * len(faults)  # some schedules need the same again and again
        profile = Profile(
            brokers=brokers,
            controllers=random.choice((1, 1, 2)),
            partitions=random.choice((1, 1, 2)),
            replicas=random.choice((3, 3, 3, 3, 2)),
            min_isr=random.choice((2, 2, 2, 1)),
            faults=tuple(faults),
            fault_every_s=random.choice((0.3, 0.6, 1.2)),
            image_delay_s=random.choice((0.005, 0.005, 0.03, 0.2)),
            image_slow_one_in=random.choice((4, 10, 50)),
            probe_delay_ms=random.choice((50, 300, 1_000)),
            lag_ms=random.choice((100, 300)),
            network_s=(0.0001, random.choice((0.0005, 0.004, 0.004, 0.015))),
            hiccup=(random.choice((0.0, 0.01, 0.025)), 0.3),
            store_s=random.choice((0.001, 0.004, 0.02)),
            checkpoint_ms=random.choice((700.0, 5_000.0, 5_000.0)),
            news_ms=random.choice((20, 20, 300)),
            silence_s=random.choice((0.6, 3.0, 10.0)),
            sync_s=random.choice(((0.0001, 0.002), (0.001, 0.02), (0.005, 0.1))),
            stall_share=random.choice((0.0, 0.0, 0.01, 0.05)),
            isr_call_ms=random.choice((200.0, 1_000.0)),
            flush_os=flush_os,
            acks_one=random.random() < 0.3,
            writers=random.random() < 0.6,
            transactions=False,
            required=False,
            heals=random.random() < 0.3,
        )
        apart = Random(repr(profile))  # so that worlds without transactions are what they were before there were any
        transactions, required = apart.random() < 0.6, apart.random() < 0.15
        return replace(profile, transactions=profile.writers and transactions, required=profile.writers and required)

    def configs(self) -> Configs:
        """Settings of the nodes."""
        liveness = LivenessConfig(
            heartbeat_interval_ms=300,
            session_timeout_ms=SESSION_MS,
            probe_delay_ms=self.probe_delay_ms,
            stream_grace_ms=300,
            tick_ms=100,
        )
        return Configs(
            broker=BrokerConfig(shutdown_ms_max=1_500, flush="os" if self.flush_os else "group"),
            controller=ControllerConfig(lease_ttl_s=2, liveness=liveness),
        )

    @contextmanager
    def in_force(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Looks by the clock come sooner than in the product, and brokers have other defaults."""
        chosen = {"replica.lag.time.max.ms": str(self.lag_ms), **settings}
        defaults = {name: replace(BROKER_SETTINGS[name], default=value) for name, value in chosen.items()}
        with ExitStack() as stack:
            stack.enter_context(patch.dict(BROKER_SETTINGS, defaults))
            for module, name, value in (
                (replication, "FOLLOWERS_CHECK_MS", 150.0),
                (replication, "CHECKPOINT_MS", self.checkpoint_ms),
                (leadership, "REFUSED_PAUSE_MS", 150),
                (leadership, "NEAR_MS", 100),
                (controller_cluster, "ISR_CALL_MS_MAX", self.isr_call_ms),
                (replicate_session, "NEWS_DELAY_MS_MAX", self.news_ms),
                (isr_proposals, "UNDECIDED_RETRY_MS", 60.0),
                (isr_proposals, "_RETRY_MS_MAX", 150.0),
                (elections, "_TICK_MS", 250),
                (deaths, "_LOOK_EVERY_MS", 500),
                (network, "SILENCE_S", self.silence_s),
                (nodes, "LEASES_MS", 250),
            ):
                stack.enter_context(patch.object(module, name, value))
            yield
