"""
One cluster in one process, from one seed: brokers, controllers, their store, clients, a network and what goes wrong.

``Profile`` says how big it is and which faults it has; it is drawn from the seed as well, few kinds of faults at a
time, so that each gets its share of strange schedules.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.simulation.brokers import Broker
from tests.simulation.clients import Consumer, Producer
from tests.simulation.compaction import COMPACTED_EVERY, Cleaner, Keyed, plain_batch
from tests.simulation.controllers import Controller
from tests.simulation.faults import Faults
from tests.simulation.invariants import Invariants, Violation
from tests.simulation.schedule import Network, Schedule
from tests.simulation.store import Snapshot, Store
from tests.simulation.writers import TakeOvers, Writer

from headrace_common.core.configs import TopicConfig, min_isr_in_force
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicId
from headrace_common.core.image import Partition
from headrace_controller.core.election import Rules
from headrace_verify.checker import Assign, Operation, Poll, Send, Verdict, check

TOPIC = TopicId(b"simulated topic!")
FAULTS = (
    "kill",
    "power",
    "power_all",
    "pause",
    "cut_pair",
    "cut_one_way",
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
    "cut_store",
    "crash_controller",
    "fence",
)
MODES = ("both", "safety", "liveness")
"""Faults and then healing; twice as many faults and no healing; few faults and then healing."""
CALM_MS_MAX = 40_000.0
WRITERS_IN = (2, 3)
"""Of each five seeds; the others stay as they were before there were writers."""


@dataclass(frozen=True)
class Profile:
    """What one world is like."""

    brokers: int
    partitions: int
    replicas: int
    min_isr: int
    flush_os: bool
    faults: tuple[str, ...]
    fault_every_ms: float
    image_delay_ms: float
    image_slow_one_in: int
    steps: int
    acks_one: bool
    compacted: bool = False
    """Whether records have keys and every broker compacts; worlds of a seed do by the seed."""
    writers: bool = False
    """Whether writers take over from each other with fencing tokens; worlds of a seed have them by the seed."""

    @staticmethod
    def drawn(rng: Random, steps: int) -> Profile:
        """From the seed."""
        brokers = rng.choice((3, 3, 3, 4, 5))
        replicas = rng.choice((3, 3, 3, 3, 2)) if brokers < 5 else rng.choice((3, 4, 5))
        kinds = rng.sample(FAULTS, rng.randint(3, 9))
        return Profile(
            brokers=brokers,
            partitions=rng.choice((1, 1, 2)),
            replicas=replicas,
            min_isr=rng.choice((2, 2, 2, 1)),
            flush_os=rng.random() < 0.2,
            faults=tuple(kinds),
            fault_every_ms=rng.choice((150.0, 300.0, 600.0)),
            image_delay_ms=rng.choice((5.0, 5.0, 30.0, 200.0)),
            image_slow_one_in=rng.choice((4, 10, 50)),
            steps=steps,
            acks_one=rng.random() < 0.3,
        )


@dataclass
class Result:
    """What a run found."""

    seed: int
    steps: int
    counts: Counter[str] = field(default_factory=Counter)
    anomaly: str | None = None
    """Name of the invariant or anomaly; None: none."""
    text: str = ""
    story: str = ""


class World:
    """Everything; ``run`` runs it."""

    store_id = 300

    def __init__(self, seed: int, steps: int = 1_500, profile: Profile | None = None, mode: str = "both") -> None:
        assert mode in MODES, f"MODE is one of {MODES}"
        self.seed = seed
        self.mode = mode
        self.schedule = Schedule(seed)
        self.rng = self.schedule.rng
        self.profile = profile or Profile.drawn(self.rng, steps)
        self.network = Network(self.schedule)
        self.counts: Counter[str] = Counter()
        self.history: list[Operation] = []
        self.values: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self.calm = False
        self.config = TopicConfig.effective({"segment.bytes": "1048576"}, {})
        self.keyed: Keyed | None = None
        if (seed % COMPACTED_EVERY == 0 and profile is None) or (profile is not None and profile.compacted):
            self.keyed = Keyed(seed, self.config)
        self._value = 0
        self._rules: dict[tuple[int, int, int], Rules] = {}
        ids = [NodeId(n) for n in range(1, self.profile.brokers + 1)]
        partitions = {}
        for number in range(self.profile.partitions):
            id = PartitionId(TOPIC, number)
            first = self.rng.randrange(len(ids))
            replicas = tuple((ids + ids)[first : first + self.profile.replicas])
            partitions[id] = Partition(id, replicas, replicas, replicas[0], 0, 0)
        self.first_image = Snapshot(0, {}, {}, {}, 0)
        # Nobody is registered: the leaders come with the brokers.
        self.store = Store(Snapshot(0, {}, {i: _unborn(p) for i, p in partitions.items()}, {}, 0))
        self.invariants = Invariants(self)
        self.brokers = {id: Broker(id, self) for id in ids}
        self.controllers = [Controller(101 + n, self) for n in range(self.rng.choice((2, 3)))]
        self.producers: dict[int, Producer] = {}
        self.consumers: list[Consumer] = []
        self.values[(-1, -1, -1)] = ()  # a fence: a record that no consumer sees
        self.writers_rng = Random(seed)
        self.writers: dict[int, Writer] = {}
        self._clients()
        if (seed % 5 in WRITERS_IN and profile is None) or (profile is not None and profile.writers):
            for id in partitions:
                self.schedule.after(300.0, TakeOvers(id, self).tick)
        if self.keyed is not None:
            for broker in self.brokers.values():
                self.schedule.after(500.0, Cleaner(broker, self, self.keyed).tick)
        self.store.on_commit = self._stored
        for broker in self.brokers.values():
            broker.start(None)
            self.schedule.after(self.rng.random() * 100, broker.tick)
        for controller in self.controllers:
            self.schedule.after(self.rng.random() * 100, controller.tick)
        for producer in self.producers.values():
            self.schedule.after(100 + self.rng.random() * 100, producer.tick)
        for consumer in self.consumers:
            self.schedule.after(200 + self.rng.random() * 100, consumer.tick)

    def _clients(self) -> None:
        for id in self.store.snapshot.partitions:
            for turn in range(2):
                acks = 1 if turn and self.profile.acks_one else -1
                number = 201 + len(self.producers)
                self.producers[number] = Producer(number, id, acks, self)
            for turn in range(2):
                self.consumers.append(Consumer(250 + len(self.consumers), id, self, followers=bool(turn)))

    # --- what the others ask ------------------------------------------------------------------------------

    def next_value(self) -> int:
        """A value that nobody sent yet."""
        self._value += 1
        return self._value

    def batch(self, values: tuple[int, ...], producer: int, epoch: int, sequence: int) -> bytes:
        """What a producer sends."""
        make = plain_batch if self.keyed is None else self.keyed.batch
        return make(values, producer, epoch, sequence)

    def config_of(self, broker: NodeId) -> TopicConfig:
        """The topic's settings, as this broker has them."""
        return self.config if self.keyed is None else self.keyed.config_of(broker)

    def rules_of(self, partition: Partition) -> Rules:
        """As ``settling.rules_of``."""
        key = (len(partition.replicas), len(partition.adding), len(partition.removing))
        rules = self._rules.get(key)
        if rules is None:
            min_isr = min_isr_in_force(self.profile.min_isr, key[0], adding=key[1], removing=key[2])
            rules = self._rules[key] = Rules(min_isr)
        return rules

    def active_for(self, broker: Broker) -> Controller | None:
        """Which controller a broker asks: one that it believes to be active, not always rightly."""
        believing = [c for c in self.controllers if c.term is not None and c.up]
        if not believing:
            return None
        if len(believing) > 1 and self.rng.random() < 0.3:
            return self.rng.choice(believing)
        return max(believing, key=lambda c: c.term or 0)

    def token_told(self, error: HeadraceError) -> int:
        """The token that a refusal names."""
        found = re.search(r"token is (-?\d+)", str(error))
        return -1 if found is None else int(found[1])

    def leader_by_hearsay(self, id: PartitionId) -> tuple[int, int]:
        """What a client finds out: from a broker that it asks, as old as that broker's image."""
        broker = self.brokers[NodeId(self.rng.randint(1, self.profile.brokers))]
        partition = broker.image.partitions.get(id) if broker.up else None
        return (NO_NODE, -1) if partition is None else (partition.leader, partition.leader_epoch)

    def offer_image(self, broker: Broker) -> None:
        """What is missing to a broker's image is on its way."""
        if broker.image.revision < self.store.snapshot.revision:
            self._send_image(broker, self.store.snapshot)

    def _send_image(self, broker: Broker, snapshot: Snapshot) -> None:
        delay = self.rng.random() * self.profile.image_delay_ms
        if not self.calm and self.rng.random() * self.profile.image_slow_one_in < 1:
            delay += self.rng.random() * 2_000.0
        self.schedule.after(delay, self._image_arrives, broker, broker.incarnation, snapshot)

    def _image_arrives(self, broker: Broker, incarnation: int, snapshot: Snapshot) -> None:
        if not broker.up or broker.incarnation != incarnation or snapshot.revision <= broker.image.revision:
            return
        if broker.paused:
            broker.inbox.append((self._image_arrives, (broker, incarnation, snapshot)))
        elif any(self.network.reaches(c.id, broker.id) for c in self.controllers):
            broker.take(snapshot)

    def _stored(self, old: Snapshot, new: Snapshot) -> None:
        self.invariants.stored(old, new)
        for id, partition in new.partitions.items():
            before = old.partitions[id]
            if partition is not before:
                for member in partition.isr:
                    broker = self.brokers[member]
                    if member not in before.isr and broker.up and broker.broker_epoch == new.nodes[member].epoch:
                        broker.unsound.discard(id)
                if partition.leader != before.leader:
                    self.counts["leader changes"] += 1
                else:
                    self.counts["isr changes"] += 1
        for broker in self.brokers.values():
            if broker.up:
                self._send_image(broker, new)

    def restart_later(self, broker: Broker, token: int | None) -> None:
        """Start a broker that is down some time from now."""
        pause = 30.0 + self.rng.random() * self.rng.choice((200.0, 1_500.0))
        self.schedule.after(pause, self._restart, broker, broker.incarnation, token)

    def _restart(self, broker: Broker, incarnation: int, token: int | None) -> None:
        if not broker.up and broker.incarnation == incarnation and not broker.stays_down:
            broker.start(token)

    # --- running ------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """The whole life of the cluster: a quiet start, faults, healing, the last look."""
        result = Result(self.seed, 0)
        faults = Faults(self)
        try:
            self.until(self.serves, 20_000.0, "start")
            self.schedule.after(self.profile.fault_every_ms, faults.tick)
            share = {"both": 1.0, "safety": 2.0, "liveness": 0.4}[self.mode]
            stop = self.schedule.steps + int(self.profile.steps * share)
            while self.schedule.steps < stop and self.step():
                pass
            if self.mode != "safety":
                faults.heal()
                self.calm = True
                self.until(lambda: self._healed(faults.broken), CALM_MS_MAX, "liveness")
                self.invariants.replicas_agree()
            self.last_look()
        except Violation as violation:
            result.anomaly, result.text = violation.name, str(violation)
        except Exception as error:  # noqa: BLE001  # whatever breaks in a core is a find, and needs its seed
            result.anomaly = type(error).__name__
            result.text = f"{error}\n{traceback.format_exc(limit=-6)}"
        if result.anomaly is not None:
            result.story = f"{self.profile}\n{self.schedule.story()}"
        result.steps = self.schedule.steps
        result.counts = self.counts
        return result

    def step(self) -> bool:
        """One event and all checks."""
        if not self.schedule.step():
            return False
        self.invariants.check()
        return True

    def until(self, condition: Callable[[], object], ms_max: float, name: str) -> None:
        """Step until ``condition`` holds; it is looked at every few steps."""
        end = self.schedule.now + ms_max
        while not (self.schedule.steps % 16 == 0 and condition()):
            if self.schedule.now > end or not self.step():
                raise Violation(name, f"not within {ms_max:.0f} ms: {self.why()}")

    def serves(self) -> bool:
        """Everybody is in sync."""
        partitions = self.store.snapshot.partitions.values()
        return all(p.leader != NO_NODE and len(p.isr) == len(p.replicas) for p in partitions)

    def _healed(self, broken: NodeId | None) -> bool:
        """Liveness: every ISR change resolved, every produce answered, everybody who lives is in sync."""
        return not self.why(broken)

    def why(self, broken: NodeId | None = None) -> str:
        """What is still missing; empty: nothing."""
        snapshot = self.store.snapshot
        for id, partition in snapshot.partitions.items():
            if partition.leader == NO_NODE:
                return f"nobody leads {partition}"
            living = [r for r in partition.replicas if r != broken]
            if set(partition.isr) != set(living):
                return f"not all are in sync: {partition}, broken {broken}"
            replica = self.brokers[partition.leader].replicas.get(id)
            if replica is None:
                return f"{partition.leader} has not heard of {partition}"
            core = replica.core
            if core.leading is None or core.leader_epoch != partition.leader_epoch:
                return f"{partition.leader} does not know that it leads {partition}"
            if core.leading.pending is not None:
                return f"{core.leading.pending} is not decided: {partition}"
            if core.high_watermark != core.log_end and self._all_done():
                return f"high watermark {core.high_watermark} of {core.log_end}: {partition}"
            if broken is None and (partition.adding or partition.removing):
                return f"reassignment does not end: {partition}"
        for writer in self.writers.values():
            writer.done = self.schedule.now > self._calm_since() + 2_000
            if not writer.lost and writer.under_way is not None:
                return f"writer {writer.token} has no answer"
        for producer in self.producers.values():
            if not producer.done:
                producer.done = self.schedule.now > self._calm_since() + 2_000
                return "producers still send"
            if producer.sent:
                return f"producer {producer.id} has no answer for {len(producer.sent)} batches"
        return ""

    def _all_done(self) -> bool:
        return all(p.done for p in self.producers.values()) and all(w.done for w in self.writers.values())

    def _calm_since(self) -> float:
        if not hasattr(self, "_calm_at"):
            self._calm_at = self.schedule.now
        return self._calm_at

    def last_look(self) -> None:
        """Everybody reads everything, and the checker judges."""
        snapshot = self.store.snapshot
        for number, id in enumerate(snapshot.partitions):
            points = []
            for base, _next, _leader, producer, epoch, sequence in self.invariants.log[id]:
                values = self.values[(producer, epoch, sequence)]
                points += [(str(id.partition), base + place, value) for place, value in enumerate(values)]
            self.history.append(Poll(900 + number, tuple(points)))
        if self.mode != "safety":
            self._read_all()
        verdict: Verdict = check(self.history)
        self.counts["values acknowledged"] += verdict.sends_ok
        self.counts["values unknown"] += verdict.sends_unknown
        self.counts["values read"] += verdict.read
        if verdict.anomalies:
            raise Violation(next(iter(verdict.anomalies)), verdict.describe())
        assert any(isinstance(o, Send) for o in self.history), "nothing was sent"

    def _read_all(self) -> None:
        """From the leaders, after healing, what is not trimmed; they show no less than was ever shown."""
        snapshot = self.store.snapshot
        for id, partition in snapshot.partitions.items():
            core = self.brokers[partition.leader].replicas[id].core
            if core.high_watermark != self.invariants.end[id]:
                raise Violation(
                    "unseen", f"leader {partition.leader} shows less of {id.partition} than was shown before"
                )
        for consumer in self.consumers:
            self.history.append(Assign(consumer.id))
            consumer.position = 0
            broker = self.brokers[snapshot.partitions[consumer.partition].leader]
            before = -1
            while consumer.position != before:
                before = consumer.position
                consumer.poll(broker)


def _unborn(partition: Partition) -> Partition:
    """Replicas in sync by decree, for nothing was written yet; whoever registers first leads."""
    return Partition(partition.id, partition.replicas, (), NO_NODE, 0, 0, elr=partition.replicas)
