"""
Groups in one process, from one seed: coordinators, their logs, a controller, consumers, a network, what goes wrong.

``Profile`` says which groups there are (each with its protocol and assignors), how many of everything, and which
faults; it is drawn from the seed, few kinds of faults at a time.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.simulation.groups.consumers import Consumer
from tests.simulation.groups.controller import Controller, matching
from tests.simulation.groups.coordinators import CoordinatorNode
from tests.simulation.groups.faults import Faults
from tests.simulation.groups.invariants import Invariants
from tests.simulation.groups.processes import Process, Script
from tests.simulation.groups.shard_log import Brokers, ShardLog
from tests.simulation.invariants import Violation
from tests.simulation.schedule import Network, Schedule
from tests.simulation.world import MODES, Result

from headrace._core.membership import Phase
from headrace.consumer_settings import CLASSIC, CONSUMER, ConsumerSettings
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import TopicPartition
from headrace_coordinator.core.events import OffsetsAsked
from headrace_coordinator.core.records import ClassicRecord, GroupRecord
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.values import GroupState, MemberState, Topics

FAULTS = (
    "kill_coordinator",
    "power_coordinator",
    "pause_coordinator",
    "drain_coordinator",
    "cut_controller",
    "cut_brokers",
    "cut_members",
    "lossy",
    "change_leader",
    "stall_log",
    "kill_consumer",
    "close_consumer",
    "pause_consumer",
    "slow_handler",
    "stuck_calls",
    "join",
    "leave",
    "twin",
    "break_stream",
    "create_topic",
    "grow_topic",
    "delete_topic",
    "admin",
)
PROTOCOLS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (CLASSIC, ("range",)),
    (CLASSIC, ("roundrobin",)),
    (CLASSIC, ("sticky",)),
    (CLASSIC, ("range", "sticky")),
    (CLASSIC, ("cooperative-sticky",)),
    (CLASSIC, ("cooperative-sticky",)),
    (CONSUMER, ("uniform",)),
    (CONSUMER, ("uniform",)),
    (CONSUMER, ("range",)),
)
CALM_MS_MAX = 120_000.0
SETTLE_MS = 12_000.0
PATTERN = "t[0-9]+"


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

    shards: int
    coordinators: int
    groups: tuple[GroupProfile, ...]
    consumers: int
    consumers_max: int
    topics: tuple[int, ...]
    faults: tuple[str, ...]
    fault_every_ms: float
    image_slow_ms: float
    controller_session_ms: float
    clock_error: float
    gather_ms: int
    retention_minutes: int
    seeks_back: bool
    steps: int

    @staticmethod
    def drawn(rng: Random, steps: int) -> Profile:
        """From the seed."""
        groups = []
        for number in range(rng.choice((1, 1, 2))):
            protocol, assignors = rng.choice(PROTOCOLS)
            groups.append(
                GroupProfile(f"g{number}", protocol, assignors, rng.random() < 0.3, rng.choice((0.0, 0.0, 0.5, 1.0)))
            )
        return Profile(
            shards=rng.choice((1, 2)),
            coordinators=rng.choice((2, 3)),
            groups=tuple(groups),
            consumers=rng.choice((2, 3, 4)),
            consumers_max=7,
            topics=tuple(rng.randint(1, 6) for _ in range(rng.choice((1, 2)))),
            faults=tuple(rng.sample(FAULTS, rng.randint(4, 10))),
            fault_every_ms=rng.choice((400.0, 1_000.0, 2_500.0)),
            image_slow_ms=rng.choice((200.0, 3_000.0)),
            controller_session_ms=rng.choice((3_000.0, 9_000.0)),
            clock_error=rng.choice((0.0, 0.02)),
            gather_ms=rng.choice((200, 3_000)),
            retention_minutes=rng.choice((1_440, 1_440, 1)),
            seeks_back=rng.random() < 0.2,
            steps=steps,
        )


class Operator(Process):
    """
    Asks for administration, once each, and looks at positions all the time; what comes of it is for the invariants to
    judge. It believes for long to know who the coordinator is.
    """

    def watch(self) -> None:
        """Look at a group's positions."""
        world = self.world
        topics = world.controller.image.topics
        topic = world.rng.choice(sorted(topics))
        asked = ((topic, tuple(range(topics[topic].partitions))),)
        group_id = world.rng.choice(world.profile.groups).name
        node = world.rng.choice(world.coordinators)
        if node.up:
            self.call(
                node, node.commit, lambda ref, at: OffsetsAsked(group_id, ref, at, partitions=asked), timeout_ms=6e3
            )
        self.later(250.0, self.watch)

    def ask(self, group_id: str, make: object) -> None:
        """Find the coordinator and ask."""
        self.run(self._ask(group_id, make))

    def _ask(self, group_id: str, make: object) -> Script:
        try:
            node = yield self.call(self.world.brokers, self.world.controller.find, group_id, timeout_ms=2_000.0)
            yield self.call(node, node.commit, make, timeout_ms=6_000.0)
            self.world.counts["administration answered"] += 1
        except HeadraceError:
            self.world.counts["administration refused"] += 1


class World:
    """Everything; ``run`` runs it."""

    def __init__(self, seed: int, steps: int = 2_500, profile: Profile | None = None, mode: str = "both") -> None:
        assert mode in MODES, f"MODE is one of {MODES}"
        self.seed = seed
        self.mode = mode
        self.schedule = Schedule(seed)
        self.rng = self.schedule.rng
        self.profile = profile or Profile.drawn(self.rng, steps)
        self.network = Network(self.schedule)
        self.counts: Counter[str] = Counter()
        self.calm = False
        self.lossy_until = 0.0
        self.settings = GroupSettings(
            group_min_session_timeout_ms=1_000,
            group_initial_rebalance_delay_ms=self.profile.gather_ms,
            group_consumer_session_timeout_ms=8_000,
            group_consumer_heartbeat_interval_ms=1_500,
            offsets_retention_minutes=self.profile.retention_minutes,
            offsets_retention_check_interval_ms=5_000,
        )
        self._marks = 0
        self.invariants = Invariants(self)
        self.brokers = Brokers(500, self)
        self.brokers.logs = {number: ShardLog(number, self) for number in range(self.profile.shards)}
        self.coordinators: list[CoordinatorNode] = []
        self.controller = Controller(400, self)
        self.operator = Operator(600, self)
        self.operator.up = True
        self.schedule.after(500.0, self.operator.watch)
        self.coordinators += [CoordinatorNode(1 + n, self) for n in range(self.profile.coordinators)]
        self.consumers: list[Consumer] = []
        self.schedule.after(200.0, self.controller.tick)
        for node in self.coordinators:
            node.start()
        for group in self.profile.groups:
            for _ in range(self.profile.consumers):
                self.add_consumer(group).start()

    # --- what the others ask ------------------------------------------------------------------------------

    def say(self, *words: object) -> None:
        """For the story."""
        self.schedule.say(*words)

    def mark(self, *, back: bool = False) -> str:
        """Metadata that no other commit has."""
        self._marks += 1
        return f"{self._marks}{'back' if back else ''}"

    @property
    def logs(self) -> Brokers:
        """Where shards have their logs."""
        return self.brokers

    def lossy(self) -> bool:
        """Whether the connection breaks now."""
        return self.schedule.now < self.lossy_until and self.rng.random() < 0.1

    def delay(self) -> float:
        """Of one message."""
        delay = self.rng.random() * self.network.delay_ms
        if not self.calm and self.rng.random() * self.network.slow_one_in < 1:
            delay += self.rng.random() * self.network.slow_ms
        return delay

    def send(self, source: Process, to: Process, action: Callable[..., None], *, channel: int) -> None:
        """One message of a call."""
        self.network.send(source.id, to, action, channel=channel)

    @staticmethod
    def matching(pattern: str, topics: Topics) -> frozenset[str]:
        """As the coordinator's adapter does it."""
        return matching(pattern, topics)

    def add_consumer(self, group: GroupProfile) -> Consumer:
        """One more process."""
        number = 1_000 + len(self.consumers)
        instance = f"i{number}" if self.rng.random() < group.static_share else None
        consumer = Consumer(
            number,
            self,
            self._settings_of(group, instance),
            () if group.by_pattern else tuple(f"t{n}" for n in range(len(self.profile.topics))),
            PATTERN if group.by_pattern else None,
        )
        self.consumers.append(consumer)
        return consumer

    def twin_of(self, consumer: Consumer) -> Consumer:
        """A second one that has the same name."""
        twin = Consumer(1_000 + len(self.consumers), self, consumer.settings, consumer.topics, consumer.pattern)
        self.consumers.append(twin)
        return twin

    @staticmethod
    def _settings_of(group: GroupProfile, instance: str | None) -> ConsumerSettings:
        classic = group.protocol == CLASSIC
        return ConsumerSettings(
            group_id=group.name,
            group_protocol=group.protocol,
            group_instance_id=instance,
            session_timeout_ms=8_000,
            heartbeat_interval_ms=1_500,
            max_poll_interval_ms=12_000,
            partition_assignment_strategy=group.assignors if classic else ("range",),
            group_remote_assignor=None if classic else group.assignors[0],
            default_api_timeout_ms=15_000,
            metadata_max_age_ms=2_000,
            auto_offset_reset="earliest",
        )

    def break_links(self, node: CoordinatorNode) -> None:
        """All streams to it."""
        for consumer in self.consumers:
            if consumer.up and consumer.link is not None and consumer.link.server is node:
                consumer.link.break_()

    # --- running ------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """The whole life: a quiet start, faults, healing, growth, the last look."""
        result = Result(self.seed, 0)
        faults = Faults(self)
        try:
            self.until(self.why, 60_000.0, "start")
            self.schedule.after(self.profile.fault_every_ms, faults.tick)
            share = {"both": 1.0, "safety": 2.0, "liveness": 0.4}[self.mode]
            stop = self.schedule.steps + int(self.profile.steps * share)
            while self.schedule.steps < stop and self.step():
                pass
            if self.mode != "safety":
                faults.heal()
                self.calm = True
                self.until(self.why, CALM_MS_MAX, "liveness")
                self._pass(SETTLE_MS)  # broken streams that nobody has noticed yet
                self.until(self.why, CALM_MS_MAX, "liveness")
                self._move()
                self._grow()
                self.until(self._unanswered, CALM_MS_MAX, "liveness")
            self.invariants.last_look()
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

    def _pass(self, ms: float) -> None:
        """Let time pass."""
        end = self.schedule.now + ms
        while self.schedule.now < end and self.step():
            pass

    def until(self, why: Callable[[], str], ms_max: float, name: str) -> None:
        """Step until nothing is missing; it is looked at every few steps."""
        end = self.schedule.now + ms_max
        while self.schedule.steps % 16 or why():
            if self.schedule.now > end or not self.step():
                raise Violation(name, f"not within {ms_max:.0f} ms: {why()}")

    # --- liveness -----------------------------------------------------------------------------------------

    def why(self) -> str:
        """What is still missing; empty: every group is stable and shares all partitions."""
        for group in self.profile.groups:
            missing = self._missing(group)
            if missing:
                return f"{group.name}: {missing}"
        return ""

    def members_of(self, group: GroupProfile) -> list[Consumer]:
        """Those that live."""
        return [c for c in self.consumers if c.group_id == group.name and c.up]

    def _missing(self, group: GroupProfile) -> str:
        members = self.members_of(group)
        record = self.invariants.record(group.name)
        for consumer in members:
            core = consumer.core
            if consumer.gone or consumer.closing:
                return f"{consumer.id} is about to end"
            if core.phase is not Phase.MEMBER or core.rebalancing:
                return f"{consumer.id} is {core.phase.name} and holds {sorted(core.holdings.held)}"
        if not members:
            return "" if record is None or not record.members else f"nobody lives, but the log has {record}"
        if record is None or {m.member_id for m in record.members} != {c.core.member_id for c in members}:
            return f"the log has other members: {record}"
        if not _settled(record) or any(_epoch(record) != c.core.generation for c in members):
            return f"the log says that it is not over: {record}"
        held = [tp for c in members for tp in c.core.holdings.held]
        topics = self.controller.image.topics
        wanted = topics if group.by_pattern else {t: topics[t] for t in members[0].topics if t in topics}
        all_ = {TopicPartition(t, n) for t, info in wanted.items() for n in range(info.partitions)}
        if len(held) != len(set(held)) or set(held) != all_:
            return f"held are {sorted(held)} of {sorted(all_)}"
        return ""

    def _move(self) -> None:
        """All shards move, off a coordinator that leaves or is killed: for members nothing has happened."""
        began = self.schedule.now
        before = {c.id: (c.incarnation, c.core.generation) for c in self.consumers if c.up}
        node = self.rng.choice(self.coordinators)
        self.counts["calm moves"] += 1
        if self.rng.random() < 0.5:
            self.controller.banned.add(node.id)
            self.controller.settle()
        else:
            self.say("coordinator", node.id, "dies")
            node.die()
            self.break_links(node)
            self.controller.noticed(node)
        self._pass(SETTLE_MS)
        self.controller.banned.clear()
        if not node.up:
            node.start()
        self.controller.settle()
        self._pass(2_000.0)
        self.until(self.why, CALM_MS_MAX, "liveness")
        for consumer in self.consumers:
            incarnation, generation = before.get(consumer.id, (-1, 0))
            if not consumer.up or incarnation != consumer.incarnation:
                continue
            lost = [tp for tp, since in consumer.kept_since.items() if since > began]
            if lost or consumer.core.generation != generation:
                text = f"{consumer.id} was in {generation}, is in {consumer.core.generation}, was without {lost}"
                raise Violation("felt-the-move", text)

    def _grow(self) -> None:
        """One more member in each group: nobody but it gets anything new, and what stays is never given up."""
        began = self.schedule.now
        before = {c.id: c.core.holdings.held for c in self.consumers if c.up}
        incarnations = {c.id: c.incarnation for c in self.consumers}
        for group in self.profile.groups:
            if self.members_of(group):
                self.add_consumer(group).start()
        self._pass(600.0)
        self.until(self.why, CALM_MS_MAX, "growth")
        for group in self.profile.groups:
            for consumer in self.members_of(group):
                if consumer.id not in before or consumer.incarnation != incarnations[consumer.id]:
                    continue
                self._check_growth(group, consumer, before[consumer.id], began)

    def _check_growth(
        self, group: GroupProfile, consumer: Consumer, before: frozenset[TopicPartition], began: float
    ) -> None:
        held = consumer.core.holdings.held
        if group.sticks and not held <= before:
            raise Violation("moved-too-much", f"{consumer.id} got {sorted(held - before)} when another one joined")
        gaps = [tp for tp in held & before if consumer.kept_since[tp] > began]
        if group.protocol == CLASSIC:  # one assignment may take away what the next gives back
            gaps = [tp for tp in gaps if consumer.taken_away.get(tp, 0.0) < began]
        if group.keeps and gaps:
            raise Violation("given-up-needlessly", f"{consumer.id} was without {sorted(gaps)} for a while")

    def _unanswered(self) -> str:
        for consumer in self.consumers:
            if consumer.up:
                consumer.quiet = True
                if consumer.pending_commits:
                    return f"{consumer.id} has {consumer.pending_commits} commits without an answer"
        return ""


def _settled(record: GroupRecord) -> bool:
    if isinstance(record, ClassicRecord):
        return record.state is GroupState.STABLE
    return all(m.epoch == record.group_epoch and m.state is MemberState.STABLE for m in record.members)


def _epoch(record: GroupRecord) -> int:
    return record.generation if isinstance(record, ClassicRecord) else record.group_epoch
