"""
The classic protocol under everything at once: slow and broken streams, silent members, coordinators that die.

Honest clients, eager or cooperative, over queues that hypothesis empties in any order. What must hold: no partition has
two owners in one generation, nor two readers at any time; generations never fall; what is durable comes before what is
told; once all answer, everybody is in one generation and all partitions are read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headrace_common.core.assignors import MemberSubscription, assign
from headrace_common.core.errors import ErrorCode
from headrace_coordinator.core.classic_group import ClassicGroup
from headrace_coordinator.core.effects import (
    ClassicStanding,
    CloseStream,
    Effect,
    JoinAnswer,
    Message,
    Persist,
    PersistGroup,
    Send,
    SyncAnswer,
)
from headrace_coordinator.core.events import (
    ClassicHeartbeat,
    ClassicJoined,
    ClassicSynced,
    CommitAsked,
    Event,
    Left,
    Loaded,
    OffsetToCommit,
    StreamBroke,
    TopicsChanged,
    Woken,
)
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.shard import Shard
from headrace_coordinator.core.values import (
    ClassicAssignment,
    ClassicSubscription,
    GroupState,
    Moment,
    TopicInfo,
    TopicPartitions,
)

from .world import WALL, G, parts, topic_id

PARTITIONS = 5
NAMES = ("a", "b", "c")


@dataclass
class Client:
    """An honest member. Eager: it gives up all before it joins; cooperative: what is not its own after the sync."""

    name: str
    cooperative: bool
    member_id: str = ""
    generation: int = -1
    stream: int | None = None
    joining: bool = False
    syncing: bool = False
    """Its sync is not answered yet; over a new stream it joins again, to be told."""
    owned: frozenset[int] = frozenset()
    told: list[int] = field(default_factory=list)
    """Generations, as its present member id was told."""

    def join(self, at: Moment, fresh: int) -> ClassicJoined:
        assert self.stream is not None
        if not self.cooperative:
            self.owned = frozenset()
        self.joining, self.syncing = True, False
        name = "cooperative-sticky" if self.cooperative else "range"
        held = ClassicSubscription(("t",), parts({"t": self.owned}), self.generation)
        return ClassicJoined(
            G, self.stream, at, self.member_id, None, 10_000, 20_000, ((name, held),), f"{self.name}-{fresh}"
        )

    def lost(self) -> None:
        self.owned, self.generation, self.member_id, self.told = frozenset(), -1, "", []
        self.syncing = False


def shares(answer: JoinAnswer) -> dict[str, ClassicAssignment]:
    """What a leader does."""
    members = {
        m.member_id: MemberSubscription(
            m.subscription.topics,
            {entry.topic: entry.partitions for entry in m.subscription.owned},
            m.subscription.generation,
        )
        for m in answer.members
    }
    result = assign(answer.protocol, members, {"t": PARTITIONS})
    return {m: ClassicAssignment(parts(held)) for m, held in result.items()}


def numbers(entries: tuple[TopicPartitions, ...]) -> frozenset[int]:
    return frozenset(n for entry in entries for n in entry.partitions)


class Groups(RuleBasedStateMachine):
    cooperative = False

    def __init__(self) -> None:
        super().__init__()
        self.settings = GroupSettings(group_initial_rebalance_delay_ms=100)
        self.now_ms = 0.0
        self.log: dict[bytes, bytes | None] = {}
        self.outbox: deque[Effect] = deque()
        self.serial = 0
        self.up: dict[int, deque[Event]] = {}
        self.down: dict[int, deque[Message]] = {}
        self.clients = {name: Client(name, self.cooperative) for name in NAMES}
        self.handed: dict[int, dict[int, str]] = {}
        """Generation -> partition -> member, as it was sent."""

    @property
    def at(self) -> Moment:
        return Moment(self.now_ms, WALL + int(self.now_ms))

    @property
    def group(self) -> ClassicGroup | None:
        group = self.shard._groups.get(G)
        membership = None if group is None else group.membership
        assert membership is None or isinstance(membership, ClassicGroup)
        return membership

    def number(self) -> int:
        self.serial += 1
        return self.serial

    @initialize()
    def begin(self) -> None:
        self.load()

    def load(self) -> None:
        self.shard = Shard(0, self.settings)
        self.shard.replay(self.log.items())
        self.handle(TopicsChanged(self.at, {"t": TopicInfo(topic_id("t"), PARTITIONS)}, {}))
        self.handle(Loaded(self.at))

    # --- the engine -----------------------------------------------------------------------------------------

    def durable_state(self) -> object:
        """What a new coordinator has to know: who was told that it is a member of which generation, and its share."""
        group = self.group
        if group is None:
            return None
        record = group.record()
        return record.generation, record.leader, [(m.member_id, m.assignment) for m in record.members]

    def handle(self, event: Event) -> None:
        before = self.durable_state()
        effects = self.shard.handle(event)
        nobody_knew = before is None or before == (0, "", [])
        if not isinstance(event, Loaded) and self.durable_state() != before and (effects or not nobody_knew):
            assert isinstance(effects[0], PersistGroup), f"{event}: what is durable comes before what is told"
        self.outbox.extend(effects)
        self.release()

    def release(self) -> None:
        while self.outbox and not isinstance(self.outbox[0], Persist | PersistGroup):
            match self.outbox.popleft():
                case Send(stream=stream, message=message):
                    self.sent(message)
                    if stream in self.down:
                        self.down[stream].append(message)
                case CloseStream(stream=stream):
                    self.down.pop(stream, None)
                    self.up.pop(stream, None)

    def sent(self, message: Message) -> None:
        if isinstance(message, SyncAnswer) and message.error is None:
            owners = self.handed.setdefault(message.generation, {})
            entries = message.assignment.partitions
            key = repr(entries)
            for number in numbers(entries):
                assert owners.setdefault(number, key) == key, f"generation {message.generation} has it twice"

    @rule(everything=st.booleans())
    def commit_the_log(self, everything: bool) -> None:
        while self.outbox:
            match self.outbox.popleft():
                case Persist(rows=rows):
                    self.log.update(rows)
                case PersistGroup(group_id=group_id):
                    key, value = self.shard.group_record(group_id)
                    self.log[key] = value
            self.release()
            if not everything:
                return

    @rule()
    def coordinator_dies(self) -> None:
        self.outbox.clear()
        self.up.clear()
        self.down.clear()
        for client in self.clients.values():
            client.stream = None
        self.load()

    @rule(ms=st.sampled_from([100, 2_999, 3_001, 10_001, 20_001]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.handle(Woken(self.at))

    # --- the clients ----------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def connect(self, name: str) -> None:
        client = self.clients[name]
        if client.stream is not None:
            self.down.pop(client.stream, None)
        client.stream = self.number()
        self.up[client.stream], self.down[client.stream] = deque(), deque()
        client.joining = client.joining or client.syncing
        self.speak(client)

    def speak(self, client: Client) -> None:
        """A heartbeat, or the join that is not answered yet."""
        queue = self.up.get(client.stream or 0)
        if queue is None:
            return
        if client.joining or not client.member_id:
            queue.append(client.join(self.at, self.number()))
        else:
            queue.append(ClassicHeartbeat(G, client.stream or 0, self.at, client.member_id, None, client.generation))

    @rule(name=st.sampled_from(NAMES))
    def beat(self, name: str) -> None:
        client = self.clients[name]
        if client.member_id and not client.joining:
            self.speak(client)

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        client = self.clients[name]
        queue = self.up.get(client.stream or 0)
        if queue is not None and client.member_id:
            queue.append(Left(G, client.stream or 0, self.at, client.member_id, None, permanently=False))
            client.lost()
            client.joining, client.stream = False, None

    @rule(pick=st.integers(0, 30))
    def stream_breaks(self, pick: int) -> None:
        if self.up:
            stream = sorted(self.up)[pick % len(self.up)]
            del self.up[stream]
            self.down.pop(stream, None)
            self.handle(StreamBroke(G, stream, self.at))

    @rule(pick=st.integers(0, 30))
    def request_arrives(self, pick: int) -> None:
        busy = [stream for stream in sorted(self.up) if self.up[stream]]
        if busy:
            event = self.up[busy[pick % len(busy)]].popleft()
            self.handle(replace(event, at=self.at))

    @rule(name=st.sampled_from(NAMES))
    def answer_arrives(self, name: str) -> None:
        client = self.clients[name]
        queue = self.down.get(client.stream or 0)
        if queue:
            self.hear(client, queue.popleft())

    def hear(self, client: Client, message: Message) -> None:
        error = ErrorCode.NONE if message.error is None else message.error.code
        if error in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}:
            if isinstance(message, JoinAnswer) or not client.joining:
                client.lost()
                self.rejoin(client)
            return
        match message:
            case JoinAnswer(error=None):
                client.joining, client.syncing = False, True
                client.member_id, client.generation = message.member_id, message.generation
                client.told.append(message.generation)
                given = shares(message) if message.leader == message.member_id else {}
                if (queue := self.up.get(client.stream or 0)) is not None:
                    stream = client.stream or 0
                    queue.append(ClassicSynced(G, stream, self.at, client.member_id, None, client.generation, given))
            case SyncAnswer(error=None) if not client.joining and message.generation == client.generation:
                mine = numbers(message.assignment.partitions)
                gives_up = client.owned - mine
                client.owned, client.syncing = mine, False
                if gives_up:
                    self.rejoin(client)
            case SyncAnswer() | ClassicStanding() if error is ErrorCode.REBALANCE_IN_PROGRESS and not client.joining:
                self.rejoin(client)

    def rejoin(self, client: Client) -> None:
        client.joining = True
        self.speak(client)

    @rule(name=st.sampled_from(NAMES), stale=st.integers(0, 1))
    def commit(self, name: str, stale: int) -> None:
        client, group = self.clients[name], self.group
        if not client.member_id or group is None:
            return
        generation = client.generation - stale
        known = client.member_id in group.members and generation == group.generation
        legal = known and group.state is not GroupState.COMPLETING_REBALANCE
        entry = OffsetToCommit("t", 0, self.number())
        before = dict(self.shard._groups[G].offsets.held)
        effects = self.shard.handle(CommitAsked(G, 0, self.at, client.member_id, None, generation, (entry,)))
        assert (self.shard._groups[G].offsets.held != before) == legal, "only the present generation changes anything"
        self.outbox.extend(effects)
        self.release()

    @rule(count=st.integers(1, 5), who=st.sets(st.sampled_from(NAMES), min_size=1))
    def some_do_their_work(self, count: int, who: set[str]) -> None:
        for _ in range(count):
            self.round(who)

    def round(self, who: set[str]) -> None:
        for name in sorted(who):
            client = self.clients[name]
            if client.stream is None or client.stream not in self.up:
                self.connect(name)
            else:
                self.beat(name)
        for name in sorted(who):
            while self.up.get(self.clients[name].stream or 0):
                self.handle(replace(self.up[self.clients[name].stream or 0].popleft(), at=self.at))
        self.commit_the_log(everything=True)
        for name in sorted(who):
            while self.down.get(self.clients[name].stream or 0):
                self.answer_arrives(name)
                self.no_partition_is_read_by_two_members()
        self.now_ms += 500
        self.handle(Woken(self.at))

    # --- what must hold -------------------------------------------------------------------------------------

    @invariant()
    def no_partition_is_read_by_two_members(self) -> None:
        group = self.group
        if group is None:
            return
        readers = [c for c in self.clients.values() if c.member_id in group.members]
        for i, one in enumerate(readers):
            for other in readers[i + 1 :]:
                assert not one.owned & other.owned, f"{one} and {other}"

    @invariant()
    def generations_never_fall(self) -> None:
        for client in self.clients.values():
            assert client.told == sorted(client.told)

    @invariant()
    def the_records_are_the_state(self) -> None:
        if self.outbox or self.group is None or not self.shard._groups[G].recorded:
            return
        before = self.durable_state()
        again = Shard(0, self.settings)
        again.replay(self.log.items())
        again.handle(Loaded(self.at))
        present, self.shard = self.shard, again
        assert self.durable_state() == before
        self.shard = present

    def teardown(self) -> None:
        if not hasattr(self, "shard"):
            return
        for _ in range(90):
            self.round(set(NAMES))
        group = self.group
        assert group is not None
        assert group.state is GroupState.STABLE
        assert {c.member_id for c in self.clients.values()} == {m.member_id for m in group.members}
        assert {c.generation for c in self.clients.values()} == {group.generation}
        assert sorted(n for c in self.clients.values() for n in c.owned) == list(range(PARTITIONS))


class CooperativeGroups(Groups):
    cooperative = True


@pytest.mark.parametrize("machine", [Groups, CooperativeGroups], ids=["eager", "cooperative"])
def test_classic_groups(machine: type[Groups]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))
