"""
The server-side protocol under everything at once: slow and broken streams, silent members, coordinators that die.

Honest clients over queues that hypothesis empties in any order, and an outbox that shows nothing before it is
committed. What must hold: no partition is read by two members, epochs never fall, records are the state, and once all
answer everybody reaches the target.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_common.core.errors import ErrorCode
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.consumer_group import ConsumerGroup
from headrace_coordinator.core.effects import (
    Answer,
    CloseStream,
    ConsumerStanding,
    Effect,
    OffsetOutcomes,
    Persist,
    PersistGroup,
    Send,
)
from headrace_coordinator.core.events import (
    CommitAsked,
    ConsumerHeartbeat,
    Event,
    Loaded,
    OffsetToCommit,
    StreamBroke,
    TopicsChanged,
    Woken,
)
from headrace_coordinator.core.records import ConsumerRecord, GroupRecord, read_group
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.shard import Shard
from headrace_coordinator.core.values import GroupState, Moment, Subscription, TopicInfo, TopicPartitions

from .world import WALL, G, topic_id

OUT = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}
TOPICS = ("t", "u")
MEMBERS = ("a", "b", "c", "d")
Held = frozenset[PartitionId]


def shaped(held: Held) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions("", p.topic_id, (p.partition,)) for p in sorted(held))


@dataclass
class Client:
    """An honest member: it gives up before it takes, says so, and reads only what it was given."""

    name: str
    stream: int | None = None
    epoch: int = 0
    joining: bool = False
    desired: Held = frozenset()
    owned: Held = frozenset()
    """What it reads now."""
    topics: frozenset[str] = frozenset(TOPICS)
    epochs: list[int] = field(default_factory=list)
    """Of its present membership, as it was told."""

    def heartbeat(self, now: Moment, *, full: bool = False, report: bool = False) -> ConsumerHeartbeat:
        assert self.stream is not None
        joins = self.epoch == 0
        self.joining = joins
        return ConsumerHeartbeat(
            G,
            self.stream,
            now,
            self.name,
            self.epoch,
            subscription=Subscription(self.topics) if joins or full else None,
            owned=shaped(self.owned) if joins or full or report else None,
            rebalance_timeout_ms=30_000,
        )

    def lost(self) -> None:
        self.owned = self.desired = frozenset()
        self.epoch, self.joining = 0, False
        self.epochs = []

    def hear(self, message: ConsumerStanding) -> bool:
        """Returns whether it has to join again."""
        if message.error is not None:
            assert message.error.code in OUT, message.error
            if self.joining:
                return False  # about the membership that it knows to be over
            self.lost()
            return True
        if message.member_epoch < 0:
            return False
        self.joining = False
        self.epoch = message.member_epoch
        self.epochs.append(self.epoch)
        if message.assignment is not None:
            entries = message.assignment
            self.desired = frozenset(PartitionId(TopicId(e.topic_id), n) for e in entries for n in e.partitions)
        return False


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.settings = GroupSettings()
        self.now_ms = 0.0
        self.topics = {"t": TopicInfo(topic_id("t"), 3), "u": TopicInfo(topic_id("u"), 2)}
        self.log: dict[bytes, bytes | None] = {}
        self.outbox: deque[Effect] = deque()
        self.streams = 0
        self.up: dict[int, deque[ConsumerHeartbeat]] = {}
        self.down: dict[int, deque[ConsumerStanding]] = {}
        self.clients = {name: Client(name) for name in MEMBERS}
        self.commits: dict[int, tuple[Client, int]] = {}
        self.refs = 0

    @property
    def at(self) -> Moment:
        return Moment(self.now_ms, WALL + int(self.now_ms))

    @property
    def group(self) -> ConsumerGroup | None:
        group = self.shard._groups.get(G)
        membership = None if group is None else group.membership
        assert membership is None or isinstance(membership, ConsumerGroup)
        return membership

    @initialize()
    def begin(self) -> None:
        self.load()

    def load(self) -> None:
        self.shard = Shard(0, self.settings)
        self.shard.replay(self.log.items())
        self.handle(TopicsChanged(self.at, self.topics, {}))
        self.handle(Loaded(self.at))

    # --- the engine -----------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        before = self.durable_state()
        effects = self.shard.handle(event)
        if self.durable_state() != before and not isinstance(event, Loaded):
            assert isinstance(effects[0], PersistGroup), "what is durable comes before what is told"
        self.outbox.extend(effects)
        self.release()

    def durable_state(self) -> object:
        group = self.group
        return None if group is None else durable(group.record())

    def release(self) -> None:
        while self.outbox and not isinstance(self.outbox[0], Persist | PersistGroup):
            match self.outbox.popleft():
                case Send(stream=stream, message=ConsumerStanding() as message) if stream in self.down:
                    self.down[stream].append(message)
                case CloseStream(stream=stream):
                    self.down.pop(stream, None)
                    self.up.pop(stream, None)
                case Answer(ref=int(ref), result=OffsetOutcomes(outcomes=(outcome,))):
                    self.committed(ref, outcome.error is None)

    def committed(self, ref: int, accepted: bool) -> None:
        client, epoch = self.commits.pop(ref)
        del client, epoch, accepted

    @rule(everything=st.booleans())
    def commit_the_log(self, everything: bool) -> None:
        while self.outbox:
            match self.outbox.popleft():
                case Persist(rows=rows):
                    self.log.update(rows)
                case PersistGroup(group_id=group_id):
                    key, value = self.shard.group_record(group_id)
                    self.log[key] = value
                case other:
                    self.outbox.appendleft(other)
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

    @rule(ms=st.sampled_from([100, 2_999, 3_001, 20_000, 45_001]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.handle(Woken(self.at))

    @rule(count=st.integers(1, 5), topic=st.sampled_from(TOPICS))
    def topic_changes(self, count: int, topic: str) -> None:
        present = self.topics.get(topic, TopicInfo(topic_id(topic), 0)).partitions
        self.topics = {**self.topics, topic: TopicInfo(topic_id(topic), max(count, present))}
        self.handle(TopicsChanged(self.at, self.topics, {}))

    @rule(count=st.integers(1, 6), who=st.sets(st.sampled_from(MEMBERS), min_size=1))
    def some_do_their_work(self, count: int, who: set[str]) -> None:
        """So that there is something to lose."""
        for _ in range(count):
            self.round(who)

    # --- the clients ----------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(MEMBERS))
    def connect(self, name: str) -> None:
        """Also over a stream that is still there: the old one is given up, and what it carries may still arrive."""
        client = self.clients[name]
        if client.stream is not None:
            self.down.pop(client.stream, None)
        self.streams += 1
        client.stream = self.streams
        self.up[self.streams], self.down[self.streams] = deque(), deque()
        client.joining = False
        self.up[self.streams].append(client.heartbeat(self.at, full=True))

    @rule(stream=st.integers(1, 30))
    def stream_breaks(self, stream: int) -> None:
        """The coordinator notices; whoever had it does not yet."""
        if stream in self.up:
            del self.up[stream]
            self.down.pop(stream, None)
            self.handle(StreamBroke(G, stream, self.at))

    @rule(name=st.sampled_from(MEMBERS), what=st.sampled_from(["beat", "revoke", "take", "leave", "subscribe"]))
    def act(self, name: str, what: str) -> None:
        client = self.clients[name]
        queue = self.up.get(client.stream or 0)
        if client.epoch == 0:
            return
        match what:
            case "beat" if queue is not None:
                queue.append(client.heartbeat(self.at))
            case "revoke" if client.owned - client.desired:
                client.owned &= client.desired
                if queue is not None:
                    queue.append(client.heartbeat(self.at, report=True))
            case "take" if client.owned < client.desired:
                client.owned = client.desired
                if queue is not None:
                    queue.append(client.heartbeat(self.at, report=True))
            case "subscribe" if queue is not None:
                client.topics = frozenset(TOPICS) if len(client.topics) == 1 else frozenset(TOPICS[:1])
                queue.append(client.heartbeat(self.at, full=True))
            case "leave" if queue is not None:
                client.lost()
                queue.append(ConsumerHeartbeat(G, client.stream or 0, self.at, name, -1))
                client.stream = None

    @rule(stream=st.integers(1, 30), data=st.data())
    def request_arrives(self, stream: int, data: st.DataObject) -> None:
        queue = self.up.get(stream)
        if not queue:
            queue = self.up.get(data.draw(st.sampled_from(sorted(self.up)))) if self.up else None
        if queue:
            event = queue.popleft()
            self.handle(ConsumerHeartbeat(**{**{f: getattr(event, f) for f in event.__slots__}, "at": self.at}))

    @rule(name=st.sampled_from(MEMBERS))
    def answer_arrives(self, name: str) -> None:
        client = self.clients[name]
        queue = self.down.get(client.stream or 0)
        if queue and client.hear(queue.popleft()):
            self.up[client.stream or 0].append(client.heartbeat(self.at, full=True))

    @precondition(lambda self: any(c.owned for c in self.clients.values()))
    @rule(data=st.data(), stale=st.integers(0, 2))
    def commits(self, data: st.DataObject, stale: int) -> None:
        client = self.clients[data.draw(st.sampled_from([n for n, c in sorted(self.clients.items()) if c.owned]))]
        group = self.group
        member = None if group is None else group.members.get(client.name)
        before = dict(self.shard._groups[G].offsets.held) if G in self.shard._groups else {}
        epoch = client.epoch - stale
        self.refs += 1
        entry = OffsetToCommit("t", 0, self.refs)
        effects = self.shard.handle(CommitAsked(G, self.refs, self.at, client.name, None, epoch, (entry,)))
        legal = member is not None and member.epoch == epoch
        after = self.shard._groups[G].offsets.held if G in self.shard._groups else {}
        assert (after != before) == legal, "only a commit of the present epoch changes anything"
        assert any(isinstance(e, Persist) for e in effects) == legal
        self.outbox.extend(e for e in effects if isinstance(e, Persist))
        self.release()

    # --- what must hold -------------------------------------------------------------------------------------

    @invariant()
    def no_partition_is_read_by_two_members(self) -> None:
        group = self.group
        if group is None:
            return
        readers = [(n, self.clients[n].owned) for n in group.members]
        for i, (one, held) in enumerate(readers):
            for other, also in readers[i + 1 :]:
                assert not held & also, f"{one} and {other} read {held & also}"

    @invariant()
    def what_members_may_hold_is_disjoint(self) -> None:
        group = self.group
        if group is None:
            return
        seen: set[PartitionId] = set()
        for member in group.members.values():
            assert not member.assigned & member.revoking
            assert not member.unconfirmed - member.assigned
            for partition in member.assigned | member.revoking:
                assert partition not in seen
                seen.add(partition)
        assert seen == set(group._ownership._owner)

    @invariant()
    def epochs_never_fall(self) -> None:
        for client in self.clients.values():
            assert client.epochs == sorted(client.epochs)
            client.epochs = client.epochs[-1:]
        if self.group is not None:
            assert all(m.previous_epoch <= m.epoch <= self.group.group_epoch for m in self.group.members.values())

    @invariant()
    def the_records_are_the_state(self) -> None:
        if self.outbox or self.group is None or not self.shard._groups[G].recorded:
            return
        key, value = self.shard.group_record(G)
        stored = self.log.get(key)
        assert value is not None
        assert stored is not None
        assert durable(read_group(value)) == durable(read_group(stored))

    def teardown(self) -> None:
        """Everybody answers from now on: all reach the target, and every partition that is wanted is read."""
        if not hasattr(self, "shard"):
            return
        for _ in range(40):
            self.round(set(MEMBERS))
        group = self.group
        assert group is not None
        assert set(group.members) == set(MEMBERS)
        assert group.state is GroupState.STABLE
        for name, client in self.clients.items():
            member = group.members[name]
            assert client.epoch == member.epoch == group.group_epoch
            assert client.owned == member.assigned == member.target
        read = [p for c in self.clients.values() for p in c.owned]
        wanted = {t for c in self.clients.values() for t in c.topics}
        assert len(read) == len(set(read)) == sum(info.partitions for t, info in self.topics.items() if t in wanted)

    def round(self, who: set[str]) -> None:
        for name in sorted(who):
            client = self.clients[name]
            if client.stream is None or client.stream not in self.up:
                self.connect(name)
            elif not client.joining:
                for what in ("revoke", "take", "beat"):
                    self.act(name, what)
        for stream in sorted(self.clients[name].stream or 0 for name in who):
            while self.up.get(stream):
                self.request_of(stream)
        self.commit_the_log(everything=True)
        for name in sorted(who):
            while self.down.get(self.clients[name].stream or 0):
                self.answer_arrives(name)
            self.no_partition_is_read_by_two_members()
        self.now_ms += 500
        self.handle(Woken(self.at))

    def request_of(self, stream: int) -> None:
        event = self.up[stream].popleft()
        self.handle(ConsumerHeartbeat(**{**{f: getattr(event, f) for f in event.__slots__}, "at": self.at}))


def durable(record: GroupRecord) -> object:
    """The record without what is only remembered for convenience."""
    assert isinstance(record, ConsumerRecord)
    members = tuple((m.member_id, m.topics, m.epoch, m.state, m.assigned, m.revoking, m.target) for m in record.members)
    return record.group_epoch, record.empty_since_ms, dict(record.topics), members


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
